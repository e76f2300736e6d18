//! Executes plans, key by key, under each key's lock.

mod clipping;
#[cfg(feature = "cuda")]
pub(crate) mod device;
mod keeping;
pub(crate) mod rows;

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::counters::{CallTally, Counters};
use super::lock::{ReadGuard, Released, WriteGuard};
use super::merge::{Compression, RowSums, StepDigester, Team};
use super::merger::{Handling, Merger};
#[cfg(feature = "cuda")]
use super::plan::DeviceAccess;
use super::plan::{KeyGroup, Plan, PlannedOut, RowLists};
use super::table::{Slot, Value};
use super::transaction::kept::StateChange;
use super::updater::Updater;
use crate::deadline::LazyDeadline;
#[cfg(feature = "cuda")]
use crate::device::CallQueue;
use crate::digest::DigestLog;
use crate::error::{Error, Result, fail};
use crate::interrupt;
use crate::key::KeyNames;
use crate::local::call::DataCall;
use crate::optim::{Optimizer, OptimizerState, StateArrays, Stored};
use crate::sys::sync::{AtomicBool, Mutex};
use crate::sys::{DefaultFloats, with_default_floats};
use crate::tensor::{Array, Buffer, Lent, Tensor, TensorMut};
pub(crate) use clipping::GlobalNorm;
#[cfg(feature = "dist")]
pub(crate) use clipping::skip;
pub(crate) use keeping::Keeping;

/// Interval at which a wait for a key's lock checks whether its operation was cancelled.
const CANCEL_POLL: Duration = Duration::from_millis(5);

/// The reasons for which an operation stops early.
#[derive(Clone, Copy)]
pub(crate) struct CallLimits<'a> {
    pub(crate) patience: &'a LazyDeadline,
    pub(crate) cancel: Option<&'a AtomicBool>,
}

impl CallLimits<'_> {
    pub(crate) fn is_cancelled(&self) -> bool {
        // Relaxed: stopping a little later is as good.
        self.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }

    /// Repeats a bounded try until it succeeds; None once the deadline has passed, or the operation is
    /// cancelled or interrupted.
    pub(crate) fn patiently<T>(self, attempt: impl Fn(Instant) -> Option<T>) -> Option<T> {
        loop {
            if self.is_cancelled() {
                return None;
            }
            let now = Instant::now();
            let poll =
                now + if self.cancel.is_some() { CANCEL_POLL } else { Duration::from_secs(60) };
            let end = self.patience.end().moment();
            let late = end.is_some_and(|end| now >= end);
            let until = interrupt::next(end).map_or(poll, |end| poll.min(end));
            if let Some(result) = attempt(until) {
                return Some(result);
            }
            if late || interrupt::requested() {
                return None;
            }
        }
    }
}

/// The values and the outs of one key in a call, which may have either only.
#[derive(Clone, Copy)]
pub(crate) struct KeyPush<'a> {
    pub(crate) call: &'static str,
    pub(crate) slot: &'a Slot,
    pub(crate) values: &'a [Lent],
    pub(crate) outs: &'a [PlannedOut],
    pub(crate) limits: CallLimits<'a>,
    /// Bytes that the whole call touches, or 0 if they have not been counted.
    pub(crate) touched: usize,
    pub(crate) digester: Option<&'a StepDigester>,
    /// What the sum of the values is divided by.
    pub(crate) divisor: Option<f64>,
    /// What the gradient is multiplied by, to clip it.
    pub(crate) scale: f64,
    pub(crate) keeping: Option<Keeping<'a>>,
}

impl KeyPush<'_> {
    /// What the sum is divided by for an updater, to clip floats as well.
    fn clipping_divisor(&self) -> Option<f64> {
        let clips = self.scale < 1.0 && self.slot.dtype.is_float();
        if !clips {
            return self.divisor;
        }
        Some(with_default_floats(|| self.divisor.unwrap_or(1.0) / self.scale))
    }
}

/// How the part of a call on one key has ended.
enum KeyEnd {
    Done,
    /// It was cancelled while it filled outs.
    Stopped,
    /// It has not begun: the value has moved to a device since the call was planned.
    #[cfg(feature = "cuda")]
    Elsewhere,
}

impl KeyEnd {
    fn of(finished: bool) -> Self {
        if finished { Self::Done } else { Self::Stopped }
    }
}

/// A call whose tensors are in host memory.
#[derive(Clone, Copy)]
struct HostWork<'a> {
    call: DataCall,
    handling: &'a Handling,
    limits: CallLimits<'a>,
    values: &'a [Lent],
    outs: &'a [PlannedOut],
    touched: usize,
    /// See [`KeyPush::scale`].
    scale: f64,
}

impl<'a> HostWork<'a> {
    /// Its part on a key.
    fn on(&self, group: &'a KeyGroup) -> KeyPush<'a> {
        let &Self { call, handling, limits, values, outs, touched, scale } = self;
        KeyPush {
            call: call.name(),
            slot: &group.slot,
            values: &values[group.values.clone()],
            outs: &outs[group.outs.clone()],
            limits,
            touched,
            digester: None,
            divisor: handling.divisor,
            scale,
            keeping: Keeping::of(handling, &group.slot),
        }
    }
}

/// Executes plans.
pub(crate) struct Applier {
    /// Number of the store in this process, for the re-entrancy check of updaters.
    pub(crate) serial: u64,
    pub(crate) team: Team<'static>,
    pub(crate) names: Arc<KeyNames>,
    /// Whether a failing updater's changes are undone.
    pub(crate) undo: bool,
    /// Merged sums and undo copies of earlier pushes, for the next one.
    pub(crate) buffers: Mutex<Vec<Buffer>>,
    /// The memory of earlier pushes of rows, for the next one.
    pub(crate) row_sums: Mutex<Vec<RowSums>>,
    /// Wakes waiters for a key.
    pub(crate) released: Released,
    pub(crate) counters: Counters,
    /// The digest log of this process, if it has one.
    pub(crate) digests: OnceLock<Arc<DigestLog>>,
    #[cfg(feature = "cuda")]
    pub(crate) devices: DeviceAccess,
}

impl Applier {
    /// Executes a plan.
    pub(crate) fn apply(
        &self,
        call: DataCall,
        plan: &mut Plan,
        handling: &Handling,
        limits: CallLimits<'_>,
    ) -> Result<()> {
        // With an updater only around the arithmetic: the user's code runs in the user's
        // floating-point state.
        let ours = !handling.has_updater();
        let mut tally = CallTally::default();
        #[cfg(feature = "cuda")]
        if !plan.queues.is_empty() {
            let (names, queues) = ((call, call.name()), std::mem::take(&mut plan.queues));
            let result = self.apply_on_devices(names, plan, &queues, handling, limits, &mut tally);
            self.counters.add(&tally);
            // Behind a failure the devices may have work too.
            let with_ticket = queues.iter().filter(|queue| queue.has_ticket());
            let marked = with_ticket.map(CallQueue::mark).try_for_each(|mark| {
                plan.marks.push(mark?);
                Ok(())
            });
            return result.and(marked.map_err(|error: Error| error.at(names.1)));
        }
        let _floats = ours.then(DefaultFloats::enter);
        let touched = plan.touched();
        let Plan { groups, values, outs, rows, .. } = plan;
        let scale = 1.0;
        let mut work = HostWork { call, handling, limits, values, outs, touched, scale };
        // In a transaction its end does that.
        if let (Some(clipping), None) = (handling.clipping, &handling.transaction) {
            work.scale = self.clip(&work, groups, clipping)?;
        }
        // Each key's share is dropped while its cache lines are at hand.
        let mut groups = groups.drain(..);
        let mut result = Ok(());
        while let (Ok(()), Some(group)) = (&result, groups.next()) {
            result = self.apply_here(&work, rows, &group, &mut tally).and_then(|end| match end {
                KeyEnd::Done => Ok(()),
                KeyEnd::Stopped => Err(self.stopped(call, &group.slot)),
                #[cfg(feature = "cuda")]
                KeyEnd::Elsewhere => {
                    let (device, rest) = (group.slot.device(), groups.as_slice().iter());
                    let more = rest.take_while(|it| it.slot.device() == device).count();
                    let moved = std::iter::once(group).chain(groups.by_ref().take(more));
                    self.apply_elsewhere(&work, &moved.collect::<Vec<_>>(), &mut tally)
                }
            });
        }
        self.counters.add(&tally);
        result
    }

    /// Makes the part of a call on a key in host memory.
    fn apply_here(
        &self,
        work: &HostWork<'_>,
        rows: &RowLists,
        group: &KeyGroup,
        tally: &mut CallTally,
    ) -> Result<KeyEnd> {
        let &HostWork { call, handling, limits, .. } = work;
        if limits.is_cancelled() {
            return Err(self.cancelled(call.name(), &group.slot));
        }
        let push = work.on(group);
        match call {
            DataCall::PushRows => {
                let places = group.values.clone();
                self.push_rows(&push, rows, places, handling, tally).map(KeyEnd::of)
            }
            DataCall::PullRows => {
                self.pull_rows(&push, rows, group.outs.clone(), tally).map(KeyEnd::of)
            }
            _ if push.values.is_empty() => self.pull(&push, tally),
            _ => self.push(&push, handling, tally),
        }
    }

    fn pull(&self, pull: &KeyPush<'_>, tally: &mut CallTally) -> Result<KeyEnd> {
        let &KeyPush { call, slot, outs, limits, .. } = pull;
        let value = self.lock_shared(call, slot, limits)?;
        #[cfg(feature = "cuda")]
        if !value.is_here() {
            return Ok(KeyEnd::Elsewhere);
        }
        tally.add(&CallTally::of(0, outs.len(), slot.bytes()));
        self.team_of(pull).copy_out(slot, &value.buffer, outs, limits.cancel).map(KeyEnd::of)
    }

    /// How the store computes in a call.
    fn team_of<'a>(&self, push: &KeyPush<'a>) -> Team<'a> {
        let &KeyPush { touched, divisor, digester, .. } = push;
        Team { touched, digester, divisor, ..self.team }
    }

    /// Pushes a key's values, and fills its outs while the result is at hand.
    fn push(
        &self,
        push: &KeyPush<'_>,
        handling: &Handling,
        tally: &mut CallTally,
    ) -> Result<KeyEnd> {
        let mut value = self.lock(push.call, push.slot, push.limits)?;
        #[cfg(feature = "cuda")]
        if !value.is_here() {
            return Ok(KeyEnd::Elsewhere);
        }
        tally.add(&CallTally::of(push.values.len(), push.outs.len(), push.slot.bytes()));
        let merger = handling.merger_of(push.slot.key);
        let by_updater = matches!(merger, Merger::Updater(_));
        tally.updater_calls += u64::from(by_updater);
        let _floats = (handling.has_updater() && !by_updater).then(DefaultFloats::enter);
        let pushed = self.before_push(push, handling);
        let digesting = KeyPush { digester: pushed.digester.as_ref(), ..*push };
        let finished = if let Some(codec) = handling.codec_of(push.slot.dtype) {
            self.push_compressed(&digesting, codec, merger, &mut value)?
        } else {
            value.residuals = None;
            self.merge(&digesting, merger, &mut value, None)?
        };
        value.merges += 1;
        value.note_weight(handling.divisor);
        self.log_round(push, handling, &value, pushed);
        Ok(KeyEnd::of(finished))
    }

    /// Merges values into a locked key, and fills its outs. The only value may be the output of a
    /// compression, which runs as soon as no lack of memory can stop the push any more.
    pub(crate) fn merge(
        &self,
        push: &KeyPush<'_>,
        merger: &Merger,
        value: &mut Value,
        compression: Option<&mut Compression<'_>>,
    ) -> Result<bool> {
        let &KeyPush { slot, values, outs, limits, .. } = push;
        let updater = match merger {
            Merger::Assign => {
                self.keep(push, value, StateChange::None)?;
                let before = value.buffer.position();
                Team::place(slot, values, &mut value.buffer, outs);
                let team = self.team_of(push);
                let result = team.merge(slot, values, &value.buffer, outs, compression);
                if result.is_err() {
                    // Nothing has been written.
                    value.buffer.put_back(before);
                }
                return result.map(|()| true);
            }
            Merger::Optimizer(optimizer) => {
                return match push.keeping {
                    Some(keeping) => self.optimize_kept(push, optimizer, value, keeping),
                    None => self.optimize(push, optimizer, value, compression),
                };
            }
            Merger::Updater(updater) => updater,
        };
        with_default_floats(|| self.keep(push, value, StateChange::None))?;
        let divisor = push.clipping_divisor();
        match values {
            [only] if only.is_plain(slot.dtype) && divisor.is_none() => {
                self.update(push, updater, only.data(), value, compression)?;
            }
            _ => {
                let merged = self.borrow_buffer(slot)?;
                let team = self.team.divided_by(divisor);
                let result = with_default_floats(|| team.sum(slot, values, &merged))
                    .and_then(|()| self.update(push, updater, merged.as_ptr(), value, None));
                self.buffers.lock().push(merged);
                result?;
            }
        }
        if outs.is_empty() {
            return Ok(true);
        }
        let team = self.team_of(push);
        with_default_floats(|| team.copy_out(slot, &value.buffer, outs, limits.cancel))
    }

    /// Merges the values by a rule of ours, and fills the outs in its last pass.
    fn optimize(
        &self,
        push: &KeyPush<'_>,
        optimizer: &Optimizer,
        value: &mut Value,
        compression: Option<&mut Compression<'_>>,
    ) -> Result<bool> {
        let &KeyPush { slot, values, outs, .. } = push;
        let Value { buffer, state, .. } = value;
        let (state, arrays) = match self.prepare(slot, optimizer, buffer, state, false) {
            Ok(prepared) => prepared,
            Err(error) => return Err(self.at(push, &error)),
        };
        match self.team_of(push).passes(slot, values, &arrays, buffer, outs, compression) {
            Ok(mut passes) => optimizer.push(slot.key, push.scale, state, &mut passes),
            Err(error) => return Err(self.at(push, &error)),
        }
        Ok(true)
    }

    /// Makes sure that a key has the state for its next push.
    #[inline]
    pub(crate) fn prepare<'a>(
        &self,
        slot: &Slot,
        optimizer: &Optimizer,
        stored: &Buffer,
        state: &'a mut Option<OptimizerState>,
        scattered: bool,
    ) -> Result<(&'a mut OptimizerState, StateArrays)> {
        let stored =
            Stored { array: Array::of(stored, slot.dtype), count: slot.count, rows: slot.rows() };
        let prepared = optimizer.prepare(self.team.isa, &stored, state, scattered)?;
        slot.note_state(prepared.0);
        Ok(prepared)
    }

    /// Prefixes an error's text with the call and the key.
    pub(crate) fn at(&self, push: &KeyPush<'_>, error: &Error) -> Error {
        error.at(format_args!("{}: {}", push.call, self.names.label(push.slot.key)))
    }

    /// Runs the updater on a merged sum, and undoes its changes if it fails and the store allows
    /// it.
    fn update(
        &self,
        push: &KeyPush<'_>,
        updater: &Updater,
        merged: *const u8,
        value: &mut Value,
        compression: Option<&mut Compression<'_>>,
    ) -> Result<()> {
        let slot = push.slot;
        let undo = if self.undo {
            let undo = self.borrow_buffer(slot)?;
            with_default_floats(|| self.team.copy(slot, &undo, &value.buffer))?;
            Some(undo)
        } else {
            None
        };
        if let Some(compression) = compression {
            with_default_floats(|| self.team.compress(slot, compression));
        }
        let input = Tensor::of_array(merged, slot.dtype, &slot.shape);
        let mut stored = TensorMut::of_buffer(&mut value.buffer, slot.dtype, &slot.shape);
        let result = updater.call(self.serial, slot.key, &input, &mut stored);
        if let Some(undo) = undo {
            if result.is_err() {
                with_default_floats(|| self.team.copy(slot, &value.buffer, &undo))?;
            }
            self.buffers.lock().push(undo);
        }
        result.map_err(|error| self.at_updater(push, &error))
    }

    /// The error of a failed updater, with its place.
    fn at_updater(&self, push: &KeyPush<'_>, error: &Error) -> Error {
        let (call, key) = (push.call, self.names.label(push.slot.key));
        let rest = "keys before it are applied, it and those after it are not";
        Error::new(error.kind(), format!("{call}: {key}: {}; {rest}", error.message()))
    }

    pub(crate) fn borrow_buffer(&self, slot: &Slot) -> Result<Buffer> {
        let mut buffer = self.buffers.lock().pop().map_or_else(|| Buffer::new(0), Ok)?;
        buffer.reserve(slot.bytes())?;
        Ok(buffer)
    }

    /// Locks a key for reading.
    pub(crate) fn lock_shared<'a>(
        &'a self,
        call: &str,
        slot: &'a Slot,
        limits: CallLimits<'_>,
    ) -> Result<ReadGuard<'a, Value>> {
        let value = self.look(call, slot, limits)?;
        if value.is_removed() {
            return Err(self.removed(call, slot));
        }
        Ok(value)
    }

    /// Locks a key, which may have been removed, for reading.
    pub(crate) fn look<'a>(
        &'a self,
        call: &str,
        slot: &'a Slot,
        limits: CallLimits<'_>,
    ) -> Result<ReadGuard<'a, Value>> {
        match slot.value.try_read(&self.released) {
            Some(value) => Ok(value),
            None => self.patiently(call, slot, limits, |until| {
                slot.value.read_until(&self.released, until)
            }),
        }
    }

    /// Locks a key for change.
    pub(crate) fn lock<'a>(
        &'a self,
        call: &str,
        slot: &'a Slot,
        limits: CallLimits<'_>,
    ) -> Result<WriteGuard<'a, Value>> {
        let value = self.take(call, slot, limits)?;
        if value.is_removed() {
            return Err(self.removed(call, slot));
        }
        Ok(value)
    }

    /// Locks a key, which may have been removed, for change.
    pub(crate) fn take<'a>(
        &'a self,
        call: &str,
        slot: &'a Slot,
        limits: CallLimits<'_>,
    ) -> Result<WriteGuard<'a, Value>> {
        match slot.value.try_write(&self.released) {
            Some(value) => Ok(value),
            None => self.patiently(call, slot, limits, |until| {
                slot.value.write_until(&self.released, until)
            }),
        }
    }

    /// Repeats a bounded try until it succeeds; its end without success becomes an error.
    fn patiently<T>(
        &self,
        call: &str,
        slot: &Slot,
        limits: CallLimits<'_>,
        attempt: impl Fn(Instant) -> Option<T>,
    ) -> Result<T> {
        if let Some(guard) = limits.patiently(attempt) {
            return Ok(guard);
        }
        if limits.is_cancelled() {
            return Err(self.cancelled(call, slot));
        }
        let key = self.names.label(slot.key);
        let rest = match call {
            "remove" | "save" | "load" | "commit" | "rollback" => "nothing has changed",
            _ => "keys before it are done, it and those after it are not",
        };
        Err(fail!(
            Timeout,
            "{call}: {key} is still in use by another call (an updater that does not return?); \
             {rest}"
        ))
    }

    /// The error of an operation that is cancelled before it has begun with a key.
    fn cancelled(&self, call: &str, slot: &Slot) -> Error {
        let key = self.names.label(slot.key);
        let pulls = [DataCall::Pull, DataCall::Broadcast, DataCall::PullRows]
            .map(DataCall::name)
            .contains(&call);
        if pulls {
            fail!(Cancelled, "{call}: cancelled at {key}; outs are undefined")
        } else if call == DataCall::PushPull.name() {
            let rest = "unchanged, and outs are undefined";
            fail!(Cancelled, "{call}: cancelled; {key} and those after it are {rest}")
        } else {
            fail!(Cancelled, "{call}: cancelled; {key} and those after it are unchanged")
        }
    }

    /// The error of an operation that is cancelled while it fills the outs of a key.
    fn stopped(&self, call: DataCall, slot: &Slot) -> Error {
        if call != DataCall::PushPull {
            return self.cancelled(call.name(), slot);
        }
        let (call, key) = (call.name(), self.names.label(slot.key));
        let rest = "those after it are unchanged, and outs are undefined";
        fail!(Cancelled, "{call}: cancelled; {key} is pushed, {rest}")
    }

    fn removed(&self, call: &str, slot: &Slot) -> Error {
        let key = self.names.label(slot.key);
        fail!(KeyNotFound, "{call}: {key} was removed while the call was on its way")
    }
}
