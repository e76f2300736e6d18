//! A plan put into effect, key by key, under each key's lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Call;
use super::counters::{Counters, Tally};
use super::lock::{ReadGuard, Released, WriteGuard};
use super::merge::Team;
use super::merger::Merger;
use super::plan::{Plan, PlannedOut};
use super::table::{Slot, Value};
use super::updater::Updater;
use crate::deadline::{Deadline, Patience};
use crate::error::{Error, Result, fail};
use crate::key::Names;
use crate::optim::{Optimizer, Stored};
use crate::sync::{AtomicBool, Mutex};
use crate::sys::DefaultFloats;
use crate::tensor::{Array, Buffer, Lent, Tensor, TensorMut};

/// How often a wait for a key's lock looks whether its operation has been cancelled.
const CANCEL_POLL: Duration = Duration::from_millis(5);

/// When an operation must stop early.
#[derive(Clone, Copy)]
pub(super) struct Limits<'a> {
    pub(super) patience: &'a Patience,
    pub(super) cancel: Option<&'a AtomicBool>,
}

impl Limits<'_> {
    pub(super) fn is_cancelled(&self) -> bool {
        // Relaxed: stopping a little later is as good.
        self.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }
}

/// Puts plans into effect.
pub(super) struct Applier {
    /// Number of the store in this process, for the re-entrancy check of updaters.
    pub(super) serial: u64,
    pub(super) team: Team,
    pub(super) names: Arc<Names>,
    /// Whether a failing updater's changes are undone.
    pub(super) undo: bool,
    /// Merged sums and undo copies of earlier pushes, for the next one.
    pub(super) buffers: Mutex<Vec<Buffer>>,
    /// Wakes those who wait for a key.
    pub(super) released: Released,
    pub(super) counters: Counters,
}

impl Applier {
    /// Does what a plan says.
    pub(super) fn apply(
        &self,
        call: Call,
        plan: &mut Plan,
        merger: &Merger,
        limits: Limits<'_>,
    ) -> Result<()> {
        // With an updater only around the arithmetic: the user's code runs in the user's state.
        let ours = !matches!(merger, Merger::Updater(_));
        let _floats = ours.then(DefaultFloats::enter);
        let mut tally = Tally::default();
        let Plan { groups, values, outs, .. } = plan;
        // Each key is let go of while it is at hand.
        let result = groups.drain(..).try_for_each(|group| {
            let slot = &*group.slot;
            if limits.is_cancelled() {
                return Err(self.cancelled(call.name(), slot));
            }
            let (values, outs) = (&values[group.values], &outs[group.outs]);
            let finished = if values.is_empty() {
                self.pull(call.name(), slot, outs, limits, &mut tally)?
            } else {
                self.push(call.name(), slot, (values, outs), merger, limits, &mut tally)?
            };
            if finished { Ok(()) } else { Err(self.cancelled(call.name(), slot)) }
        });
        self.counters.add(&tally);
        result
    }

    fn pull(
        &self,
        call: &str,
        slot: &Slot,
        outs: &[PlannedOut],
        limits: Limits<'_>,
        tally: &mut Tally,
    ) -> Result<bool> {
        let value = self.look(call, slot, limits)?;
        if value.removed {
            return Err(self.removed(call, slot));
        }
        tally.add(&Tally::of(0, outs.len(), slot.bytes()));
        self.team.copy_out(slot, &value.buffer, outs, limits.cancel)
    }

    /// Pushes a key's values, and fills its outs while the result is at hand.
    fn push(
        &self,
        call: &str,
        slot: &Slot,
        (values, outs): (&[Lent], &[PlannedOut]),
        merger: &Merger,
        limits: Limits<'_>,
        tally: &mut Tally,
    ) -> Result<bool> {
        let mut value = self.lock(call, slot, limits)?;
        tally.add(&Tally::of(values.len(), outs.len(), slot.bytes()));
        let updater = match merger {
            Merger::Assign => {
                let before = value.buffer.position();
                Team::place(slot, values, &mut value.buffer, outs);
                let result = self.team.merge(slot, values, &value.buffer, outs);
                if result.is_err() {
                    // Nothing has been written.
                    value.buffer.put_back(before);
                }
                return result.map(|()| true);
            }
            Merger::Optimizer(optimizer) => {
                return self.optimize(call, slot, optimizer, &mut value, (values, outs));
            }
            Merger::Updater(updater) => updater,
        };
        tally.updater_calls += 1;
        match values {
            [only] if only.is_plain(slot.dtype) => {
                self.update(call, slot, updater, only.data(), &mut value)?;
            }
            _ => {
                let merged = self.borrow_buffer(slot)?;
                let result = with_default_floats(|| self.team.sum(slot, values, &merged))
                    .and_then(|()| self.update(call, slot, updater, merged.as_ptr(), &mut value));
                self.buffers.lock().push(merged);
                result?;
            }
        }
        if outs.is_empty() {
            return Ok(true);
        }
        with_default_floats(|| self.team.copy_out(slot, &value.buffer, outs, limits.cancel))
    }

    /// Merges the values by a rule of ours, and fills the outs in its last pass.
    fn optimize(
        &self,
        call: &str,
        slot: &Slot,
        optimizer: &Optimizer,
        value: &mut Value,
        (values, outs): (&[Lent], &[PlannedOut]),
    ) -> Result<bool> {
        let stored = Stored {
            array: Array::of(&value.buffer, slot.dtype),
            count: slot.count,
            rows: slot.rows(),
        };
        let prepared = optimizer.prepare(self.team.isa, &stored, &mut value.state);
        let result = prepared.and_then(|(state, arrays)| {
            let mut passes = self.team.passes(slot, values, &arrays, &value.buffer, outs)?;
            optimizer.push(slot.key, state, &mut passes);
            Ok(true)
        });
        result.map_err(|error| error.at(format_args!("{call}: {}", self.names.label(slot.key))))
    }

    /// Runs the updater on a merged sum, and undoes what it did if it fails and the store may.
    fn update(
        &self,
        call: &str,
        slot: &Slot,
        updater: &Updater,
        merged: *const u8,
        value: &mut Value,
    ) -> Result<()> {
        let undo = if self.undo {
            let undo = self.borrow_buffer(slot)?;
            with_default_floats(|| self.team.copy(slot, &undo, &value.buffer))?;
            Some(undo)
        } else {
            None
        };
        let input = Tensor::of_array(merged, slot.dtype, &slot.shape);
        let mut stored = TensorMut::of_buffer(&mut value.buffer, slot.dtype, &slot.shape);
        let result = updater.call(self.serial, slot.key, &input, &mut stored);
        if let Some(undo) = undo {
            if result.is_err() {
                with_default_floats(|| self.team.copy(slot, &value.buffer, &undo))?;
            }
            self.buffers.lock().push(undo);
        }
        result.map_err(|error| {
            let key = self.names.label(slot.key);
            let rest = "keys before it are applied, it and those after it are not";
            Error::new(error.kind(), format!("{call}: {key}: {}; {rest}", error.message()))
        })
    }

    fn borrow_buffer(&self, slot: &Slot) -> Result<Buffer> {
        let mut buffer = self.buffers.lock().pop().map_or_else(|| Buffer::new(0), Ok)?;
        buffer.reserve(slot.bytes())?;
        Ok(buffer)
    }

    /// Locks a key, which may have been removed, for reading.
    pub(super) fn look<'a>(
        &'a self,
        call: &str,
        slot: &'a Slot,
        limits: Limits<'_>,
    ) -> Result<ReadGuard<'a, Value>> {
        match slot.value.try_read(&self.released) {
            Some(value) => Ok(value),
            None => self.patiently(call, slot, limits, |until| {
                slot.value.read_until(&self.released, until)
            }),
        }
    }

    /// Locks a key for change.
    pub(super) fn lock<'a>(
        &'a self,
        call: &str,
        slot: &'a Slot,
        limits: Limits<'_>,
    ) -> Result<WriteGuard<'a, Value>> {
        let value = match slot.value.try_write(&self.released) {
            Some(value) => value,
            None => self.patiently(call, slot, limits, |until| {
                slot.value.write_until(&self.released, until)
            })?,
        };
        if value.removed {
            return Err(self.removed(call, slot));
        }
        Ok(value)
    }

    /// Repeats a bounded try until it succeeds, the deadline passes, or the operation is cancelled.
    fn patiently<T>(
        &self,
        call: &str,
        slot: &Slot,
        limits: Limits<'_>,
        attempt: impl Fn(Instant) -> Option<T>,
    ) -> Result<T> {
        loop {
            if limits.is_cancelled() {
                return Err(self.cancelled(call, slot));
            }
            let now = Instant::now();
            let poll =
                now + if limits.cancel.is_some() { CANCEL_POLL } else { Duration::from_secs(60) };
            let (until, late) = match limits.patience.end() {
                Deadline::At(end) => (poll.min(end), now >= end),
                Deadline::Never => (poll, false),
            };
            if let Some(guard) = attempt(until) {
                return Ok(guard);
            }
            if late {
                let key = self.names.label(slot.key);
                let rest = match call {
                    "remove" | "save" | "load" => "nothing has changed",
                    _ => "keys before it are done, it and those after it are not",
                };
                return Err(fail!(
                    Timeout,
                    "{call}: {key} is still in use by another call (an updater that does not \
                     return?); {rest}"
                ));
            }
        }
    }

    fn cancelled(&self, call: &str, slot: &Slot) -> Error {
        let key = self.names.label(slot.key);
        fail!(
            Cancelled,
            "{call}: cancelled at {key}; keys before it are done, those after it are not"
        )
    }

    fn removed(&self, call: &str, slot: &Slot) -> Error {
        let key = self.names.label(slot.key);
        fail!(KeyNotFound, "{call}: {key} was removed while the call was on its way")
    }
}

fn with_default_floats<T>(compute: impl FnOnce() -> T) -> T {
    let _floats = DefaultFloats::enter();
    compute()
}
