//! Rules that measure whole keys: keys that come later are placed whole, and those that are in several
//! slices become whole, in a new life with the same value.

use std::sync::Arc;

use super::rows::WANT_VALUE;
use super::setting::Change;
use super::state::Brought;
use super::worker::WorkerStore;
use crate::cluster::{self, Spec};
use crate::deadline::Deadline;
use crate::driver::Bytes;
use crate::error::{Result, fail};
use crate::store::merger::Merger;
use crate::store::table::Slot;

impl WorkerStore {
    pub(super) fn keeps_whole(&self) -> bool {
        *self.whole.lock()
    }

    /// Keeps keys that come whole if a rule needs it; gives whether they were before.
    pub(super) fn keep_whole_for(&self, merger: &Merger) -> bool {
        std::mem::replace(&mut *self.whole.lock(), merger.measures_whole_keys())
    }

    /// Makes keys whole of which the leader says that they are not: all workers call it, after a rule
    /// that needs it is in force.
    pub(super) fn make_whole(&self, call: &'static str, deadline: Deadline) -> Result<()> {
        let leader = self.agree_on_leader(call, deadline)?;
        if self.rank == leader {
            return self.announce_whole(call, deadline);
        }
        match self.hear(call, leader, deadline)? {
            Some(Change::Whole { keys }) => self.join_slices(call, &keys, deadline),
            _ => Err(fail!(Internal, "a bug of this library: the leader says something else")),
        }
    }

    /// The same, of the leader; nothing if no rule needs it.
    pub(super) fn announce_whole(&self, call: &'static str, deadline: Deadline) -> Result<()> {
        if !self.keeps_whole() {
            return Ok(());
        }
        let mut keys: Vec<u64> =
            self.local.keys.table.slots().iter().map(|slot| slot.key.id()).collect();
        self.step(|worker, _, _| {
            // Those that only a file has are nowhere yet.
            keys.retain(|key| worker.place_of(*key).is_some_and(|place| place.servers.len() > 1));
            Ok(())
        })?;
        self.agree(Change::Whole { keys: keys.clone() }.encode(), deadline)?;
        self.join_slices(call, &keys, deadline)
    }

    /// Gives keys a new life, whole, one after the other. The slices of a key go when all workers have its
    /// value, with everything that was pushed: each asks for it behind its own pushes.
    pub(super) fn join_slices(
        &self,
        call: &'static str,
        keys: &[u64],
        deadline: Deadline,
    ) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        // Pushes of no worker are under way any more.
        self.meet(call)?;
        let slots = self.found_slots(call, keys)?;
        slots.iter().try_for_each(|slot| self.join_slices_of(slot, deadline))
    }

    fn join_slices_of(&self, slot: &Arc<Slot>, deadline: Deadline) -> Result<()> {
        let key = slot.key.id();
        let value = self.value_of(slot, deadline)?;
        let Spec { dtype, shape, .. } = self.place(slot.key)?.spec;
        let pushes = self.pushes(slot.key)?;
        // Until here nothing has changed.
        self.request(deadline, cluster::Worker::barrier)?;
        self.request(deadline, |worker, now, end| worker.remove(key, now, end))?;
        let spec = Spec { dtype, shape, whole: true };
        self.request(deadline, |worker, now, end| worker.init(key, spec, value, now, end))?;
        // A codec counts on.
        let ahead = self.unsent.lock().go_on(key, pushes);
        self.bring_each(slot, |_, _| Brought::Ahead { rank: self.rank, ahead }, deadline)
    }

    /// The value of a key, once everything that this worker has pushed is in it; also if the last round
    /// could not be merged.
    fn value_of(&self, slot: &Arc<Slot>, deadline: Deadline) -> Result<Bytes> {
        let slices = self.fetch(slot, &self.place(slot.key)?, &[WANT_VALUE], deadline)?;
        let block = self.joined(&slices, 0)?;
        if block.bytes().len() != slot.bytes() {
            return Err(fail!(Internal, "a bug of this library: slices are missing"));
        }
        Ok(Bytes::of_block(Arc::new(block)))
    }
}
