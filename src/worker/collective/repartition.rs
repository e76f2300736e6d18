//! Repartitioning for rules that measure whole keys (also called: resharding). New keys are placed on a
//! single server; keys in several slices move to one, as a new generation with the same value.

use std::sync::Arc;

use super::{Announcement, Collective, StepResults};
use crate::deadline::Deadline;
use crate::error::{Result, fail};
use crate::job::wanted::WANT_VALUE;
use crate::local::merger::Handling;
use crate::local::table::Slot;
use crate::runtime::Bytes;
use crate::worker::WorkerStore;
use crate::worker::lookup::spec_of;
use kvstore_protocol::Placement;

impl WorkerStore {
    pub(crate) fn keeps_whole(&self) -> bool {
        *self.whole.lock()
    }

    /// Places new keys on a single server if a rule needs it; gives the previous setting.
    pub(crate) fn keep_whole_for(&self, handling: &Handling) -> bool {
        std::mem::replace(&mut *self.whole.lock(), handling.measures_whole_keys())
    }

    /// Moves the keys that the leader announces to single servers. All workers call it, once a rule that
    /// needs it is in force.
    pub(crate) fn make_whole(&self, collective: &mut Collective) -> Result<()> {
        let leader = self.agree_on_leader(collective)?;
        if self.rank == leader {
            return self.announce_whole(collective);
        }
        match self.hear(leader, collective)? {
            Some(Announcement::Whole { keys }) => self.join_slices(&keys, collective),
            _ => Err(fail!(Internal, "a bug of this library: the leader says something else")),
        }
    }

    /// The leader's part of `make_whole`; does nothing if no rule needs it.
    pub(crate) fn announce_whole(&self, collective: &mut Collective) -> Result<()> {
        if !self.keeps_whole() {
            return Ok(());
        }
        collective.step(|kept, _| {
            kept.whole = self.local.keys.table.slots().iter().map(|slot| slot.key.id()).collect();
            self.step(|worker, _| {
                let is_cut = |place: &Arc<Placement>| place.servers.len() > 1;
                // Keys that only a file has are not placed yet.
                kept.whole.retain(|key| worker.place_of(*key).is_some_and(is_cut));
            })
        })?;
        let keys = collective.kept.whole.clone();
        self.announce(&Announcement::Whole { keys: keys.clone() }, collective)?;
        self.join_slices(&keys, collective)
    }

    /// Moves keys one by one to a new generation on a single server. The old slices are dropped once all
    /// workers have the value. Each worker queries it after its own pushes, so it includes them all.
    pub(crate) fn join_slices(&self, keys: &[u64], collective: &mut Collective) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        // No push of any worker is in flight after this barrier.
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
        // Until here the call has changed no key.
        collective.step(|_, deadline| self.request(deadline, kvstore_protocol::Worker::barrier))?;
        collective.step(|_, deadline| {
            self.request(deadline, |worker, now, end| worker.remove(key, now, end))
        })?;
        collective.step(|kept, deadline| {
            let value =
                kept.value.clone().ok_or_else(|| fail!(Internal, "a key without a value"))?;
            let spec = spec_of(slot, true);
            self.request(deadline, |worker, now, end| worker.init(key, spec, value, now, end))
        })?;
        // The codec continues its count of pushes.
        collective.step(|kept, _| {
            kept.value = None;
            kept.ahead = self.unsent.lock().go_on(key, kept.pushes);
            Ok(())
        })?;
        collective.step(|&mut StepResults { ahead, .. }, deadline| {
            self.count_ahead(slot, ahead, deadline)
        })
    }

    /// Value of a key with all pushes of this worker; also if the last round could not be merged.
    fn value_of(&self, slot: &Arc<Slot>, deadline: Deadline) -> Result<Bytes> {
        let place = self.place(slot.key)?;
        let slices = self.fetch(slot, &place, &[WANT_VALUE], deadline)?;
        let block = self.joined(&slices, 0)?;
        if block.bytes().len() != slot.bytes() {
            return Err(fail!(Internal, "a bug of this library: slices are missing"));
        }
        Ok(Bytes::of_block(block))
    }
}
