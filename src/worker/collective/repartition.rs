//! Rules that measure whole keys: keys that come later are placed whole, and those that are in several
//! slices become whole, in a new life with the same value.

use std::sync::Arc;

use super::{Collective, StepResults};
use crate::deadline::Deadline;
use crate::error::{Result, fail};
use crate::job::settings::Change;
use crate::job::slice_state::Brought;
use crate::job::wanted::WANT_VALUE;
use crate::local::merger::Merger;
use crate::local::table::Slot;
use crate::runtime::Bytes;
use crate::worker::WorkerStore;
use kvstore_protocol::{KeySpec, Placement};

impl WorkerStore {
    pub(crate) fn keeps_whole(&self) -> bool {
        *self.whole.lock()
    }

    /// Keeps keys that come whole if a rule needs it; gives whether they were before.
    pub(crate) fn keep_whole_for(&self, merger: &Merger) -> bool {
        std::mem::replace(&mut *self.whole.lock(), merger.measures_whole_keys())
    }

    /// Makes keys whole of which the leader says that they are not: all workers call it, after a rule
    /// that needs it is in force.
    pub(crate) fn make_whole(&self, collective: &mut Collective) -> Result<()> {
        let leader = self.agree_on_leader(collective)?;
        if self.rank == leader {
            return self.announce_whole(collective);
        }
        match self.hear(leader, collective)? {
            Some(Change::Whole { keys }) => self.join_slices(&keys, collective),
            _ => Err(fail!(Internal, "a bug of this library: the leader says something else")),
        }
    }

    /// The same, of the leader; nothing if no rule needs it.
    pub(crate) fn announce_whole(&self, collective: &mut Collective) -> Result<()> {
        if !self.keeps_whole() {
            return Ok(());
        }
        collective.step(|kept, _| {
            kept.whole = self.local.keys.table.slots().iter().map(|slot| slot.key.id()).collect();
            self.step(|worker, _, _| {
                let is_cut = |place: &Placement| place.servers.len() > 1;
                // Those that only a file has are nowhere yet.
                kept.whole.retain(|key| worker.place_of(*key).is_some_and(is_cut));
                Ok(())
            })
        })?;
        let keys = collective.kept.whole.clone();
        self.agree(Change::Whole { keys: keys.clone() }.encode(), collective)?;
        self.join_slices(&keys, collective)
    }

    /// Gives keys a new life, whole, one after the other. The slices of a key go when all workers have its
    /// value, with everything that was pushed: each asks for it behind its own pushes.
    pub(crate) fn join_slices(&self, keys: &[u64], collective: &mut Collective) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        // Pushes of no worker are under way any more.
        self.rendezvous(collective)?;
        let slots = self.found_slots(collective.call, keys)?;
        slots.iter().try_for_each(|slot| self.join_slices_of(slot, collective))
    }

    fn join_slices_of(&self, slot: &Arc<Slot>, collective: &mut Collective) -> Result<()> {
        let key = slot.key.id();
        collective.step(|kept, deadline| {
            kept.value = Some(self.value_of(slot, deadline)?);
            kept.pushes = self.pushes(slot.key)?;
            Ok(())
        })?;
        // Until here nothing has changed.
        collective.step(|_, deadline| self.request(deadline, kvstore_protocol::Worker::barrier))?;
        collective.step(|_, deadline| {
            self.request(deadline, |worker, now, end| worker.remove(key, now, end))
        })?;
        collective.step(|kept, deadline| {
            let value =
                kept.value.clone().ok_or_else(|| fail!(Internal, "a key without a value"))?;
            let shape = slot.shape.iter().map(|extent| extent.unsigned_abs()).collect();
            let spec = KeySpec { dtype: slot.dtype.code(), shape, whole: true };
            self.request(deadline, |worker, now, end| worker.init(key, spec, value, now, end))
        })?;
        // A codec counts on.
        collective.step(|kept, _| {
            kept.value = None;
            kept.ahead = self.unsent.lock().go_on(key, kept.pushes);
            Ok(())
        })?;
        collective.step(|&mut StepResults { ahead, .. }, deadline| {
            self.bring_each(slot, |_, _| Brought::Ahead { rank: self.rank, ahead }, deadline)
        })
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
