//! The first difference of two runs (also called: bisection of divergence), and its cause by elimination.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use serde::Serialize;

use super::log::{KeyRound, RunLog};

/// What a comparison has found.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    /// Rounds and keys that both runs have.
    pub(super) rounds: usize,
    pub(super) keys: usize,
    pub(super) first: Option<Difference>,
    /// What was not compared, as sentences.
    pub(super) notes: Vec<String>,
}

/// The first difference.
#[derive(Debug, Serialize)]
pub(super) struct Difference {
    pub(super) key: u64,
    pub(super) name: Option<String>,
    pub(super) round: u64,
    #[serde(flatten)]
    pub(super) cause: Cause,
    /// Keys that differ in this round and in the next one, of those that both have.
    pub(super) differ_here: (usize, usize),
    pub(super) differ_next: (usize, usize),
}

/// What the runs differ in, where all before it is the same.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub(super) enum Cause {
    /// The contributions of these ranks differ, or are in one run only.
    Contribution { differ: Vec<u32>, only_a: Vec<u32>, only_b: Vec<u32>, agree: Vec<u32> },
    /// The value differs. If the contributions are known, they are the same.
    Value { known: bool, by_rank: bool, a: MergedBy, b: MergedBy },
    /// The same value has another state: these arrays.
    State { arrays: Vec<usize> },
    /// Only one run has the round, or the key at all.
    Missing { only_in_a: bool, whole_key: bool },
}

/// How a run merged a round.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct MergedBy {
    pub(super) rule: String,
    pub(super) setting: u64,
    pub(super) version: String,
    pub(super) isa: String,
    /// Sum of the weights of the contributions; empty without weights.
    pub(super) weight: String,
    pub(super) failed: bool,
}

impl MergedBy {
    fn of(round: &KeyRound, log: &RunLog) -> Self {
        let all = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(", ");
        Self {
            rule: round.rule.clone(),
            setting: round.setting,
            version: all(&log.versions),
            isa: all(&log.isas),
            weight: round.weight.clone(),
            failed: round.failed,
        }
    }
}

/// A round of a key in one run.
enum Found<'a> {
    Round(&'a KeyRound),
    /// The run has no such round.
    Never,
    /// Its line may be one that is not there.
    Unknown,
}

/// Two runs.
#[derive(Clone, Copy)]
struct Runs<'a> {
    a: &'a RunLog,
    b: &'a RunLog,
    /// As many workers contribute in both, so that a rank contributes the same in both.
    by_rank: bool,
}

/// Compares the rounds of two runs.
pub(super) fn compare(a: &RunLog, b: &RunLog) -> anyhow::Result<Comparison> {
    let both: BTreeSet<u64> =
        a.keys.keys().copied().filter(|key| b.keys.contains_key(key)).collect();
    if both.is_empty() {
        bail!("the runs have no key in common: these are logs of different programs");
    }
    for key in &both {
        let (here, there) = (a.keys[key].bytes, b.keys[key].bytes);
        if here != there {
            let name = label(a, b, *key);
            bail!(
                "{name} has {here} bytes in A and {there} in B: these are logs of different programs"
            );
        }
    }
    let mut found = Comparison { rounds: 0, keys: both.len(), first: None, notes: notes(a, b) };
    let (of_a, of_b) = contributors(a, b);
    let runs = Runs { a, b, by_rank: of_a == of_b || of_a == 0 || of_b == 0 };
    if !runs.by_rank {
        let plural = if of_a == 1 { "" } else { "s" };
        found.notes.push(format!(
            "A has {of_a} contribution{plural} to a round, B has {of_b}: only values and states are \
             compared"
        ));
    }
    let mut rounds: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for (key, log) in a.keys.iter().chain(&b.keys) {
        log.rounds.keys().for_each(|round| _ = rounds.entry(*round).or_default().insert(*key));
    }
    for (round, keys) in &rounds {
        let mut is_in_both = false;
        for key in keys {
            is_in_both |= runs.both_rounds(*key, *round).is_some();
            let Some(cause) = runs.cause(*key, *round) else { continue };
            let name = a.names.get(key).or_else(|| b.names.get(key)).cloned();
            let next = round.saturating_add(1);
            found.first = Some(Difference {
                key: *key,
                name,
                round: *round,
                cause,
                differ_here: runs.count(&both, *round),
                differ_next: runs.count(&both, next),
            });
            return Ok(found);
        }
        found.rounds += usize::from(is_in_both);
    }
    if found.rounds == 0 {
        bail!("the runs have no round in common");
    }
    Ok(found)
}

/// How a key is shown.
pub(super) fn label(a: &RunLog, b: &RunLog, key: u64) -> String {
    let number = || if key >> 63 == 0 { format!("key {key}") } else { format!("key {key:#018x}") };
    a.label(key).or_else(|| b.label(key)).unwrap_or_else(number)
}

fn notes(a: &RunLog, b: &RunLog) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, log) in [("A", a), ("B", b)] {
        if log.open > 0 {
            notes.push(format!(
                "{name} has no end: a process of it runs, or was killed; rounds behind its last lines are \
                 not compared"
            ));
        }
        if log.dropped > 0 {
            let dropped = log.dropped;
            notes.push(format!("{name} has dropped its first {dropped} lines (digest_log_bytes)"));
        }
        if log.lost > 0 {
            let lost = log.lost;
            notes.push(format!("{name} has lost {lost} lines, as its disk was full or slow"));
        }
    }
    notes
}

fn find(log: &RunLog, key: u64, round: u64) -> Found<'_> {
    let Some(of_key) = log.keys.get(&key) else {
        let may_be = log.open > 0 || log.dropped > 0 || log.lost > 0;
        return if may_be { Found::Unknown } else { Found::Never };
    };
    if let Some(found) = of_key.rounds.get(&round) {
        return Found::Round(found);
    }
    let ends = (of_key.rounds.keys().next(), of_key.rounds.keys().next_back());
    let is_before = ends.0.is_none_or(|first| round < *first);
    let is_behind = ends.1.is_none_or(|last| round > *last);
    let may_be = log.lost > 0 || log.dropped > 0 && is_before || log.open > 0 && is_behind;
    if may_be { Found::Unknown } else { Found::Never }
}

/// How many ranks contribute to rounds that both runs have.
fn contributors(a: &RunLog, b: &RunLog) -> (usize, usize) {
    let (mut of_a, mut of_b) = (BTreeSet::<u32>::new(), BTreeSet::<u32>::new());
    for (key, here) in &a.keys {
        let Some(there) = b.keys.get(key) else { continue };
        for (round, here) in &here.rounds {
            let Some(there) = there.rounds.get(round) else { continue };
            of_a.extend(here.pushes.keys());
            of_b.extend(there.pushes.keys());
        }
    }
    (of_a.len(), of_b.len())
}

impl<'a> Runs<'a> {
    fn both_rounds(self, key: u64, round: u64) -> Option<(&'a KeyRound, &'a KeyRound)> {
        match (find(self.a, key, round), find(self.b, key, round)) {
            (Found::Round(a), Found::Round(b)) => Some((a, b)),
            _ => None,
        }
    }

    /// In what a round of a key differs.
    fn cause(self, key: u64, round: u64) -> Option<Cause> {
        match (find(self.a, key, round), find(self.b, key, round)) {
            (Found::Round(here), Found::Round(there)) => self.cause_of(here, there),
            (Found::Round(_), Found::Never) => {
                let whole_key = !self.b.keys.contains_key(&key);
                Some(Cause::Missing { only_in_a: true, whole_key })
            }
            (Found::Never, Found::Round(_)) => {
                let whole_key = !self.a.keys.contains_key(&key);
                Some(Cause::Missing { only_in_a: false, whole_key })
            }
            _ => None,
        }
    }

    fn cause_of(self, here: &KeyRound, there: &KeyRound) -> Option<Cause> {
        let Self { a, b, by_rank } = self;
        let known = by_rank && !here.pushes.is_empty() && !there.pushes.is_empty();
        if known && here.pushes != there.pushes {
            return Some(contribution(here, there));
        }
        if here.value != there.value || here.failed != there.failed {
            let (a, b) = (MergedBy::of(here, a), MergedBy::of(there, b));
            return Some(Cause::Value { known, by_rank, a, b });
        }
        if here.states == there.states || a.values_only || b.values_only {
            return None;
        }
        let most = here.states.len().max(there.states.len());
        let arrays = (0..most).filter(|at| here.states.get(*at) != there.states.get(*at)).collect();
        Some(Cause::State { arrays })
    }

    /// How many keys differ in a round, of those that both runs have in it.
    fn count(self, keys: &BTreeSet<u64>, round: u64) -> (usize, usize) {
        let compared = keys.iter().filter(|key| self.both_rounds(**key, round).is_some());
        let differ = compared.clone().filter(|key| self.cause(**key, round).is_some());
        (differ.count(), compared.count())
    }
}

/// Which ranks contribute otherwise.
fn contribution(here: &KeyRound, there: &KeyRound) -> Cause {
    let (mut differ, mut agree) = (Vec::new(), Vec::new());
    for (rank, run) in &here.pushes {
        match there.pushes.get(rank) {
            Some(other) if other == run => agree.push(*rank),
            Some(_) => differ.push(*rank),
            None => {}
        }
    }
    let only = |some: &KeyRound, other: &KeyRound| {
        some.pushes.keys().copied().filter(|rank| !other.pushes.contains_key(rank)).collect()
    };
    Cause::Contribution { differ, only_a: only(here, there), only_b: only(there, here), agree }
}
