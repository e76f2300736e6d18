//! The store inside one process: keys are values in memory, a call works on them in place.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use super::Call;
use super::merge::Team;
use super::plan::{Group, Pairs, Plan, Scene};
use super::table::{Counters, KeyTable, Slot, Value};
use super::ticket::{Label, Tickets, Work};
use super::updater::{Updater, panic_text};
use crate::config::Settings;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::key::{Key, Names};
use crate::log::{Level, log};
use crate::pool::{Task, pool};
use crate::tensor::{Buffer, Lent, Tensor, TensorMut};

/// How often a wait for a key's lock looks whether its operation has been cancelled.
const CANCEL_POLL: Duration = Duration::from_millis(5);

pub(crate) struct Local {
    /// Number of the store in this process, for the re-entrancy check.
    pub(super) serial: u64,
    pub(super) settings: Settings,
    pub(super) names: Arc<Names>,
    pub(super) table: KeyTable,
    pub(super) tickets: Tickets<Op>,
    pub(super) poisoned: AtomicBool,
    updater: RwLock<Option<Arc<Updater>>>,
    team: Team,
    /// Merged sums and undo copies of earlier pushes, for the next one.
    buffers: Mutex<Vec<Buffer>>,
    /// Plans of finished operations with a ticket, for the next one.
    plans: Mutex<Vec<Plan>>,
}

/// An operation with a ticket.
pub(crate) struct Op {
    call: Call,
    plan: Plan,
    updater: Option<Arc<Updater>>,
}

impl Work for Op {
    fn keys(&self, visit: &mut dyn FnMut(u64)) {
        self.plan.keys(visit);
    }

    fn label(&self) -> Label {
        self.plan.label(self.call)
    }
}

/// When an operation must stop early.
#[derive(Clone, Copy)]
struct Limits<'a> {
    deadline: Deadline,
    cancel: Option<&'a AtomicBool>,
}

impl Limits<'_> {
    fn is_cancelled(&self) -> bool {
        // Relaxed: stopping a little later is as good.
        self.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }
}

thread_local! {
    /// The plan of this thread's last call without a ticket.
    static PLAN: Cell<Option<Box<Plan>>> = const { Cell::new(None) };
}

impl Local {
    pub(super) fn new(serial: u64, id: u16, settings: Settings) -> Self {
        let names = Arc::new(Names::default());
        let known = Arc::clone(&names);
        let key_name = Box::new(move |key: u64| known.label(key.into()));
        let team = Team { isa: settings.isa, threads: settings.threads };
        Self {
            serial,
            settings,
            names,
            table: KeyTable::new(),
            tickets: Tickets::new(id, key_name),
            poisoned: AtomicBool::new(false),
            updater: RwLock::new(None),
            team,
            buffers: Mutex::default(),
            plans: Mutex::default(),
        }
    }

    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.settings.timeout)
    }

    pub(super) fn set_updater(&self, updater: Option<Updater>) {
        let updater = updater.map(Arc::new);
        let old = std::mem::replace(&mut *self.updater.write(), updater);
        // Outside the lock: it may run the user's drop function.
        drop(old);
    }

    /// Runs a call on this thread, after the pending operations on its keys.
    pub(super) fn run(
        self: &Arc<Self>,
        call: Call,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
    ) -> Result<()> {
        let mut plan = PLAN.take().unwrap_or_default();
        let result = self.run_planned(call, values, outs, &mut plan);
        plan.clear();
        PLAN.set(Some(plan));
        result
    }

    fn run_planned(
        self: &Arc<Self>,
        call: Call,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
        plan: &mut Plan,
    ) -> Result<()> {
        self.fault("push");
        self.plan(call, values, outs, plan)?;
        let limits = Limits { deadline: self.deadline(), cancel: None };
        let turn =
            self.tickets.enter(plan.label(call), |visit| plan.keys(visit), limits.deadline)?;
        let updater = if plan.values.is_empty() { None } else { self.updater.read().clone() };
        let result =
            catch_unwind(AssertUnwindSafe(|| self.apply(call, plan, updater.as_deref(), limits)));
        self.schedule(self.tickets.leave(turn));
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Queues a call; gives its ticket.
    pub(super) fn submit(
        self: &Arc<Self>,
        call: Call,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
        priority: i32,
    ) -> Result<u64> {
        let mut plan = self.plans.lock().pop().unwrap_or_default();
        self.plan(call, values, outs, &mut plan)?;
        let updater = if plan.values.is_empty() { None } else { self.updater.read().clone() };
        let (ticket, ready) = self.tickets.submit(priority, Op { call, plan, updater })?;
        if ready && let Err(error) = pool().spawn(self.settings.threads, Arc::clone(self) as _) {
            // Nobody else would ever run it.
            self.tickets.cancel(ticket, self.deadline())?;
            return Err(error);
        }
        Ok(ticket)
    }

    /// Checks a call. A broadcast adds its keys here and is a pull from then on.
    fn plan(
        &self,
        call: Call,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
        plan: &mut Plan,
    ) -> Result<()> {
        let mut scene = self.scene(call.name());
        if call != Call::Broadcast {
            return plan.build(&scene, values, outs);
        }
        let fresh = self.make_slots(&scene, values)?;
        scene.coming = &fresh;
        plan.build(&scene, &Pairs::NONE, outs)?;
        self.table.add(fresh.iter().cloned(), |key| self.exists(call.name(), key))
    }

    fn scene(&self, call: &'static str) -> Scene<'_> {
        Scene { call, names: &self.names, table: &self.table, coming: &[] }
    }

    fn exists(&self, call: &str, key: Key) -> Error {
        fail!(KeyExists, "{call}: {} has been initialised before", self.names.label(key))
    }

    pub(super) fn init(&self, values: &Pairs<'_>) -> Result<()> {
        let fresh = self.make_slots(&self.scene("init"), values)?;
        self.table.add(fresh.iter().cloned(), |key| self.exists("init", key))
    }

    /// Copies values into slots that are not in the table yet.
    fn make_slots(&self, scene: &Scene<'_>, values: &Pairs<'_>) -> Result<Vec<Arc<Slot>>> {
        let call = scene.call;
        let mut seen = values.keys.to_vec();
        seen.sort_unstable();
        if let Some(pair) = seen.windows(2).find(|pair| pair[0] == pair[1]) {
            let key = self.names.label(pair[0]);
            return Err(fail!(KeyExists, "{call}: {key} stands twice in the list"));
        }
        for &key in values.keys {
            if key.is_name() && !self.names.knows(key) {
                let label = self.names.label(key);
                return Err(fail!(KeyNotFound, "{call}: {label}: intern the name first"));
            }
            if self.table.get(key).is_some() {
                return Err(self.exists(call, key));
            }
        }
        // All tensors are checked before the first one is copied.
        let mut tensors = Vec::with_capacity(values.keys.len());
        for index in 0..values.keys.len() {
            tensors.push(values.tensor(index, scene, "value")?);
        }
        values
            .keys
            .iter()
            .zip(&tensors)
            .map(|(&key, tensor)| self.make_slot(scene, key, tensor))
            .collect()
    }

    fn make_slot(&self, scene: &Scene<'_>, key: Key, tensor: &Tensor<'_>) -> Result<Arc<Slot>> {
        let (call, dtype, count) = (scene.call, tensor.dtype(), tensor.count());
        let name_it = |error: Error| {
            let label = self.names.label(key);
            Error::new(error.kind(), format!("{call}: {label}: {tensor:?}: {}", error.message()))
        };
        let buffer = Buffer::new(count.saturating_mul(dtype.size())).map_err(name_it)?;
        let slot = Slot {
            key,
            order: self.table.next_order(key),
            dtype,
            shape: tensor.shape().into(),
            count,
            value: RwLock::new(Value { buffer, removed: false }),
            counters: Counters::default(),
        };
        self.team.sum(&slot, &[Lent::new(tensor)], &slot.value.read().buffer)?;
        Ok(Arc::new(slot))
    }

    pub(super) fn remove(self: &Arc<Self>, keys: &[Key]) -> Result<()> {
        let scene = self.scene("remove");
        let mut slots: Vec<Arc<Slot>> = Vec::with_capacity(keys.len());
        for &key in keys {
            slots.push(self.table.get(key).ok_or_else(|| scene.unknown(key))?);
        }
        slots.sort_unstable_by_key(|slot| slot.order);
        if let Some(pair) = slots.windows(2).find(|pair| pair[0].key == pair[1].key) {
            let key = self.names.label(pair[0].key);
            return Err(fail!(KeyNotFound, "remove: {key} stands twice in the list"));
        }
        let Some(first) = slots.first() else {
            return Ok(());
        };
        let label = Label { call: "remove", first_key: first.key.id(), keys: slots.len() };
        let limits = Limits { deadline: self.deadline(), cancel: None };
        let visit = |visit: &mut dyn FnMut(u64)| slots.iter().for_each(|slot| visit(slot.key.id()));
        let turn = self.tickets.enter(label, visit, limits.deadline)?;
        let result = self.table.remove(&slots, || {
            let mut values = Vec::with_capacity(slots.len());
            for slot in &slots {
                values.push(self.lock("remove", slot, limits)?);
            }
            for value in &mut values {
                value.removed = true;
                value.buffer = Buffer::new(0)?;
            }
            Ok(())
        });
        self.schedule(self.tickets.leave(turn));
        result
    }

    pub(super) fn cancel(self: &Arc<Self>, ticket: u64) -> Result<()> {
        let ready = self.tickets.cancel(ticket, self.deadline())?;
        self.schedule(ready);
        Ok(())
    }

    /// Starts as many runners as there are operations ready, up to the store's threads.
    fn schedule(self: &Arc<Self>, ready: usize) {
        for _ in 0..ready.min(self.settings.threads) {
            // The pool has a thread: it has run, or will run, what these operations waited for.
            if let Err(error) = pool().spawn(self.settings.threads, Arc::clone(self) as _) {
                log(Level::Error, || error.to_string());
            }
        }
    }

    /// Does what a plan says, key by key.
    fn apply(
        &self,
        call: Call,
        plan: &Plan,
        updater: Option<&Updater>,
        limits: Limits<'_>,
    ) -> Result<()> {
        let call = call.name();
        for group in &plan.groups {
            if limits.is_cancelled() {
                return Err(self.cancelled(call, &group.slot));
            }
            let finished = if group.values.is_empty() {
                self.pull(call, plan, group, limits)?
            } else {
                let mut value = self.lock(call, &group.slot, limits)?;
                self.push(call, plan, group, updater, &mut value)?;
                let value = RwLockWriteGuard::downgrade(value);
                self.fill(plan, group, &value, limits)?
            };
            if !finished {
                return Err(self.cancelled(call, &group.slot));
            }
        }
        Ok(())
    }

    fn pull(&self, call: &str, plan: &Plan, group: &Group, limits: Limits<'_>) -> Result<bool> {
        let slot = &group.slot;
        let value = match slot.value.try_read() {
            Some(value) => value,
            None => self.patiently(call, slot, limits, |until| slot.value.try_read_until(until))?,
        };
        if value.removed {
            return Err(self.scene("pull").unknown(slot.key));
        }
        self.fill(plan, group, &value, limits)
    }

    fn fill(&self, plan: &Plan, group: &Group, value: &Value, limits: Limits<'_>) -> Result<bool> {
        if group.outs.is_empty() {
            return Ok(true);
        }
        let outs = &plan.outs[group.outs.clone()];
        // Relaxed: a statistic.
        group.slot.counters.pulls.fetch_add(outs.len() as u64, Ordering::Relaxed);
        self.team.copy_out(&group.slot, &value.buffer, outs, limits.cancel)
    }

    fn push(
        &self,
        call: &str,
        plan: &Plan,
        group: &Group,
        updater: Option<&Updater>,
        value: &mut Value,
    ) -> Result<()> {
        let (slot, values) = (&group.slot, &plan.values[group.values.clone()]);
        // Relaxed: a statistic, and only this thread counts while it holds the key.
        let count = |counter: &AtomicU64, more: u64| {
            counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        };
        count(&slot.counters.pushes, values.len() as u64);
        let Some(updater) = updater else {
            return self.team.sum(slot, values, &value.buffer);
        };
        count(&slot.counters.updater_calls, 1);
        if let [only] = values
            && only.is_plain(slot.dtype)
        {
            return self.update(call, slot, updater, only.data(), value);
        }
        let merged = self.borrow_buffer(slot)?;
        let result = self
            .team
            .sum(slot, values, &merged)
            .and_then(|()| self.update(call, slot, updater, merged.as_ptr(), value));
        self.buffers.lock().push(merged);
        result
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
        let undo = if self.settings.updater_undo {
            let undo = self.borrow_buffer(slot)?;
            self.team.copy(slot, &undo, &value.buffer)?;
            Some(undo)
        } else {
            None
        };
        let input = Tensor::of_array(merged, slot.dtype, &slot.shape);
        let mut stored = TensorMut::of_buffer(&mut value.buffer, slot.dtype, &slot.shape);
        let result = updater.call(self.serial, slot.key, &input, &mut stored);
        if let Some(undo) = undo {
            if result.is_err() {
                self.team.copy(slot, &value.buffer, &undo)?;
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

    /// Locks a key for change.
    fn lock<'a>(
        &self,
        call: &str,
        slot: &'a Slot,
        limits: Limits<'_>,
    ) -> Result<RwLockWriteGuard<'a, Value>> {
        let value = match slot.value.try_write() {
            Some(value) => value,
            None => {
                self.patiently(call, slot, limits, |until| slot.value.try_write_until(until))?
            }
        };
        if value.removed {
            let key = self.names.label(slot.key);
            return Err(fail!(
                KeyNotFound,
                "{call}: {key} was removed while the call was on its way"
            ));
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
            let (until, late) = match limits.deadline {
                Deadline::At(end) => (poll.min(end), now >= end),
                Deadline::Never => (poll, false),
            };
            if let Some(guard) = attempt(until) {
                return Ok(guard);
            }
            if late {
                let key = self.names.label(slot.key);
                return Err(fail!(
                    Timeout,
                    "{call}: {key} is still in use by another call (an updater that does not \
                     return?); keys before it are done, it and those after it are not"
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

    /// Refuses all work from now on, and wakes everybody who waits.
    pub(super) fn poison(&self) {
        self.poisoned.store(true, Ordering::SeqCst);
        self.tickets.abort(&poisoned());
    }

    #[cfg(feature = "fault-injection")]
    fn fault(&self, point: &str) {
        assert!(self.settings.fault.as_deref() != Some(point), "injected fault at {point}");
    }

    #[cfg(not(feature = "fault-injection"))]
    #[allow(clippy::unused_self, reason = "the other build uses it")]
    fn fault(&self, _: &str) {}
}

pub(super) fn poisoned() -> Error {
    fail!(Poisoned, "the store met a bug of this library and refuses to go on; free it")
}

/// What a panic of ours becomes.
pub(super) fn internal(panic: &(dyn std::any::Any + Send)) -> Error {
    let text =
        fail!(Internal, "a bug of this library: {}; the store is poisoned", panic_text(panic));
    log(Level::Error, || text.message().to_owned());
    text
}

impl Task for Local {
    /// Runs the most urgent operation that is ready.
    fn run(self: Arc<Self>) {
        let Some(job) = self.tickets.take(self.settings.threads) else {
            return;
        };
        let Op { call, mut plan, updater } = job.work;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.fault("task");
            // No deadline: it can be cancelled, and those who wait for it have deadlines of their
            // own. A timeout as its result could not be told from one of theirs.
            let limits = Limits { deadline: Deadline::Never, cancel: Some(&job.cancel) };
            self.apply(call, &plan, updater.as_deref(), limits)
        }));
        let result = outcome.unwrap_or_else(|panic| {
            let error = internal(panic.as_ref());
            self.poison();
            Err(error)
        });
        if let Err(error) = &result
            && error.kind() != ErrorKind::Cancelled
        {
            log(Level::Debug, || format!("an operation with a ticket failed: {error}"));
        }
        plan.clear();
        self.plans.lock().push(plan);
        // The updater goes first: with the last operation done, its context may be dropped.
        drop(updater);
        let ready = self.tickets.finish(job.sequence, result);
        self.schedule(ready);
    }
}
