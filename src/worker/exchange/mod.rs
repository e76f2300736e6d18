//! Exchanges with the other workers (also called: collective communication): collective calls as exchanges of the
//! protocol, over a transport of their own that opens with the first call.

mod layout;
mod run;
mod span;

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{WorkerMachine, WorkerStore, WorkerSums, closed};
use crate::config::JobConfig;
use crate::deadline::Deadline;
use crate::error::{Error, Result, fail};
use crate::job::errors::error_of;
use crate::job::options::{self, exchange_place};
use crate::local::collective::{
    CollectiveCall, CollectiveKind, Reducer, Reduction, WorkerPlace, alone,
};
use crate::local::kind::StoreKind;
use crate::local::{Local, poisoned};
use crate::panics;
use crate::runtime::{BlockPool, Bytes, Driver, DriverHost, ReceiveTarget};
use crate::tensor::DType;
use crate::transport;
use kvstore_protocol::{
    EXCHANGES, ExchangeAction, ExchangeAddress, ExchangeId, ExchangeTerms, Exchanges, Failure,
    Header, Limits, Reason,
};
use run::{ExchangeHome, ExchangeRun};

/// Maximum time for the others to acknowledge the last segments before this worker leaves.
const LAST_WORDS: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The exchanges of a worker, which begin with its first collective call.
pub(super) struct WorkerExchanges {
    config: JobConfig,
    limits: Limits,
    hub: std::sync::Mutex<Option<ExchangeHub>>,
}

/// An open transport for exchanges.
struct ExchangeHub {
    driver: Arc<Driver<ExchangeHost>>,
    incarnation: u64,
    /// All workers are known, and the machine has streams to them.
    has_met: bool,
}

/// Driver host of the exchanges.
pub(super) struct ExchangeHost {
    local: Arc<Local>,
}

/// An action for a call.
pub(super) type ExchangeTask = (Arc<ExchangeRun>, ExchangeAction<Bytes>);

impl WorkerExchanges {
    pub(super) fn new(job: &JobConfig, rank: u32, kind: StoreKind) -> Self {
        let config = JobConfig { rank: Some(rank), ..job.clone() };
        let limits = options::limits(job, kind);
        Self { config, limits, hub: std::sync::Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<ExchangeHub>> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The driver, if it is open.
    pub(super) fn driver(&self) -> Option<Arc<Driver<ExchangeHost>>> {
        self.lock().as_ref().map(|hub| Arc::clone(&hub.driver))
    }

    /// Tells the others that this worker leaves, behind all that it has sent to them.
    pub(super) fn leave(&self, deadline: Deadline) {
        let Some(driver) = self.driver() else { return };
        let end = Instant::now() + LAST_WORDS;
        let is_idle = || driver.peek(Exchanges::is_idle).unwrap_or(true);
        while !is_idle() && Instant::now() < end && !deadline.has_passed() {
            std::thread::sleep(LOOK_AGAIN);
        }
        driver.step(|machine, _| machine.leave());
        driver.flush();
        self.stop();
    }

    /// Fails all calls, and stops the driver.
    pub(super) fn stop(&self) {
        if let Some(driver) = self.driver() {
            driver.stop();
            driver.host.abort(&driver, &closed());
        }
    }
}

impl ExchangeHub {
    fn open(local: &Arc<Local>, exchanges: &WorkerExchanges, rank: u32) -> Result<Self> {
        let place = exchange_place(&exchanges.config)?;
        let (own, limits) = (Cell::new(0), exchanges.limits.clone());
        let driver = Driver::start(
            ExchangeHost { local: Arc::clone(local) },
            None,
            &|inbox| transport::open(&place, &inbox),
            |_, incarnation| {
                own.set(incarnation);
                Exchanges::new(limits, rank, incarnation, describe, 0)
            },
        )?;
        Ok(Self { driver, incarnation: own.get(), has_met: false })
    }
}

impl WorkerStore {
    fn seat(&self) -> WorkerPlace {
        WorkerPlace { rank: self.rank, workers: self.workers }
    }

    /// The driver of exchanges; the first call waits for all other workers to make one.
    fn exchanges(
        &self,
        call: &'static str,
        deadline: Deadline,
    ) -> Result<Arc<Driver<ExchangeHost>>> {
        let (driver, incarnation) = {
            let mut hub = self.exchanges.lock();
            let open = match &mut *hub {
                Some(open) if open.has_met => return Ok(Arc::clone(&open.driver)),
                Some(open) => open,
                closed => {
                    self.check_knows(call, EXCHANGES)?;
                    let opened = ExchangeHub::open(&self.local, &self.exchanges, self.rank);
                    closed.insert(opened.map_err(|error| error.at(call))?)
                }
            };
            (Arc::clone(&open.driver), open.incarnation)
        };
        let own = ExchangeAddress { incarnation, address: driver.address().to_owned() };
        // Without the lock, which an abort takes.
        self.request(deadline, |worker, now, end| worker.meet(own, now, end))
            .map_err(|error| error.at(call))?;
        let all = self.step(|worker: &mut WorkerMachine, _| worker.listening_workers().to_vec())?;
        if let Some(hub) = self.exchanges.lock().as_mut().filter(|hub| !hub.has_met) {
            let workers = all.iter().map(|(rank, it)| (*rank, it.incarnation, &*it.address));
            driver.step(|machine, now| machine.connect(workers, now));
            hub.has_met = true;
        }
        Ok(driver)
    }

    /// Checks what a sum by the tree needs.
    fn check_tree(&self, call: &CollectiveCall) -> Result<()> {
        let (name, count) = (call.head.kind.name(), call.values.len());
        let adds = call.head.kind != CollectiveKind::ReduceScatter
            && call.head.kind.reduces()
            && matches!(call.head.reduction, Reduction::Sum | Reduction::Mean);
        if self.sums != WorkerSums::Subtrees || !adds || count == 1 {
            return Ok(());
        }
        if call.dtype.is_half() {
            return Err(fail!(
                Unsupported,
                "{name}: several values of {} with sum_order=tree, whose sum would be rounded twice",
                call.dtype.name()
            ));
        }
        if !count.is_power_of_two() {
            return Err(fail!(
                Option,
                "{name}: {count} values; with sum_order=tree their number must be a power of two"
            ));
        }
        Ok(())
    }

    /// Begins a collective call among all workers.
    fn begin_exchange(
        &self,
        call: CollectiveCall,
        driver: &Arc<Driver<ExchangeHost>>,
        ticket: Option<u64>,
        deadline: Deadline,
    ) -> Result<(ExchangeId, Arc<ExchangeRun>)> {
        let (head, of_each) = (call.head, call.values.len());
        let is_scattered = head.kind == CollectiveKind::ReduceScatter;
        let all = u64::from(self.workers) * if is_scattered { 1 } else { of_each as u64 };
        let reducer = Reducer::new(self.local.keys.team, call.dtype, head.reduction, all);
        let mut run =
            ExchangeRun::new(call, self.seat(), reducer, ticket, Arc::clone(driver) as Arc<_>)?;
        let mean_of = if head.reduction == Reduction::Mean { of_each } else { 0 };
        let reduction = if head.kind.reduces() { head.reduction as u32 } else { 0 };
        let number = u32::try_from(mean_of).unwrap_or(u32::MAX).min(0xffff);
        let what = head.kind as u32 | reduction << 8 | number << 16;
        let end = match deadline {
            Deadline::Never => driver.moment(None),
            Deadline::At(end) => driver.moment(Some(end)),
        };
        let plan = run.plan(what, end)?;
        let run = Arc::new(run);
        let begun = driver.step_with(|machine, open, now| {
            let id = machine.begin(plan, now);
            open.insert(id, Arc::clone(&run));
            id
        });
        begun.map(|id| (id, run)).ok_or_else(closed)
    }

    /// Makes a collective call, and waits for its end.
    pub(super) fn exchange_now(&self, call: CollectiveCall) -> Result<()> {
        let name = call.head.kind.name();
        self.check_writes(name)?;
        self.check_tree(&call)?;
        if self.workers == 1 {
            return alone(&call, self.local.keys.team);
        }
        let deadline = self.local.deadline();
        let driver = self.exchanges(name, deadline)?;
        let (id, run) = self.begin_exchange(call, &driver, None, deadline)?;
        let expire = || {
            let failure = Failure::new(Reason::Timeout, "it was interrupted");
            driver.step(|machine, _| machine.give_up(id, &failure));
        };
        run.outcome().wait(expire).unwrap_or_else(|| Err(closed()))
    }

    /// Begins a collective call; its result is that of the ticket.
    pub(super) fn exchange_with_ticket(&self, call: CollectiveCall) -> Result<u64> {
        let name = call.head.kind.name();
        self.check_writes(name)?;
        self.check_tree(&call)?;
        let deadline = self.local.deadline();
        let driver = if self.workers > 1 { Some(self.exchanges(name, deadline)?) } else { None };
        let label = crate::local::ticket::OperationLabel { call: name, first_key: 0, keys: 0 };
        let (ticket, sequence) = self.local.tickets.begin(label)?;
        match driver {
            None => _ = self.local.tickets.finish(sequence, alone(&call, self.local.keys.team)),
            Some(driver) => {
                if let Err(error) = self.begin_exchange(call, &driver, Some(sequence), deadline) {
                    self.local.tickets.retract(sequence);
                    return Err(error);
                }
            }
        }
        Ok(ticket)
    }

    /// Gives the exchange of a ticket up, if it has one.
    pub(super) fn cancel_exchange(&self, number: u64) {
        let Some(driver) = self.exchanges.driver() else { return };
        let of_ticket = |(id, run): (&ExchangeId, &Arc<ExchangeRun>)| {
            (run.ticket == Some(number)).then(|| (*id, Arc::clone(run)))
        };
        let found = driver.with_registry(|open| open.iter().find_map(of_ticket));
        if let Some((id, run)) = found {
            run.fail(fail!(Cancelled, "{}: cancelled; outs are undefined", run.name()));
            let failure = Failure::new(Reason::Timeout, "it was cancelled");
            driver.step(|machine, _| machine.give_up(id, &failure));
        }
    }
}

impl ExchangeHost {
    /// Removes an outstanding event of a call; completes the call after the last one.
    fn settle(&self, run: &Arc<ExchangeRun>) {
        if !run.settle() {
            return;
        }
        let result = panics::catch(|| run.complete()).unwrap_or_else(|panic| {
            self.local.poison();
            Err(panics::internal(&panic))
        });
        match run.ticket {
            Some(sequence) => _ = self.local.tickets.finish(sequence, result),
            None => run.outcome().finish(result),
        }
    }

    fn run(&self, run: &ExchangeRun, action: ExchangeAction<Bytes>) {
        match action {
            ExchangeAction::Reduce { exchange, at, pieces } => run.reduce(exchange, at, &pieces),
            ExchangeAction::Fill { from, is_result, at, data, .. } => {
                run.fill(from, is_result, at, &data);
            }
            ExchangeAction::Finished { result: Ok(()), .. } => {}
            ExchangeAction::Finished { result: Err(failure), .. } => {
                run.fail(error_of(&self.local.keys.names, &failure).at(run.name()));
            }
        }
    }

    /// Fails every call: the machine has stopped.
    fn abort(&self, driver: &Driver<Self>, error: &Error) {
        for run in driver.with_registry(std::mem::take).into_values() {
            run.fail(error.clone());
            self.settle(&run);
        }
    }
}

impl ExchangeHome for Driver<ExchangeHost> {
    fn settle(&self, run: &Arc<ExchangeRun>) {
        self.host.settle(run);
    }

    fn reduced(self: Arc<Self>, exchange: ExchangeId, at: u64, data: &Bytes) {
        self.step(|machine, _| machine.reduced(exchange, at, data));
    }

    fn blocks(&self) -> &Arc<BlockPool> {
        &self.blocks
    }
}

impl DriverHost for ExchangeHost {
    type Machine = Exchanges<Bytes>;
    type Todo = Vec<ExchangeTask>;
    type Registry = HashMap<ExchangeId, Arc<ExchangeRun>>;

    fn registry(&self) -> Self::Registry {
        HashMap::new()
    }

    fn collect(
        &self,
        machine: &mut Self::Machine,
        open: &mut Self::Registry,
        todo: &mut Vec<ExchangeTask>,
    ) {
        for action in machine.actions() {
            let run = match &action {
                ExchangeAction::Reduce { exchange, .. } | ExchangeAction::Fill { exchange, .. } => {
                    open.get(exchange).inspect(|run| run.expect()).cloned()
                }
                // Its event was there from the beginning.
                ExchangeAction::Finished { exchange, .. } => open.remove(exchange),
            };
            todo.extend(run.map(|run| (run, action)));
        }
    }

    fn landing(
        &self,
        machine: &Self::Machine,
        open: &Self::Registry,
        head: &Header,
        len: usize,
    ) -> Option<ReceiveTarget> {
        let is_result = head.slice > 0;
        let run = open.get(&head.key).filter(|_| machine.awaits(head))?;
        run.landing(head.rank, is_result, head.offset, len)
    }

    fn carry_out(&self, driver: &Arc<Driver<Self>>, todo: Vec<ExchangeTask>) {
        let mut bug = None;
        for (run, action) in todo {
            // The event is settled even after a panic: otherwise the call would never end.
            if let Err(panic) = panics::catch(|| self.run(&run, action)) {
                run.fail(panics::internal(&panic));
                bug = Some(panic);
            }
            self.settle(&run);
        }
        if let Some(panic) = bug {
            resume_unwind(Box::new(panic));
        }
        if self.local.poisoned.load(std::sync::atomic::Ordering::SeqCst) {
            self.abort(driver, &poisoned());
        }
    }

    fn broken(&self, driver: &Driver<Self>, bug: &Error) {
        self.local.poison();
        self.abort(driver, bug);
    }
}

/// The call of terms, for texts.
fn describe(terms: &ExchangeTerms) -> String {
    let (kind, reduction) = (terms.what & 0xff, terms.what >> 8 & 0xff);
    let Some(kind) = CollectiveKind::ALL.into_iter().find(|it| *it as u32 == kind) else {
        return format!("the unknown call {kind}");
    };
    let reduction = Reduction::ALL.into_iter().find(|it| *it as u32 == reduction && kind.reduces());
    let name = reduction
        .map_or_else(|| kind.name().into(), |it| format!("{} ({})", kind.name(), it.name()));
    let dtype = DType::from_code(terms.dtype).map_or("unknown", DType::name);
    let root = if kind.has_root() { format!(" with root {}", terms.root) } else { String::new() };
    let number = terms.what >> 16;
    let of_each = if number > 1 { format!(" over {number} values") } else { String::new() };
    match terms.count {
        0 => format!("{name}{root} of {dtype}"),
        count => format!("{name}{root} of {count} {dtype}{of_each}"),
    }
}
