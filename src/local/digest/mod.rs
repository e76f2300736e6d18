//! Digests of the keys of a local store.

use std::sync::Arc;

use super::Local;
use super::apply::{Applier, CallLimits, KeyPush};
use super::checkpoint::check_byte_order;
use super::merge::{StepDigester, StepDigests};
use super::merger::{Handling, Merger};
use super::table::{Slot, Value};
use crate::deadline::Deadline;
#[cfg(feature = "dist")]
use crate::digest::{self, DigestSettings};
use crate::digest::{Contributions, DigestLog, KeyDigest, LogHead, RoundRecord, RunDigest};
use crate::error::Result;
use crate::key::Key;
use crate::optim::{Optimizer, OptimizerState};
use crate::sys::DefaultFloats;
use crate::tensor::{Buffer, DType, Lent};

impl Local {
    /// Digests of keys, after the operations that this thread has started; each as it is between two pushes.
    pub(crate) fn digest(self: &Arc<Self>, keys: &[Key]) -> Result<Vec<KeyDigest>> {
        check_byte_order("digest")?;
        let scene = self.keys.scene("digest");
        let slot = |&key: &Key| self.keys.table.get(key).ok_or_else(|| scene.unknown(key));
        let slots = keys.iter().map(slot).collect::<Result<Vec<_>>>()?;
        let patience = self.patience();
        let limits = CallLimits { patience: &patience, cancel: None };
        self.in_turn("digest", keys, &patience, || {
            slots.iter().map(|slot| self.digest_of(slot, limits)).collect()
        })
    }

    fn digest_of(&self, slot: &Slot, limits: CallLimits<'_>) -> Result<KeyDigest> {
        let merger = self.handling.read().merger_of(slot.key).clone();
        let value = self.applier.lock_shared("digest", slot, limits)?;
        let copies = self.copies("digest", slot, &value, limits)?;
        let is_elsewhere = !copies.is_empty();
        let (stored, states) = match copies.split_first() {
            Some((stored, states)) => (stored, states),
            None => (&value.buffer, &[][..]),
        };
        let state = match &merger {
            Merger::Optimizer(optimizer) if is_elsewhere => {
                let is_kept = optimizer.kept(value.state.as_ref()).is_some();
                RunDigest::joined(states.iter().filter(|_| is_kept).map(digest_of_buffer))
            }
            merger => RunDigest::joined(state_runs(merger.optimizer(), &value)),
        };
        let value_sum = RunDigest::of(&stored.bytes()[..slot.bytes()]).sum;
        Ok(KeyDigest { round: value.merges, value: value_sum, state: state.sum })
    }
}

impl Local {
    /// Begins the digest log of this process, if the options have one.
    pub(crate) fn open_digest_log(
        &self,
        kind: &'static str,
        role: &'static str,
        servers: u32,
    ) -> Result<()> {
        let settings = &self.settings.digests;
        let Some(folder) = &settings.folder else { return Ok(()) };
        check_byte_order("digest_log")?;
        let isa = self.settings.isa.name();
        let head = LogHead { kind, role, servers, isa, all: settings.all };
        let names = Arc::clone(&self.keys.names);
        let log = DigestLog::open(folder, settings.bytes, head, names)?;
        let _ = self.applier.digests.set(Arc::new(log));
        // Short calls merge without a record.
        self.keys.table.set_short_merge(None);
        Ok(())
    }

    /// Ends the digest log, if there is one: a program may end without freeing its store.
    pub(crate) fn close_digest_log(&self, deadline: Deadline) {
        self.applier.digests.get().into_iter().for_each(|log| log.finish(deadline));
    }

    /// Logs the names of keys, which the servers of a job do not know.
    #[cfg(feature = "dist")]
    pub(crate) fn log_names(&self, kind: &'static str, servers: u32) {
        let DigestSettings { folder, all, .. } = &self.settings.digests;
        if let Some(folder) = folder {
            let isa = self.settings.isa.name();
            let head = LogHead { kind, role: "worker", servers, isa, all: *all };
            digest::log_names(folder, head, &self.keys.names);
        }
    }

    /// Members of the statistics, each after a comma.
    pub(crate) fn digest_statistics(&self) -> String {
        self.applier.digests.get().map_or(String::new(), |log| {
            let counts = log.counts();
            format!(",\"digest_log\":{{\"rounds\":{},\"lost\":{}}}", counts.rounds, counts.lost)
        })
    }
}

/// What the log of a push needs from before it.
#[derive(Default)]
pub(super) struct DigestedPush {
    /// Digests of the values, where outs may overwrite them.
    contributions: Option<Contributions>,
    /// Digests the rest, and the other values, on their way.
    pub(super) digester: Option<StepDigester>,
}

impl Applier {
    pub(crate) fn logs_digests(&self) -> bool {
        self.digests.get().is_some()
    }

    /// Prepares the digests of a push that is about to be merged.
    pub(super) fn before_push(&self, push: &KeyPush<'_>, handling: &Handling) -> DigestedPush {
        let Some(log) = self.digests.get() else { return DigestedPush::default() };
        let &KeyPush { slot, values, outs, .. } = push;
        let by_updater = matches!(handling.merger_of(slot.key), Merger::Updater(_));
        // Values that go through a codec arrive as other ones.
        let has_values = log.all && handling.codec_of(slot.dtype).is_none();
        let is_late = has_values
            && !by_updater
            && values.iter().all(|it| it.is_plain(slot.dtype))
            && outs.iter().all(|out| is_apart(&out.lent, values, slot));
        let contributions = if has_values && !is_late { self.contributions(push) } else { None };
        let digester = (!by_updater).then(|| StepDigester::new(log.all, is_late));
        DigestedPush { contributions, digester }
    }

    /// Digests of the values of a push; None if one of them cannot be gathered.
    fn contributions(&self, push: &KeyPush<'_>) -> Option<Contributions> {
        let digest = |value: &Lent| self.digest_of_value(push.slot, value).ok();
        (0..).zip(push.values).map(|(place, value)| Some((place, digest(value)?))).collect()
    }

    /// The digest of a pushed value, in the key's dtype and row-major order.
    fn digest_of_value(&self, slot: &Slot, value: &Lent) -> Result<RunDigest> {
        if value.is_plain(slot.dtype) {
            let bytes = Lent::plain(value.data(), DType::U8).array();
            return Ok(RunDigest::of(bytes.slice::<u8>(&(0..slot.bytes()))));
        }
        let gathered = self.borrow_buffer(slot)?;
        let _floats = DefaultFloats::enter();
        let digest = self.team.sum(slot, std::slice::from_ref(value), &gathered);
        let digest = digest.map(|()| RunDigest::of(&gathered.bytes()[..slot.bytes()]));
        self.buffers.lock().push(gathered);
        digest
    }

    /// Logs the last push of a key, whose lock is held.
    pub(super) fn log_round(
        &self,
        push: &KeyPush<'_>,
        handling: &Handling,
        value: &Value,
        pushed: DigestedPush,
    ) {
        let Some(log) = self.digests.get() else { return };
        let (slot, whole) = (push.slot, push.slot.bytes() as u64);
        let optimizer = handling.merger_of(slot.key).optimizer().filter(|_| log.all);
        let is_late = pushed.digester.as_ref().is_some_and(StepDigester::has_values);
        let made = pushed.digester.and_then(|it| it.finish(slot));
        let StepDigests { value: digest, states, values } = made.unwrap_or_else(|| StepDigests {
            value: RunDigest::of(&value.buffer.bytes()[..slot.bytes()]),
            states: state_runs(optimizer, value).collect(),
            values: is_late.then(|| self.contributions(push)).flatten(),
        });
        let record = RoundRecord {
            key: slot.key.id(),
            round: value.merges,
            setting: handling.version,
            start: 0,
            whole,
            value: digest,
            states,
            pushes: pushed.contributions.or(values).unwrap_or_default(),
            weight: value.weight(),
            failed: false,
        };
        log.add(record, || handling.describe());
    }
}

/// Whether an out is a plain array that no value overlaps.
fn is_apart(out: &Lent, values: &[Lent], slot: &Slot) -> bool {
    let distance = |value: &Lent| out.data().addr().abs_diff(value.data().addr());
    out.is_plain(slot.dtype) && values.iter().all(|it| distance(it) >= slot.bytes())
}

fn digest_of_buffer(buffer: &Buffer) -> RunDigest {
    RunDigest::of(buffer.bytes())
}

/// Digests of the arrays of a key's state in host memory: the states of the rule, then the master. State of an
/// earlier rule counts as none.
pub(crate) fn state_runs<'a>(
    optimizer: Option<&Arc<Optimizer>>,
    value: &'a Value,
) -> impl Iterator<Item = RunDigest> + use<'a> {
    let is_kept = optimizer.is_some_and(|it| it.kept(value.state.as_ref()).is_some());
    let state = value.state.as_ref().filter(|_| is_kept);
    state.into_iter().flat_map(OptimizerState::buffers).map(digest_of_buffer)
}
