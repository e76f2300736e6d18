//! Terms on the wire (also: agreed options, negotiation): what all workers have alike, as names and values.

use super::fields::{Field, FieldReader};
use crate::job::{JobTerms, LONGEST_MS, MS, Mode, OnLoss, SumOrder};

/// Maximum names, and maximum bytes of a name or a value: members keep them, and pass them on.
const MOST_NAMES: usize = 64;
const MOST_BYTES: usize = 64;

/// The terms of a job, with those that only later releases know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) known: JobTerms,
    /// Names and values, in the order of the names. Members compare them, and pass them on.
    pub(crate) others: Vec<(String, String)>,
}

/// Text of a value without a limit.
const NONE: &str = "none";
/// Orders of sums.
const LINEAR: &str = "linear";
const TREE: &str = "tree";

impl From<JobTerms> for Terms {
    fn from(known: JobTerms) -> Self {
        Self { known, others: Vec::new() }
    }
}

fn pairs(terms: &JobTerms) -> [(&'static str, String); 8] {
    let JobTerms {
        mode,
        on_loss,
        peer_timeout,
        slice_bytes,
        hold_bytes,
        max_rounds_ahead,
        sum_order,
    } = *terms;
    let (kind, staleness) = match mode {
        Mode::Sync => ("dist_sync", NONE.into()),
        Mode::Async { staleness: None } => ("dist_async", NONE.into()),
        Mode::Async { staleness: Some(most) } => ("dist_async", most.to_string()),
    };
    let loss = if on_loss == OnLoss::Fail { "fail" } else { "continue" };
    [
        ("type", kind.to_string()),
        ("staleness", staleness),
        ("on_worker_loss", loss.into()),
        ("peer_timeout_ms", (peer_timeout / MS).to_string()),
        ("slice_bytes", slice_bytes.to_string()),
        ("hold_bytes", hold_bytes.to_string()),
        ("max_rounds_ahead", max_rounds_ahead.to_string()),
        ("sum_order", if sum_order == SumOrder::Tree { TREE } else { LINEAR }.into()),
    ]
}

impl Terms {
    /// The terms of a worker of this build.
    pub(crate) fn own(known: JobTerms) -> Self {
        #[cfg(feature = "wire-next")]
        let others = vec![(super::next::TERM.0.into(), super::next::TERM.1.into())];
        #[cfg(not(feature = "wire-next"))]
        let others = Vec::new();
        Self { known, others }
    }

    /// First term that differs: its name, its value here and in `other`. A name that one side lacks does not
    /// differ.
    pub(crate) fn difference(&self, other: &Self) -> Option<(String, String, String)> {
        let known = pairs(&self.known).into_iter().zip(pairs(&other.known));
        let known = known.map(|((name, ours), (_, theirs))| {
            (if name == "type" { "the store type" } else { name }.to_owned(), ours, theirs)
        });
        let theirs = |name: &str| other.others.iter().find(|(theirs, _)| theirs == name);
        let others = self.others.iter().filter_map(|(name, ours)| {
            theirs(name).map(|(_, theirs)| (name.clone(), ours.clone(), theirs.clone()))
        });
        known.chain(others).find(|(_, ours, theirs)| ours != theirs)
    }
}

/// Terms, or none if they are not known: a list without names.
impl Field for Option<Terms> {
    const LEAST: usize = 4;

    fn put(&self, out: &mut Vec<u8>) {
        let Some(Terms { known, others }) = self else { return 0u32.put(out) };
        let known = pairs(known).map(|(name, value)| (name.to_owned(), value));
        known.into_iter().chain(others.iter().cloned()).collect::<Vec<_>>().put(out);
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        let mut pairs = Vec::<(String, String)>::take(from)?;
        if pairs.is_empty() {
            return Some(None);
        }
        let fits = |(name, value): &(String, String)| name.len().max(value.len()) <= MOST_BYTES;
        pairs.sort_unstable();
        let is_unique = pairs.is_sorted_by(|(one, _), (next, _)| one < next);
        if pairs.len() > MOST_NAMES || !is_unique || !pairs.iter().all(fits) {
            return None;
        }
        take_known(&mut pairs).map(|known| Some(Terms { known, others: pairs }))
    }
}

/// Takes the terms that this release knows out of a list; all of them are there, but those that workers of
/// earlier releases do not send.
fn take_known(pairs: &mut Vec<(String, String)>) -> Option<JobTerms> {
    let mut value = |wanted: &str| {
        let at = pairs.iter().position(|(name, _)| name == wanted)?;
        Some(pairs.remove(at).1)
    };
    let mode = match (&*value("type")?, &*value("staleness")?) {
        ("dist_sync", NONE) => Mode::Sync,
        ("dist_async", NONE) => Mode::Async { staleness: None },
        ("dist_async", most) => Mode::Async { staleness: Some(most.parse().ok()?) },
        _ => return None,
    };
    let on_loss = match &*value("on_worker_loss")? {
        "fail" => OnLoss::Fail,
        "continue" => OnLoss::Continue,
        _ => return None,
    };
    let sum_order = match value("sum_order").as_deref() {
        None | Some(LINEAR) => SumOrder::Linear,
        Some(TREE) => SumOrder::Tree,
        Some(_) => return None,
    };
    let mut number = |name: &str| value(name)?.parse::<u64>().ok();
    Some(JobTerms {
        mode,
        on_loss,
        peer_timeout: number("peer_timeout_ms").filter(|ms| (1..=LONGEST_MS).contains(ms))? * MS,
        slice_bytes: number("slice_bytes").filter(|bytes| *bytes > 0)?,
        hold_bytes: number("hold_bytes")?,
        max_rounds_ahead: number("max_rounds_ahead").filter(|rounds| *rounds > 0)?,
        sum_order,
    })
}
