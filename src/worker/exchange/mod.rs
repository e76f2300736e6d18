//! Exchanges with the other workers (also called: collective communication): collective calls as exchanges of the
//! protocol, over a transport of their own that opens with the first call.

mod clipping;
mod layout;
mod run;
mod span;

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::completions::CompletionTable;
use super::{WorkerMachine, WorkerStore, WorkerSums, closed};
use crate::config::JobConfig;
use crate::deadline::Deadline;
use crate::error::{Error, Result, fail};
use crate::job::errors::error_of;
use crate::job::options::{self, exchange_place};
use crate::local::collective::{
    CollectiveCall, CollectiveKind, LentTensor, Reducer, Reduction, alone,
};
use crate::local::kind::StoreKind;
use crate::local::{Local, poisoned};
use crate::panics;
use crate::runtime::{BlockPool, Bytes, Driver, DriverHost};
use crate::tensor::DType;
use crate::transport::{self, PolledCall, Polling, ReceiveTarget};
pub(super) use clipping::WEIGHED;
use kvstore_protocol::{
    EXCHANGES, ExchangeAction, ExchangeAddress, ExchangeId, ExchangeTerms, Exchanges, Failure,
    Header, Limits, Node, Peer, Reason,
};
use run::{ExchangeHome, ExchangeRun, RunOwner};

/// Maximum time for the others to acknowledge the last segments before this worker leaves.
const LAST_WORDS: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The exchanges of a worker, which begin with its first collective call.
pub(super) struct WorkerExchanges {
    /// The store of the job.
    local: Arc<Local>,
    config: JobConfig,
    limits: Limits,
    hub: std::sync::Mutex<Option<ExchangeHub>>,
}

/// An open transport for exchanges.
struct ExchangeHub {
    driver: Arc<Driver<ExchangeHost>>,
    incarnation: u64,
    /// Workers, by rank, to which the machine has streams.
    met: Vec<bool>,
}

/// Driver host of the exchanges.
pub(super) struct ExchangeHost {
    local: Arc<Local>,
    /// The driver of the worker, which knows who is in the job.
    book: Weak<Driver<CompletionTable>>,
}

/// What an exchange is part of.
#[derive(Clone, Copy)]
struct ExchangePurpose {
    /// The name of the call.
    name: &'static str,
    /// The terms, if they are not those of the collective call.
    terms: Option<ExchangeTerms>,
}

impl ExchangePurpose {
    /// A collective call of the program.
    fn of(call: &CollectiveCall) -> Self {
        Self { name: call.head.kind.name(), terms: None }
    }
}

/// Work behind a step of the machine.
pub(super) enum ExchangeTask {
    /// An action for a call.
    OfCall(Arc<ExchangeRun>, ExchangeAction<Bytes>),
    /// A worker is silent and was never heard.
    Unheard(u32),
}

impl WorkerExchanges {
    pub(super) fn new(local: &Arc<Local>, job: &JobConfig, rank: u32, kind: StoreKind) -> Self {
        let config = JobConfig { rank: Some(rank), ..job.clone() };
        let limits = options::limits(job, kind);
        Self { local: Arc::clone(local), config, limits, hub: std::sync::Mutex::default() }
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
    fn open(
        exchanges: &WorkerExchanges,
        book: &Arc<Driver<CompletionTable>>,
        rank: u32,
    ) -> Result<Self> {
        let place = exchange_place(&exchanges.config)?;
        let (own, limits) = (Cell::new(0), exchanges.limits.clone());
        let met = vec![false; limits.workers as usize];
        let driver = Driver::start(
            ExchangeHost { local: Arc::clone(&exchanges.local), book: Arc::downgrade(book) },
            None,
            &|inbox| transport::open(&place, &inbox),
            |_, incarnation| {
                own.set(incarnation);
                Exchanges::new(limits, rank, incarnation, describe, 0)
            },
        )?;
        Ok(Self { driver, incarnation: own.get(), met })
    }
}

impl WorkerStore {
    /// The driver of exchanges; the first call of this store waits for its other workers to make one.
    fn exchanges(
        &self,
        call: &'static str,
        deadline: Deadline,
    ) -> Result<Arc<Driver<ExchangeHost>>> {
        let (driver, incarnation) = {
            let mut hub = self.exchanges.lock();
            let open = match &mut *hub {
                Some(open) if self.has_met(open) => return Ok(Arc::clone(&open.driver)),
                Some(open) => open,
                closed => {
                    self.check_knows(call, EXCHANGES)?;
                    let opened = ExchangeHub::open(&self.exchanges, &self.driver, self.rank);
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
        let workers = all.iter().map(|(rank, it)| (*rank, it.incarnation, &*it.address));
        driver.step(|machine, now| machine.connect(workers, now));
        if let Some(hub) = self.exchanges.lock().as_mut() {
            for (rank, met) in (0..).zip(&mut hub.met) {
                *met |= all.iter().any(|(listening, _)| *listening == rank);
            }
        }
        Ok(driver)
    }

    /// Whether there are streams to all workers of this store.
    fn has_met(&self, hub: &ExchangeHub) -> bool {
        (0..).zip(&hub.met).all(|(rank, met)| *met || !self.has_worker(rank))
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
        (purpose, ticket): (ExchangePurpose, Option<u64>),
        deadline: Deadline,
    ) -> Result<(ExchangeId, Arc<ExchangeRun>)> {
        let (head, of_each) = (call.head, call.values.len());
        let is_scattered = head.kind == CollectiveKind::ReduceScatter;
        let seat = self.seat();
        let all = u64::from(seat.workers) * if is_scattered { 1 } else { of_each as u64 };
        let reducer = Reducer::new(self.local.keys.team, call.dtype, head.reduction, all);
        let (name, home, group) = (purpose.name, Arc::clone(driver) as Arc<_>, self.group.clone());
        let owner = RunOwner { name, ticket, home, group };
        let mut run = ExchangeRun::new(call, seat, reducer, owner)?;
        let mean_of = if head.reduction == Reduction::Mean { of_each } else { 0 };
        let reduction = if head.kind.reduces() { head.reduction as u32 } else { 0 };
        let number = u32::try_from(mean_of).unwrap_or(u32::MAX).min(0xffff);
        let what = head.kind as u32 | reduction << 8 | number << 16;
        let end = match deadline {
            Deadline::Never => driver.moment(None),
            Deadline::At(end) => driver.moment(Some(end)),
        };
        let mut plan = run.plan(what, self.workers, end)?;
        plan.terms = purpose.terms.unwrap_or(plan.terms);
        let run = Arc::new(run);
        let group = self.group_id();
        let begun = driver.step_with(|machine, open, now| {
            let id = machine.begin(group, plan, now);
            open.insert(id, Arc::clone(&run));
            id
        });
        begun.map(|id| (id, run)).ok_or_else(closed)
    }

    /// Makes a collective call, and waits for its end.
    pub(super) fn exchange_now(&self, call: CollectiveCall) -> Result<()> {
        let purpose = ExchangePurpose::of(&call);
        self.check_writes(purpose.name)?;
        self.check_tree(&call)?;
        if self.seat().workers == 1 {
            return alone(&call, self.local.keys.team);
        }
        let deadline = self.local.deadline();
        let driver = self.exchanges(purpose.name, deadline)?;
        let polling = self.polling_of(&call, &driver);
        let begun = self.begin_exchange(call, &driver, (purpose, None), deadline)?;
        Self::await_exchange(&driver, &begun, polling)
    }

    /// Waits for the end of an exchange.
    fn await_exchange(
        driver: &Arc<Driver<ExchangeHost>>,
        (id, run): &(ExchangeId, Arc<ExchangeRun>),
        polling: Polling,
    ) -> Result<()> {
        let expire = || Arc::clone(driver).give_up(*id, "it was interrupted");
        run.outcome().wait(Some(polling), expire).unwrap_or_else(|| Err(closed()))
    }

    /// Begins a collective call; its result is that of the ticket.
    pub(super) fn exchange_with_ticket(&self, call: CollectiveCall) -> Result<u64> {
        let purpose = ExchangePurpose::of(&call);
        let name = purpose.name;
        self.check_writes(name)?;
        self.check_tree(&call)?;
        let deadline = self.local.deadline();
        let driver =
            if self.seat().workers > 1 { Some(self.exchanges(name, deadline)?) } else { None };
        let label = crate::local::ticket::OperationLabel { call: name, first_key: 0, keys: 0 };
        let (ticket, sequence) = self.local.tickets.begin(label)?;
        match driver {
            None => _ = self.local.tickets.finish(sequence, alone(&call, self.local.keys.team)),
            Some(driver) => {
                let of_call = (purpose, Some(sequence));
                if let Err(error) = self.begin_exchange(call, &driver, of_call, deadline) {
                    self.local.tickets.retract(sequence);
                    return Err(error);
                }
            }
        }
        Ok(ticket)
    }

    /// Begins to poll for the exchange of a ticket, if it is under way.
    pub(super) fn polling_of_exchange(&self, number: u64) -> Option<Polling> {
        let (driver, group) = (self.exchanges.driver()?, self.group_id());
        let is_of = |(id, run): (&ExchangeId, &Arc<ExchangeRun>)| {
            (id.group == group && run.ticket() == Some(number)).then(|| Arc::clone(run))
        };
        let run = driver.with_registry(|open| open.iter().find_map(is_of))?;
        Some(self.polling_of(run.call(), &driver))
    }

    /// Begins to poll for a call, unless other threads need the processor.
    fn polling_of(&self, call: &CollectiveCall, driver: &Driver<ExchangeHost>) -> Polling {
        let arrays = call.values.iter().chain(&call.outs);
        let largest = arrays.map(LentTensor::bytes).max().unwrap_or(0);
        let others = self.seat().workers as usize - 1;
        driver.polling(PolledCall { bytes: largest, others })
    }

    /// Gives the exchange of a ticket up, if it has one.
    pub(super) fn cancel_exchange(&self, number: u64) {
        let why = |name: &str| fail!(Cancelled, "{name}: cancelled; outs are undefined");
        self.give_up_exchanges(|run| run.ticket() == Some(number), why, "it was cancelled");
    }

    /// Gives the exchanges of a group up, which this worker leaves.
    pub(super) fn end_exchanges(&self) {
        self.give_up_exchanges(|_| true, |name| closed().at(name), "it has left the group");
    }

    /// Ends some of the exchanges of this store.
    fn give_up_exchanges(
        &self,
        which: impl Fn(&ExchangeRun) -> bool,
        why: impl Fn(&str) -> Error,
        told: &str,
    ) {
        let Some(driver) = self.exchanges.driver() else { return };
        let group = self.group_id();
        let given_up = |(id, run): (&ExchangeId, &Arc<ExchangeRun>)| {
            (id.group == group && which(run)).then(|| (*id, Arc::clone(run)))
        };
        let found: Vec<_> = driver.with_registry(|open| open.iter().filter_map(given_up).collect());
        for (id, run) in found {
            run.fail(why(run.name()));
            Arc::clone(&driver).give_up(id, told);
        }
    }
}

impl ExchangeHost {
    /// Gives a worker up that was never heard, unless it is in the job: it may make its first call of a group later.
    fn check_unheard(&self, driver: &Arc<Driver<Self>>, rank: u32) {
        let here = self.book.upgrade().and_then(|book| book.peek(Node::workers_here));
        if here.is_some_and(|here| !here.contains(&Peer::worker(rank))) {
            driver.step(|machine, _| machine.miss(rank));
        }
    }

    /// Removes an outstanding event of a call; completes the call after the last one.
    fn settle(&self, run: &Arc<ExchangeRun>) {
        if !run.settle() {
            return;
        }
        let result = panics::catch(|| run.complete()).unwrap_or_else(|panic| {
            self.local.poison();
            Err(panics::internal(&panic))
        });
        match run.ticket() {
            Some(sequence) => {
                run.with_local(&self.local, |local| local.tickets.finish(sequence, result));
            }
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
                let error = |local: &Arc<Local>| error_of(&local.keys.names, &failure);
                run.with_local(&self.local, |local| run.fail(error(local).at(run.name())));
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
    fn reduced(self: Arc<Self>, exchange: ExchangeId, at: u64, data: &Bytes) {
        self.step(|machine, _| machine.reduced(exchange, at, data));
    }

    fn give_up(self: Arc<Self>, exchange: ExchangeId, why: &str) {
        let failure = Failure::new(Reason::Timeout, why);
        self.step(|machine, _| machine.give_up(exchange, &failure));
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
            todo.extend(run.map(|run| ExchangeTask::OfCall(run, action)));
        }
        todo.extend(machine.take_unheard().into_iter().map(ExchangeTask::Unheard));
    }

    fn landing(
        &self,
        machine: &Self::Machine,
        open: &Self::Registry,
        head: &Header,
        len: usize,
    ) -> Option<ReceiveTarget> {
        let is_result = head.slice > 0;
        let id = ExchangeId { group: head.group, number: head.key };
        let run = open.get(&id).filter(|_| machine.awaits(head))?;
        run.landing(head.rank, is_result, head.offset, len)
    }

    fn carry_out(&self, driver: &Arc<Driver<Self>>, todo: Vec<ExchangeTask>) {
        let mut bug = None;
        for task in todo {
            let (run, action) = match task {
                ExchangeTask::OfCall(run, action) => (run, action),
                ExchangeTask::Unheard(rank) => {
                    self.check_unheard(driver, rank);
                    continue;
                }
            };
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
    let dtype = DType::from_code(terms.dtype).map_or("unknown", DType::name);
    if kind == clipping::CODE {
        return clipping::describe(terms, dtype);
    }
    let Some(kind) = CollectiveKind::ALL.into_iter().find(|it| *it as u32 == kind) else {
        return format!("the unknown call {kind}");
    };
    let reduction = Reduction::ALL.into_iter().find(|it| *it as u32 == reduction && kind.reduces());
    let name = reduction
        .map_or_else(|| kind.name().into(), |it| format!("{} ({})", kind.name(), it.name()));
    let root = if kind.has_root() { format!(" with root {}", terms.root) } else { String::new() };
    let number = terms.what >> 16;
    let of_each = if number > 1 { format!(" over {number} values") } else { String::new() };
    match terms.count {
        0 => format!("{name}{root} of {dtype}"),
        count => format!("{name}{root} of {count} {dtype}{of_each}"),
    }
}
