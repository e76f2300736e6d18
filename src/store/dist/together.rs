//! What all workers do together: a checkpoint of the whole job, which their leader writes or reads: the
//! lowest rank that is neither lost nor done.
//!
//! The leader gathers the slices into its own table, where a local store would have the values, and lets
//! the local store write the file; the other way round for a load. The other workers then learn from it
//! how it went.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::relay::Gathered;
use super::rows::WANT_STATE;
use super::setting::{Change, Rules};
use super::state::{self, Brought};
use super::worker::WorkerStore;
use crate::cluster::{Place, Spec};
use crate::codec::Residuals;
use crate::deadline::Deadline;
use crate::driver::Bytes;
use crate::error::{Result, fail};
use crate::key::Key;
use crate::optim::Stored;
use crate::store::merger::Merger;
use crate::store::table::Slot;
use crate::tensor::{Array, Buffer};

impl WorkerStore {
    /// Saves the whole job: all workers call it.
    pub(super) fn save_together(&self, path: &Path) -> Result<()> {
        let deadline = self.meet("save")?;
        let leader = self.agree_on_leader("save", deadline)?;
        let unsent = self.gather_unsent(leader, deadline).map_err(|error| error.at("save"));
        if self.rank != leader {
            let heard = self.hear("save", leader, deadline);
            return unsent.and(heard.map(drop));
        }
        let workers = self.workers as usize;
        let gathered = unsent.and_then(|unsent| self.gather(unsent, deadline));
        let result = gathered.and_then(|()| self.local.save(path, workers));
        self.clear();
        self.say(result, deadline)
    }

    /// Loads a checkpoint into the whole job: all workers call it.
    pub(super) fn load_together(&self, path: &Path) -> Result<()> {
        let deadline = self.meet("load")?;
        let leader = self.agree_on_leader("load", deadline)?;
        if self.rank != leader {
            return self.follow(leader, deadline);
        }
        let known: HashSet<Key> = self.local.keys.table.slots().iter().map(|it| it.key).collect();
        let before = self.local.handling.read().clone();
        let loaded = self.local.load(path, self.workers as usize);
        if let Err(error) = loaded {
            let told = self.say(Err(error.clone()), deadline);
            return told.and(Err(error));
        }
        let after = self.local.handling.read().clone();
        let rules = Change::Rules(Rules::of(&after));
        self.keep_whole_for(&after.merger);
        let result = self
            .agree(rules.encode(), deadline)
            .and_then(|_| self.announce_whole("load", deadline))
            .and_then(|()| self.spread(&known, deadline))
            .and_then(|()| self.spread_all_unsent(deadline))
            .map_err(|error| error.at("load"));
        self.clear();
        if result.is_err() {
            self.local.change_handling(|handling| *handling = before, |_| Ok(()))?;
        }
        self.say(result, deadline)
    }

    /// Tells the other workers what there is of codecs, and gives it to them.
    fn spread_all_unsent(&self, deadline: Deadline) -> Result<()> {
        self.unsent.lock().begin_anew();
        let keys = self.keys_with_unsent();
        if keys.is_empty() {
            return Ok(());
        }
        self.agree(Change::Unsent { keys: keys.clone() }.encode(), deadline)?;
        self.spread_unsent(&keys, self.rank, deadline)
    }

    /// Does what the leader says while it loads.
    fn follow(&self, leader: u32, deadline: Deadline) -> Result<()> {
        let mut result = Ok(());
        loop {
            match self.hear("load", leader, deadline)? {
                None => return result,
                Some(Change::Whole { keys }) => self.join_slices("load", &keys, deadline)?,
                Some(Change::Unsent { keys }) => {
                    let spread = self.spread_unsent(&keys, leader, deadline);
                    result = spread.map_err(|error| error.at("load"));
                }
                Some(change) => {
                    let after = change.apply(&self.local.handling.read().clone())?;
                    self.keep_whole_for(&after.merger);
                    self.local.change_handling(|handling| *handling = after, |_| Ok(()))?;
                    self.unsent.lock().begin_anew();
                }
            }
        }
    }

    /// Fetches every slice of every key into this worker's own table.
    fn gather(&self, mut unsent: Gathered, deadline: Deadline) -> Result<()> {
        for slot in self.local.keys.table.slots() {
            let place = self.place(slot.key)?;
            let slices = self.fetch(&slot, &place, &[WANT_STATE], deadline)?;
            self.stage(&slot, &place, &slices, |stored| {
                self.join_unsent(&slot, &mut unsent, stored)
            })?;
        }
        Ok(())
    }

    /// Puts a key of which all slices have come into this worker's own table, with what `residuals` gives
    /// for its value.
    pub(super) fn stage(
        &self,
        slot: &Slot,
        place: &Place,
        slices: &[Bytes],
        residuals: impl FnOnce(*const u8) -> Result<Option<Box<Residuals>>>,
    ) -> Result<()> {
        let joined = self.join(slot, place, slices)?;
        let residuals = residuals(joined.0.as_ptr())?;
        let patience = self.local.patience();
        let limits = crate::store::apply::Limits { patience: &patience, cancel: None };
        let mut value = self.local.applier.lock("save", slot, limits)?;
        (value.buffer, value.state) = joined;
        value.residuals = residuals;
        Ok(())
    }

    /// Joins slices to a whole key.
    fn join(
        &self,
        slot: &Slot,
        place: &Place,
        slices: &[Bytes],
    ) -> Result<(Buffer, Option<Box<crate::optim::State>>)> {
        let head = slices.first().map(|first| read(first, |bytes| Ok(state::head(bytes)?.0)));
        let head = head.transpose()?;
        let mut whole = Buffer::zeroed(slot.bytes(), false)?;
        let mut at = vec![state::HEAD; slices.len()];
        // The same array of every slice, one after the other.
        let mut next = |to: &mut [u8]| {
            let mut filled = 0;
            for ((index, slice), at) in (0..).zip(slices).zip(&mut at) {
                let (_, own) = place.range(index);
                let total = place.spec.bytes().unwrap_or(0).max(1);
                let share = to.len() as u128 * u128::from(own) / u128::from(total);
                let len = usize::try_from(share).unwrap_or(0).min(to.len() - filled);
                read(slice, |bytes| {
                    let part = bytes.get(*at..*at + len);
                    let part =
                        part.ok_or_else(|| fail!(Corrupt, "the state of a slice is short"))?;
                    to[filled..filled + len].copy_from_slice(part);
                    Ok(())
                })?;
                *at += len;
                filled += len;
            }
            Ok(())
        };
        next(&mut whole.bytes_mut()[..slot.bytes()])?;
        let handling = self.local.handling.read().clone();
        let kept = head.and_then(|head| head.kept);
        let state = match (&handling.merger, kept) {
            (Merger::Optimizer(optimizer), Some(kept)) => {
                let array = Array::of(&whole, slot.dtype);
                let stored = Stored { array, count: slot.count, rows: slot.rows() };
                let mut state = optimizer.restore(&stored, kept, &mut next)?;
                if let Some(head) = head {
                    state.go_on_from(head.updates, head.carried);
                }
                Some(state)
            }
            _ => None,
        };
        Ok((whole, state))
    }

    /// Brings what this worker's table has to the servers.
    fn spread(&self, known: &HashSet<Key>, deadline: Deadline) -> Result<()> {
        let slots = self.local.keys.table.slots();
        for slot in slots.iter().filter(|slot| !known.contains(&slot.key)) {
            self.bring(slot, deadline)?;
        }
        for slot in &slots {
            let place = self.place(slot.key)?;
            let slices = self.cut(slot, &place)?;
            if slices.is_empty() {
                continue;
            }
            self.restore(slot, slices, deadline)?;
        }
        Ok(())
    }

    /// Initialises a key that only the file has.
    fn bring(&self, slot: &Slot, deadline: Deadline) -> Result<()> {
        let shape = slot.shape.iter().map(|extent| extent.unsigned_abs()).collect();
        let spec = Spec { dtype: slot.dtype.code(), shape, whole: self.keeps_whole() };
        let block = self.driver.blocks.make(slot.bytes(), |bytes| bytes.fill(0))?;
        let data = Bytes::of_block(Arc::new(block));
        self.request(deadline, |worker, now, end| worker.init(slot.key.id(), spec, data, now, end))
    }

    /// A key of this worker's table in slices; none if the file did not have it.
    fn cut(&self, slot: &Slot, place: &Place) -> Result<Vec<Bytes>> {
        let patience = self.local.patience();
        let limits = crate::store::apply::Limits { patience: &patience, cancel: None };
        let value = self.local.applier.look("load", slot, limits)?;
        if value.buffer.len() < slot.bytes() || (slot.bytes() > 0 && value.buffer.len() == 0) {
            return Ok(Vec::new());
        }
        let handling = self.local.handling.read().clone();
        let stored = &value.buffer.bytes()[..slot.bytes()];
        let (head, arrays) = state::parts(&value, stored, &handling.merger);
        let total = place.spec.bytes().unwrap_or(0).max(1);
        let share = |array: &[u8], number: u64| {
            let bytes = array.len() as u128 * u128::from(number) / u128::from(total);
            usize::try_from(bytes).unwrap_or(0)
        };
        let mut slices = Vec::new();
        for index in 0..u32::try_from(place.servers.len()).unwrap_or(0) {
            let (offset, own) = place.range(index);
            let part = |array: &&'_ [u8]| {
                let start = share(array, offset);
                start..start + share(array, own)
            };
            let parts = arrays.iter().map(|array| &array[part(array)]);
            let all: Vec<&[u8]> = std::iter::once(&head[..]).chain(parts).collect();
            slices.push(Brought::State(&all).join(&self.driver.blocks)?);
        }
        Ok(slices)
    }

    /// Frees what was only there for a file.
    pub(super) fn clear(&self) {
        for slot in self.local.keys.table.slots() {
            if let Some(mut value) = slot.value.try_write(&self.local.applier.released)
                && let Ok(empty) = Buffer::new(0)
            {
                value.buffer = empty;
                value.state = None;
                value.residuals = None;
            }
        }
    }
}

/// Reads a slice that a server has sent.
fn read<T>(slice: &Bytes, read: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
    slice.read(read).unwrap_or_else(|| Err(fail!(Internal, "a slice without bytes")))
}
