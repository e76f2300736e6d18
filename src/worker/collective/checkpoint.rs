//! Checkpoint of the whole job (also called: snapshot): the leader, the lowest rank that is neither lost nor
//! done, writes or reads the file.
//!
//! For a save, the leader gathers the slices into its own table, where a local store has its values. Then the
//! local store writes the file. A load runs in the opposite direction. The other workers receive the outcome
//! from the leader.

use std::path::Path;

use super::{Announcement, Collective, StepResults};
use crate::codec::Residuals;
use crate::deadline::Deadline;
use crate::error::{Result, fail};
use crate::job::settings::{Change, SavedRules};
use crate::job::slice_state::{self, StateUpdate};
use crate::job::wanted::WANT_STATE;
use crate::local::checkpoint::KeyNamer;
use crate::local::merger::Merger;
use crate::local::table::Slot;
use crate::optim::Stored;
use crate::runtime::Bytes;
use crate::tensor::{Array, Buffer};
use crate::worker::WorkerStore;
use crate::worker::lookup::spec_of;
use kvstore_protocol::Placement;

impl WorkerStore {
    /// Saves the whole job: all workers call it.
    pub(crate) fn save_together(&self, path: &Path) -> Result<()> {
        self.with_file("save", path, |collective| {
            self.rendezvous(collective)?;
            let leader = self.agree_on_leader(collective)?;
            let unsent = self.gather_unsent(leader, collective).map_err(|error| error.at("save"));
            if self.rank != leader {
                let heard = self.hear(leader, collective);
                return unsent.and(heard.map(drop));
            }
            let written = unsent.and_then(|()| {
                collective.step(|kept, deadline| {
                    self.gather(kept, deadline)?;
                    self.local.save(path, self.workers as usize)
                })
            });
            self.say(written, collective)
        })
    }

    /// Loads a checkpoint into the whole job: all workers call it. The leader's namer is asked.
    pub(crate) fn load_together(&self, path: &Path, namer: Option<KeyNamer<'_>>) -> Result<()> {
        self.with_file("load", path, |collective| {
            self.rendezvous(collective)?;
            let leader = self.agree_on_leader(collective)?;
            if self.rank != leader {
                return self.follow(leader, collective);
            }
            let loaded = collective.step(|kept, _| self.load_here(path, namer, kept));
            if let Err(error) = loaded {
                let told = self.say(Err(error.clone()), collective);
                return told.and(Err(error));
            }
            let StepResults { before: Some((_, before)), after: Some(after), .. } =
                &collective.kept
            else {
                return Err(fail!(Internal, "a bug of this library: a file that was not read"));
            };
            let (before, after) = (before.clone(), after.clone());
            let rules = Change::Rules(SavedRules::of(&after));
            self.keep_whole_for(&after);
            self.local.adopt(after)?;
            let result = self
                .announce(&Announcement::Rules {}, collective)
                .and_then(|()| self.agree(rules.encode(), collective))
                .and_then(|_| self.announce_whole(collective))
                .and_then(|()| self.spread(collective))
                .and_then(|()| self.spread_all_unsent(collective))
                .map_err(|error| error.at("load"));
            if result.is_err() {
                self.local.adopt(before)?;
            }
            self.say(result, collective)
        })
    }

    /// Runs a collective call about a file. This worker's table keeps the content of the file while the call
    /// may resume.
    fn with_file(
        &self,
        call: &'static str,
        path: &Path,
        steps: impl FnOnce(&mut Collective) -> Result<()>,
    ) -> Result<()> {
        let result = self.collective(call, path.as_os_str().as_encoded_bytes().to_vec(), steps);
        if self.unfinished.lock().is_none() {
            self.clear();
        }
        result
    }

    /// Reads the file into this worker's own table.
    fn load_here(
        &self,
        path: &Path,
        namer: Option<KeyNamer<'_>>,
        kept: &mut StepResults,
    ) -> Result<()> {
        let known = self.local.keys.table.slots().iter().map(|it| it.key).collect();
        kept.before = Some((known, self.local.handling.read().clone()));
        self.local.load(path, namer, self.workers as usize)?;
        let after = self.local.handling.read().clone();
        self.check_messages_of("load", &after)?;
        kept.after = Some(after);
        Ok(())
    }

    /// Announces the residuals in the file, and distributes them to the workers.
    fn spread_all_unsent(&self, collective: &mut Collective) -> Result<()> {
        collective.step(|_, _| {
            self.unsent.lock().begin_anew();
            Ok(())
        })?;
        let keys = self.keys_with_unsent();
        if keys.is_empty() {
            return Ok(());
        }
        self.announce(&Announcement::Unsent { keys: keys.clone() }, collective)?;
        self.spread_unsent(&keys, self.rank, collective)
    }

    /// Follows the instructions of the leader during a load.
    fn follow(&self, leader: u32, collective: &mut Collective) -> Result<()> {
        let mut result = Ok(());
        loop {
            match self.hear(leader, collective)? {
                None => return result,
                Some(Announcement::Whole { keys }) => self.join_slices(&keys, collective)?,
                Some(Announcement::Unsent { keys }) => {
                    let spread = self.spread_unsent(&keys, leader, collective);
                    result = spread.map_err(|error| error.at("load"));
                }
                Some(Announcement::Rules {}) => {
                    let rules = Change::decode(&self.adopt_setting(leader, collective)?)?;
                    collective.step(|_, _| {
                        let after = rules.apply(&self.local.handling.read().clone())?;
                        self.keep_whole_for(&after);
                        self.local.adopt(after)?;
                        self.unsent.lock().begin_anew();
                        Ok(())
                    })?;
                }
                Some(other) => {
                    return Err(fail!(
                        Internal,
                        "a bug of this library: the leader says {other:?}"
                    ));
                }
            }
        }
    }

    /// Fetches every slice of every key into this worker's own table.
    fn gather(&self, kept: &mut StepResults, deadline: Deadline) -> Result<()> {
        kept.each(&self.local.keys.table.slots(), |kept, slot| {
            let place = self.place(slot.key)?;
            let slices = self.fetch(slot, &place, &[WANT_STATE], deadline)?;
            self.stage(slot, &place, &slices, |stored| {
                self.join_unsent(slot, &kept.gathered, stored)
            })
        })
    }

    /// Stores a key with all its slices in this worker's own table, with the residuals that `residuals` gives
    /// for its value.
    pub(crate) fn stage(
        &self,
        slot: &Slot,
        place: &Placement,
        slices: &[Bytes],
        residuals: impl FnOnce(*const u8) -> Result<Option<Box<Residuals>>>,
    ) -> Result<()> {
        let joined = self.join(slot, place, slices)?;
        let residuals = residuals(joined.0.as_ptr())?;
        let patience = self.local.patience();
        let limits = crate::local::apply::CallLimits { patience: &patience, cancel: None };
        let mut value = self.local.applier.lock("save", slot, limits)?;
        (value.buffer, value.state) = joined;
        value.residuals = residuals;
        Ok(())
    }

    /// Joins the slices of a key.
    fn join(
        &self,
        slot: &Slot,
        place: &Placement,
        slices: &[Bytes],
    ) -> Result<(Buffer, Option<crate::optim::OptimizerState>)> {
        let head = slices.first().map(|first| read(first, |bytes| Ok(slice_state::head(bytes)?.0)));
        let head = head.transpose()?;
        let mut whole = Buffer::zeroed(slot.bytes(), false)?;
        let mut at = vec![slice_state::HEAD; slices.len()];
        // One array of all slices, contiguously.
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
        let state = match (handling.merger_of(slot.key), kept) {
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

    /// Distributes this worker's table to the servers (also called: scatter).
    fn spread(&self, collective: &mut Collective) -> Result<()> {
        let slots = self.local.keys.table.slots();
        collective.step(|kept, deadline| {
            kept.each(&slots, |kept, slot| {
                let known =
                    kept.before.as_ref().is_some_and(|(known, _)| known.contains(&slot.key));
                if known { Ok(()) } else { self.bring(slot, deadline) }
            })
        })?;
        collective.step(|kept, deadline| {
            kept.each(&slots, |_, slot| {
                let place = self.place(slot.key)?;
                let slices = self.cut(slot, &place)?;
                if slices.is_empty() { Ok(()) } else { self.restore(slot, slices, deadline) }
            })
        })
    }

    /// Initialises a key that only the file has.
    fn bring(&self, slot: &Slot, deadline: Deadline) -> Result<()> {
        let spec = spec_of(slot, self.keeps_whole());
        let block = self.driver.blocks.make(slot.bytes(), |_| {})?;
        let data = Bytes::of_block(block);
        self.request(deadline, |worker, now, end| worker.init(slot.key.id(), spec, data, now, end))
    }

    /// Splits a key of this worker's table into slices; none if the file did not have it.
    fn cut(&self, slot: &Slot, place: &Placement) -> Result<Vec<Bytes>> {
        let patience = self.local.patience();
        let limits = crate::local::apply::CallLimits { patience: &patience, cancel: None };
        let value = self.local.applier.look("load", slot, limits)?;
        if value.buffer.len() < slot.bytes() || (slot.bytes() > 0 && value.buffer.len() == 0) {
            return Ok(Vec::new());
        }
        let handling = self.local.handling.read().clone();
        let stored = &value.buffer.bytes()[..slot.bytes()];
        let (head, arrays) = slice_state::parts(&value, stored, handling.merger_of(slot.key));
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
            slices.push(StateUpdate::State.join(&all, &self.driver.blocks)?);
        }
        Ok(slices)
    }

    /// Frees the memory that only the file needed.
    pub(crate) fn clear(&self) {
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
