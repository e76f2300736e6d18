//! The store inside one process: keys are values in memory, a call works on them in place.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::Call;
use super::apply::{Applier, Limits};
use super::keys::Keys;
use super::lock::Released;
use super::merge::Team;
use super::merger::Merger;
use super::plan::{Pairs, Plan};
use super::table::{KeyTable, Slot};
use super::ticket::{Label, Tickets, Work};
use crate::config::Settings;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::key::{Key, Names};
use crate::log::{Level, log};
use crate::optim::Optimizer;
use crate::panics;
use crate::pool::{Task, pool};
use crate::sync::{Mutex, RwLock};

pub(crate) struct Local {
    pub(super) settings: Settings,
    pub(super) keys: Keys,
    pub(super) applier: Applier,
    pub(super) tickets: Tickets<Op>,
    pub(super) poisoned: AtomicBool,
    merger: RwLock<Merger>,
    /// Plans of finished operations with a ticket, for the next one.
    plans: Mutex<Vec<Plan>>,
}

/// An operation with a ticket.
pub(crate) struct Op {
    call: Call,
    plan: Plan,
    merger: Merger,
}

impl Work for Op {
    fn keys(&self, visit: &mut dyn FnMut(u64)) {
        self.plan.keys(visit);
    }

    fn label(&self) -> Label {
        self.plan.label(self.call)
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
        let undo = settings.updater_undo;
        let keys = Keys { table: KeyTable::new(), names: Arc::clone(&names), team };
        let applier = Applier {
            serial,
            team,
            names,
            undo,
            buffers: Mutex::default(),
            released: Released::new(),
        };
        Self {
            settings,
            keys,
            applier,
            tickets: Tickets::new(id, key_name),
            poisoned: AtomicBool::new(false),
            merger: RwLock::new(Merger::Assign),
            plans: Mutex::default(),
        }
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.settings.timeout.map_or(Deadline::Never, Deadline::after)
    }

    pub(super) fn set_merger(&self, merger: Merger) {
        let old = std::mem::replace(&mut *self.merger.write(), merger);
        // Outside the lock: it may run the user's drop function.
        drop(old);
    }

    /// How a call merges: nothing to know for one that pushes nothing.
    fn merger(&self, plan: &Plan) -> Merger {
        if plan.values.is_empty() { Merger::Assign } else { self.merger.read().clone() }
    }

    /// Merges by a rule from now on.
    pub(super) fn set_optimizer(&self, name: &str, params: &str) -> Result<()> {
        let call = "set_optimizer";
        let optimizer = Optimizer::new(name, params)
            .map_err(|error| Error::new(error.kind(), format!("{call}: {}", error.message())))?;
        let merger = Merger::Optimizer(Arc::new(optimizer));
        self.check_keys(call, &merger, &self.keys.table.slots())?;
        self.set_merger(merger);
        Ok(())
    }

    /// Changes an option of the optimizer, for all keys or for one.
    pub(super) fn change_optimizer(
        &self,
        call: &str,
        change: impl FnOnce(&Optimizer) -> Result<Optimizer>,
    ) -> Result<()> {
        let mut merger = self.merger.write();
        let Merger::Optimizer(optimizer) = &mut *merger else {
            return Err(fail!(InvalidArgument, "{call}: no optimizer is set; set one first"));
        };
        let changed = change(optimizer)
            .map_err(|error| Error::new(error.kind(), format!("{call}: {}", error.message())))?;
        *optimizer = Arc::new(changed);
        Ok(())
    }

    /// Refuses keys whose elements an optimizer cannot change.
    fn check_keys(&self, call: &str, merger: &Merger, slots: &[Arc<Slot>]) -> Result<()> {
        let Merger::Optimizer(optimizer) = merger else {
            return Ok(());
        };
        slots.iter().try_for_each(|slot| {
            optimizer.check(slot.dtype).map_err(|why| {
                let key = self.applier.names.label(slot.key);
                fail!(DtypeMismatch, "{call}: {key} is {}: {why}", slot.text())
            })
        })
    }

    pub(super) fn init(&self, values: &Pairs<'_>) -> Result<()> {
        let fresh = self.keys.make(&self.keys.scene("init"), values)?;
        self.check_keys("init", &self.merger.read(), &fresh)?;
        self.keys.add("init", &fresh)
    }

    /// Runs a call on this thread, after the pending operations on its keys.
    pub(super) fn run(
        self: &Arc<Self>,
        call: Call,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
    ) -> Result<()> {
        // A thread that is ending has no place for a plan any more.
        let mut plan = PLAN.try_with(Cell::take).ok().flatten().unwrap_or_default();
        let result = self.run_planned(call, values, outs, &mut plan);
        plan.clear();
        let _ = PLAN.try_with(|kept| kept.set(Some(plan)));
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
        let merger = self.merger(plan);
        let leave = OnDrop(Some(|| self.schedule(self.tickets.leave(turn))));
        let result = self.applier.apply(call, plan, &merger, limits);
        drop(leave);
        result
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
        let merger = self.merger(&plan);
        let (ticket, ready) = self.tickets.submit(priority, Op { call, plan, merger })?;
        if ready && let Err(error) = pool().spawn(self.settings.threads, self.as_task()) {
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
        let mut scene = self.keys.scene(call.name());
        if call != Call::Broadcast {
            return plan.build(&scene, values, outs);
        }
        let fresh = self.keys.make(&scene, values)?;
        scene.coming = &fresh;
        self.check_keys(call.name(), &self.merger.read(), &fresh)?;
        plan.build(&scene, &Pairs::NONE, outs)?;
        self.keys.add(call.name(), &fresh)
    }

    pub(super) fn remove(self: &Arc<Self>, keys: &[Key]) -> Result<()> {
        let slots = self.keys.find(&self.keys.scene("remove"), keys)?;
        let Some(first) = slots.first() else {
            return Ok(());
        };
        let label = Label { call: "remove", first_key: first.key.id(), keys: slots.len() };
        let limits = Limits { deadline: self.deadline(), cancel: None };
        let visit = |visit: &mut dyn FnMut(u64)| slots.iter().for_each(|slot| visit(slot.key.id()));
        let turn = self.tickets.enter(label, visit, limits.deadline)?;
        let leave = OnDrop(Some(|| self.schedule(self.tickets.leave(turn))));
        let result = self.keys.remove(&slots, |slot| self.applier.lock("remove", slot, limits));
        drop(leave);
        result
    }

    pub(super) fn cancel(self: &Arc<Self>, ticket: u64) -> Result<()> {
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
    pub(super) fn schedule(self: &Arc<Self>, ready: usize) {
        for _ in 0..ready.min(self.settings.threads) {
            // The pool has a thread: it has run, or will run, what these operations waited for.
            if let Err(error) = pool().spawn(self.settings.threads, self.as_task()) {
                log(Level::Error, || error.to_string());
            }
        }
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

/// Runs a closure when it goes, also while a panic unwinds.
struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

pub(super) fn poisoned() -> Error {
    fail!(Poisoned, "the store met a bug of this library and refuses to go on; free it")
}

/// What a panic of ours becomes.
pub(super) fn internal(panic: &str) -> Error {
    let text = fail!(Internal, "a bug of this library: {panic}; the store is poisoned");
    log(Level::Error, || text.message().to_owned());
    text
}

impl Task for Local {
    /// Runs the most urgent operation that is ready.
    fn run(self: Arc<Self>) {
        let Some(job) = self.tickets.take(self.settings.threads) else {
            return;
        };
        let Op { call, mut plan, merger } = job.work;
        let outcome = panics::catch(|| {
            self.fault("task");
            // No deadline: it can be cancelled, and those who wait for it have deadlines of their
            // own. A timeout as its result could not be told from one of theirs.
            let limits = Limits { deadline: Deadline::Never, cancel: Some(&job.cancel) };
            self.applier.apply(call, &plan, &merger, limits)
        });
        let result = outcome.unwrap_or_else(|panic| {
            let error = internal(&panic);
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
        drop(merger);
        let ready = self.tickets.finish(job.sequence, result);
        self.schedule(ready);
    }
}
