//! The store inside one process: keys are values in memory, and calls work on them in place. Also
//! called: standalone (non-distributed) mode.

pub(crate) mod apply;
pub(crate) mod call;
pub(crate) mod checkpoint;
pub(crate) mod collective;
pub(crate) mod compress;
pub(crate) mod counters;
pub(crate) mod digest;
pub(crate) mod fast;
pub(crate) mod handling;
pub(crate) mod keys;
pub(crate) mod kind;
pub(crate) mod lock;
#[cfg(all(test, not(loom)))]
pub(crate) mod long_lists;
pub(crate) mod merge;
pub(crate) mod merger;
#[cfg(all(test, loom))]
pub(crate) mod models;
pub(crate) mod plan;
pub(crate) mod sort;
pub(crate) mod table;
pub(crate) mod ticket;
pub(crate) mod transaction;
pub(crate) mod updater;
#[cfg(feature = "cuda")]
mod watch;
pub(crate) mod weight;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::config::Settings;
use crate::deadline::{Deadline, LazyDeadline};
#[cfg(feature = "cuda")]
use crate::device::MemoryBudget;
use crate::error::{Error, ErrorKind, Result, fail};
#[cfg(feature = "cuda")]
use crate::kernel::SumOrder;
use crate::key::{Key, KeyNames};
use crate::log::{Level, log};
use crate::panics;
use crate::pool::{Task, pool};
use crate::spans::Carried;
use crate::sys::kept;
use crate::sys::sync::{Mutex, RwLock};
use apply::{Applier, CallLimits};
use call::DataCall;
#[cfg(feature = "cuda")]
use counters::CallTally;
use counters::Counters;
use fast::check::{self, CheckMemory, Lists, with_one};
use fast::keys::KeyTensors;
use fast::shared::SharedMemory;
use keys::LocalKeys;
use kind::StoreKind;
use lock::Released;
use merge::Team;
use merger::{Handling, ShortMerge};
#[cfg(feature = "cuda")]
use plan::DeviceAccess;
use plan::{CallContext, Pairs, Plan, RowPairs, TensorUse};
use table::{KeyTable, Slot, TableEntry};
use ticket::{NoTurn, OperationLabel, TicketWork, Tickets, Turn};
#[cfg(feature = "cuda")]
use watch::{OperationOwner, WatchedOperation};
use weight::PushWeight;

pub(crate) struct Local {
    pub(crate) settings: Settings,
    pub(crate) keys: LocalKeys,
    pub(crate) applier: Applier,
    pub(crate) tickets: Tickets<LocalOperation>,
    pub(crate) poisoned: AtomicBool,
    pub(crate) handling: RwLock<Handling>,
    /// Of the pushes that are called from now on.
    pub(crate) weight: PushWeight,
    /// Plans of finished operations with a ticket, for the next one.
    plans: Mutex<Vec<Plan>>,
    #[cfg(feature = "cuda")]
    pub(crate) devices: DeviceAccess,
}

/// An operation with a ticket.
pub(crate) struct LocalOperation {
    call: DataCall,
    plan: Plan,
    handling: Handling,
    span: Carried,
}

impl TicketWork for LocalOperation {
    fn keys(&self, visit: &mut dyn FnMut(u64)) {
        self.plan.keys(visit);
    }

    fn label(&self) -> OperationLabel {
        self.plan.label(self.call)
    }
}

/// The memory of a call.
#[derive(Default)]
struct CallMemory {
    plan: Plan,
    check: CheckMemory,
    shared: SharedMemory,
}

thread_local! {
    /// The memory of this thread's last call.
    static DESK: Cell<Option<Box<CallMemory>>> = const { Cell::new(None) };
}

impl CallMemory {
    fn take() -> Box<Self> {
        kept::take(&DESK)
    }

    fn leave(self: Box<Self>) {
        kept::keep(&DESK, self);
    }
}

impl Local {
    pub(crate) fn new(serial: u64, id: u16, settings: Settings, kind: StoreKind) -> Self {
        let names = Arc::new(KeyNames::default());
        let known = Arc::clone(&names);
        let key_name = Box::new(move |key: u64| known.label(key.into()));
        let (isa, threads, order) = (settings.isa, settings.threads, settings.sum_order);
        let (touched, digester, divisor, keeper) = (0, None, None, None);
        let team = Team { isa, threads, order, touched, digester, divisor, keeper };
        let undo = settings.updater_undo;
        let keys = LocalKeys { table: KeyTable::new(), names: Arc::clone(&names), team };
        #[cfg(feature = "cuda")]
        let devices = DeviceAccess {
            settings: settings.devices.clone(),
            keeps_values: kind == StoreKind::Device,
            adds_by_tree: order == SumOrder::Tree,
            budget: Arc::new(MemoryBudget::new(settings.devices.bytes)),
        };
        let applier = Applier {
            serial,
            team,
            names,
            undo,
            buffers: Mutex::default(),
            row_sums: Mutex::default(),
            released: Released::new(),
            counters: Counters::default(),
            digests: std::sync::OnceLock::new(),
            #[cfg(feature = "cuda")]
            devices: devices.clone(),
        };
        #[cfg(not(feature = "cuda"))]
        let _ = kind;
        Self {
            #[cfg(feature = "cuda")]
            devices,
            settings,
            keys,
            applier,
            tickets: Tickets::new(id, serial, key_name),
            poisoned: AtomicBool::new(false),
            handling: RwLock::new(Handling::PLAIN),
            weight: PushWeight::default(),
            plans: Mutex::default(),
        }
    }

    pub(crate) fn deadline(&self) -> Deadline {
        self.settings.timeout.map_or(Deadline::Never, Deadline::after)
    }

    pub(crate) fn init(&self, values: &Pairs<'_>) -> Result<()> {
        let scene = self.scene("init");
        let fresh = self.keys.make(&scene, values)?;
        self.fill(&scene, &fresh, values)?;
        let handling = self.handling.read();
        self.check_keys("init", &handling, &fresh)?;
        self.keys.add("init", &fresh)
    }

    /// The context of a call whose tensors may be on devices.
    #[cfg(feature = "cuda")]
    fn scene(&self, call: &'static str) -> CallContext<'_> {
        CallContext { devices: Some(&self.devices), ..self.keys.scene(call) }
    }

    #[cfg(not(feature = "cuda"))]
    fn scene(&self, call: &'static str) -> CallContext<'_> {
        self.keys.scene(call)
    }

    /// Copies values on devices into new keys.
    #[cfg(feature = "cuda")]
    fn fill(&self, scene: &CallContext<'_>, slots: &[Arc<Slot>], values: &Pairs<'_>) -> Result<()> {
        let Some(mut plan) = Plan::of_first_values(scene, slots, values)? else { return Ok(()) };
        let queues = std::mem::take(&mut plan.queues);
        let patience = self.patience();
        let limits = CallLimits { patience: &patience, cancel: None };
        let (names, tally) = ((DataCall::Push, scene.call), &mut CallTally::default());
        self.applier.apply_on_devices(names, &mut plan, &queues, &Handling::PLAIN, limits, tally)
    }

    #[cfg(not(feature = "cuda"))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "the other build copies")]
    fn fill(&self, _: &CallContext<'_>, _: &[Arc<Slot>], _: &Pairs<'_>) -> Result<()> {
        Ok(())
    }

    /// Runs a call on this thread, after the pending operations on its keys.
    pub(crate) fn run(
        self: &Arc<Self>,
        call: DataCall,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
    ) -> Result<()> {
        self.fault("push");
        // Without operations that wait, a short call is made as soon as it is checked.
        let at_once = call != DataCall::Broadcast && self.tickets.turn_at_once().is_some();
        if at_once && self.make_one(values, outs) {
            return Ok(());
        }
        let mut desk = CallMemory::take();
        let patience = self.patience();
        let begun = self.plan(call, values, outs, &mut desk, &patience, at_once);
        self.end_call(call, desk, begun, &patience)
    }

    /// Executes what is planned of a call on this thread: merged as given if the call has begun, else
    /// after the pending operations on its keys.
    fn end_call(
        self: &Arc<Self>,
        call: DataCall,
        mut desk: Box<CallMemory>,
        begun: Result<Option<Handling>>,
        patience: &LazyDeadline,
    ) -> Result<()> {
        let plan = &mut desk.plan;
        let result = begun.and_then(|begun| match begun {
            Some(handling) => {
                let limits = CallLimits { patience, cancel: None };
                self.applier.apply(call, plan, &handling, limits)
            }
            None => self.run_planned(call, plan, patience),
        });
        plan.clear();
        desk.leave();
        result
    }

    /// Makes a short call on one key; false if it is none.
    #[inline]
    fn make_one(&self, values: &Pairs<'_>, outs: &Pairs<'_>) -> bool {
        let made = with_one(&self.keys.table, values, outs, |_, key, merge| {
            let merge = if key.values.is_empty() { &ShortMerge::Assign } else { merge? };
            self.applier.make_one(key, merge)
        });
        made.is_some()
    }

    /// Runs a call on rows on this thread, after the pending operations on its keys.
    pub(crate) fn run_rows(self: &Arc<Self>, call: DataCall, pairs: &RowPairs<'_>) -> Result<()> {
        self.fault("push");
        let mut desk = CallMemory::take();
        let plan = &mut desk.plan;
        let patience = self.patience();
        let result = self
            .plan_rows(call, pairs, plan, &patience)
            .and_then(|()| self.run_planned(call, plan, &patience));
        plan.clear();
        desk.leave();
        result
    }

    fn plan_rows(
        &self,
        call: DataCall,
        pairs: &RowPairs<'_>,
        plan: &mut Plan,
        patience: &LazyDeadline,
    ) -> Result<()> {
        let part = if call == DataCall::PushRows { TensorUse::Value } else { TensorUse::Out };
        plan.build_rows(&self.keys.scene(call.name()).within(patience), pairs, part)?;
        self.weigh(call.name(), plan, true)
    }

    pub(crate) fn patience(&self) -> LazyDeadline {
        LazyDeadline::new(self.settings.timeout)
    }

    /// Executes a plan on this thread, after the pending operations on its keys.
    fn run_planned(
        self: &Arc<Self>,
        call: DataCall,
        plan: &mut Plan,
        patience: &LazyDeadline,
    ) -> Result<()> {
        let turn = if let Some(turn) = self.tickets.turn_at_once() {
            turn
        } else {
            let keys = |visit: &mut dyn FnMut(u64)| plan.keys(visit);
            self.enter(plan.label(call), keys, patience.end())?
        };
        let handling = self.handling_of(plan);
        let leave = OnDrop(Some(|| self.schedule(self.tickets.leave(turn))));
        let limits = CallLimits { patience, cancel: None };
        let result = self
            .check_merge(call, plan, &handling)
            .and_then(|()| self.applier.apply(call, plan, &handling, limits));
        drop(leave);
        result
    }

    /// Queues a call; returns its ticket.
    pub(crate) fn submit(
        self: &Arc<Self>,
        call: DataCall,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
        priority: i32,
    ) -> Result<u64> {
        self.queue(call, priority, |plan| {
            let mut desk = CallMemory::take();
            std::mem::swap(&mut desk.plan, plan);
            let planned = self.plan(call, values, outs, &mut desk, &self.patience(), false);
            std::mem::swap(&mut desk.plan, plan);
            desk.leave();
            planned.map(|_| ())
        })
    }

    /// Queues a call on rows; returns its ticket.
    pub(crate) fn submit_rows(
        self: &Arc<Self>,
        call: DataCall,
        pairs: &RowPairs<'_>,
        priority: i32,
    ) -> Result<u64> {
        self.queue(call, priority, |plan| self.plan_rows(call, pairs, plan, &self.patience()))
    }

    fn queue(
        self: &Arc<Self>,
        call: DataCall,
        priority: i32,
        prepare: impl FnOnce(&mut Plan) -> Result<()>,
    ) -> Result<u64> {
        let mut plan = self.plans.lock().pop().unwrap_or_default();
        prepare(&mut plan)?;
        #[cfg(feature = "cuda")]
        for queue in &mut plan.queues {
            *queue = queue.for_ticket(priority)?;
        }
        let handling = self.handling_of(&plan);
        self.check_merge(call, &plan, &handling)?;
        let op = LocalOperation { call, plan, handling, span: Carried::current() };
        let (ticket, ready) = self.tickets.submit(priority, op)?;
        if ready && let Err(error) = pool().spawn(self.settings.threads, self.as_task()) {
            // No other thread would ever run it.
            self.tickets.cancel(ticket, self.deadline())?;
            return Err(error);
        }
        Ok(ticket)
    }

    /// Checks and plans a call. A broadcast adds its keys here and is a pull from then on. A short
    /// call on lists is made here, if it may be made `at_once`: only what is left of it is planned
    /// then, to be merged as given.
    fn plan(
        &self,
        call: DataCall,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
        desk: &mut CallMemory,
        patience: &LazyDeadline,
        at_once: bool,
    ) -> Result<Option<Handling>> {
        let CallMemory { plan, check, shared } = desk;
        let mut scene = self.scene(call.name()).within(patience);
        if call == DataCall::Broadcast {
            let fresh = self.keys.make(&scene, values)?;
            self.fill(&scene, &fresh, values)?;
            let coming = fresh.iter().map(|slot| (slot.key, Arc::clone(slot))).collect();
            scene.coming = Some(&coming);
            let handling = self.handling.read();
            self.check_keys(call.name(), &handling, &fresh)?;
            plan.build(&scene, &Pairs::NONE, outs)?;
            self.keys.add(call.name(), &fresh)?;
            return Ok(None);
        }
        let add = |entry: &TableEntry, key: &KeyTensors<'_>, _: Option<&ShortMerge>| {
            plan.add_plain(&entry.slot, key.values, key.outs);
            Some(())
        };
        if self.weight.get().is_some() {
            plan.build(&scene, values, outs)?;
            self.weigh(call.name(), plan, true)?;
            return Ok(None);
        }
        if with_one(&self.keys.table, values, outs, add).is_some() {
            return Ok(None);
        }
        let held = self.keys.table.hold();
        // A pull merges nothing.
        let merge =
            values.keys.first().map_or(Some(ShortMerge::Assign), |&key| held.short_merge(key));
        let merge = merge.filter(|_| at_once);
        let work = |lists: &Lists<'_>| {
            let left = match &merge {
                Some(merge) => self.applier.make_lists(lists, merge, shared),
                None => lists.keys(),
            };
            check::plan(left, &held, plan);
        };
        if check.with_lists(&held, values, outs, work).is_some() {
            return Ok(merge.map(ShortMerge::into_handling));
        }
        drop(held);
        plan.build(&scene, values, outs)?;
        Ok(None)
    }

    pub(crate) fn remove(self: &Arc<Self>, keys: &[Key]) -> Result<()> {
        let slots = self.keys.find(&self.keys.scene("remove"), keys)?;
        let patience = self.patience();
        let limits = CallLimits { patience: &patience, cancel: None };
        let keys: Vec<Key> = slots.iter().map(|slot| slot.key).collect();
        self.in_turn("remove", &keys, &patience, || {
            self.keys.remove(&slots, |slot| self.applier.lock("remove", slot, limits))
        })
    }

    /// Runs a closure on this thread after the pending operations on some keys, and before later
    /// ones.
    pub(crate) fn in_turn<T>(
        self: &Arc<Self>,
        call: &'static str,
        keys: &[Key],
        patience: &LazyDeadline,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(first) = keys.first() else { return work() };
        let label = OperationLabel { call, first_key: first.id(), keys: keys.len() };
        let visit = |visit: &mut dyn FnMut(u64)| keys.iter().for_each(|key| visit(key.id()));
        let turn = self.enter(label, visit, patience.end())?;
        let leave = OnDrop(Some(|| self.schedule(self.tickets.leave(turn))));
        let result = work();
        drop(leave);
        result
    }

    /// Waits for the turn of a call without a ticket. A call that ends without a turn unblocks its
    /// successors.
    fn enter(
        self: &Arc<Self>,
        label: OperationLabel,
        keys: impl Fn(&mut dyn FnMut(u64)),
        deadline: Deadline,
    ) -> Result<Turn> {
        self.tickets.enter(label, keys, deadline).map_err(|NoTurn { error, ready }| {
            self.schedule(ready);
            error
        })
    }

    pub(crate) fn cancel(self: &Arc<Self>, ticket: u64) -> Result<()> {
        let ready = self.tickets.cancel(ticket, self.deadline())?;
        self.schedule(ready);
        Ok(())
    }

    /// Weak: an operation waiting for a thread does not keep its store alive.
    fn as_task(self: &Arc<Self>) -> Weak<dyn Task> {
        let task: Weak<Self> = Arc::downgrade(self);
        task
    }

    /// Starts as many runners as there are operations ready, up to the store's threads.
    pub(crate) fn schedule(self: &Arc<Self>, ready: usize) {
        for _ in 0..ready.min(self.settings.threads) {
            // The pool has a thread: it has run, or will run, the predecessors of these operations.
            if let Err(error) = pool().spawn(self.settings.threads, self.as_task()) {
                log(Level::Error, || error.to_string());
            }
        }
    }

    /// Refuses all work from now on, and wakes all waiters.
    pub(crate) fn poison(&self) {
        self.poisoned.store(true, Ordering::SeqCst);
        self.tickets.abort(&poisoned());
    }

    #[cfg(feature = "fault-injection")]
    pub(crate) fn fault(&self, point: &str) {
        assert!(self.settings.fault.as_deref() != Some(point), "injected fault at {point}");
    }

    #[cfg(not(feature = "fault-injection"))]
    #[allow(clippy::unused_self, reason = "the other build uses it")]
    pub(crate) fn fault(&self, _: &str) {}
}

/// Runs a closure on drop, also while a panic unwinds.
struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

pub(crate) fn poisoned() -> Error {
    fail!(Poisoned, "the store met a bug of this library and refuses to go on; free it")
}

#[cfg(feature = "cuda")]
impl OperationOwner for Local {
    fn end(self: Arc<Self>, sequence: u64, result: Result<()>) {
        let ready = self.tickets.finish_there(sequence, result);
        self.schedule(ready);
    }
}

impl Task for Local {
    /// Runs the most urgent operation that is ready.
    fn run(self: Arc<Self>) {
        let Some(job) = self.tickets.take(self.settings.threads) else {
            return;
        };
        let LocalOperation { call, mut plan, handling, span } = job.work;
        let work = || {
            self.fault("task");
            // No deadline: it can be cancelled, and its waiters have deadlines of their own. A
            // timeout as its result would be indistinguishable from theirs.
            let limits =
                CallLimits { patience: &LazyDeadline::new(None), cancel: Some(&job.cancel) };
            self.applier.apply(call, &mut plan, &handling, limits)
        };
        let outcome = panics::catch(|| span.run(work));
        #[cfg(feature = "cuda")]
        let marks = std::mem::take(&mut plan.marks);
        let result = outcome.unwrap_or_else(|panic| {
            let error = panics::internal(&panic);
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
        // The updater is dropped first: with the last operation done, its context may be dropped.
        drop((handling, span));
        #[cfg(feature = "cuda")]
        if !marks.is_empty() {
            let ready = self.tickets.hand_over(job.sequence);
            self.schedule(ready);
            let owner: Weak<Self> = Arc::downgrade(&self);
            let (call, sequence) = (call.name(), job.sequence);
            return watch::watch(WatchedOperation { owner, call, sequence, result, marks });
        }
        let ready = self.tickets.finish(job.sequence, result);
        self.schedule(ready);
    }
}
