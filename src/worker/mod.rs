//! Worker (also called: client, KV client): the calls of its program, and their requests to the machine.

mod call;
mod collective;
mod completions;
mod exchange;
mod group;
mod inits;
mod inputs;
#[cfg(test)]
mod long_lists;
mod lookup;
mod memory;
mod message_limit;
mod outcome;
mod queries;
mod requests;
mod rows;
#[cfg(test)]
mod shared_locks;
mod submit;

#[cfg(any(fuzzing, test))]
pub(crate) use collective::Announcement;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::config::{self, JobConfig};
use crate::deadline::Deadline;
use crate::digest::KeyDigest;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::interrupt;
use crate::job::encoding::WorkerResiduals;
use crate::job::errors::error_of;
use crate::job::remote::JobMember;
use crate::job::settings::Change;
use crate::job::{options, telemetry};
use crate::key::{Key, KeyRound};
use crate::local::call::DataCall;
use crate::local::checkpoint::KeyNamer;
use crate::local::collective::CollectiveCall;
use crate::local::kind::StoreKind;
use crate::local::merger::{Handling, NonFinite};
use crate::local::plan::{Pairs, Plan, RowPairs};
use crate::local::table::Slot;
use crate::local::ticket::{OperationLabel, Tickets};
use crate::local::{Local, LocalOperation, poisoned};
use crate::role::Role;
use crate::runtime::{Bytes, Driver};
use crate::sys::sync::Mutex;
use crate::tensor::DType;
use crate::transport::{self, PolledCall};
use call::PendingCall;
use collective::Collective;
use completions::{CompletionTable, OpenCalls};
use exchange::{WEIGHED, WorkerExchanges};
use group::WorkerGroup;
use kvstore_protocol::{
    EXCHANGES, Failure, GroupExit, Machine as _, Mode, Node, NodeStart, OpId, Placement, Reason,
    SCALES, SumOrder, Time, WEIGHTS,
};
use lookup::StoreKeyNames;
use memory::CallMemory;
use message_limit::MessageLimit;
use submit::AT_ONCE;

pub(crate) type WorkerMachine = kvstore_protocol::Worker<Bytes>;

type Slots = Vec<Arc<Slot>>;

/// What the sum of a worker's values is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerSums {
    /// From the left.
    Linear,
    /// The whole tree of a round: there is one worker, or each push is a round.
    Trees,
    /// A subtree of the sum of all workers.
    Subtrees,
}

pub(crate) struct WorkerStore {
    local: Arc<Local>,
    driver: Arc<Driver<CompletionTable>>,
    rank: u32,
    workers: u32,
    servers: u32,
    kind: StoreKind,
    slice_bytes: u64,
    sums: WorkerSums,
    server_updater: bool,
    /// A read-only worker (also called: reader): it only pulls, and no round waits for it.
    reads_only: bool,
    /// Keys that this worker uses without having initialised them.
    found: Mutex<HashSet<Key>>,
    /// Whether new keys are placed on a single server, for a rule that needs it.
    whole: Mutex<bool>,
    /// Locked from the encoding of a push until it is queued in the machine: both happen in one order.
    unsent: Mutex<WorkerResiduals>,
    /// A collective call that timed out.
    unfinished: Mutex<Option<Box<Collective>>>,
    /// With the other workers, without a server.
    exchanges: Arc<WorkerExchanges>,
    /// The group of a group's store; None for that of the job. Ranks inside of this library are those in the job.
    group: Option<Arc<WorkerGroup>>,
}

impl WorkerStore {
    /// Joins the job; returns when all processes have joined, and a frame of each server has arrived.
    pub(crate) fn open(
        local: &Arc<Local>,
        job: &JobConfig,
        place: &transport::TransportConfig,
        kind: StoreKind,
    ) -> Result<Self> {
        let limits = options::limits(job, kind);
        let sums = match (limits.sum_order, limits.mode) {
            (SumOrder::Linear, _) => WorkerSums::Linear,
            (SumOrder::Tree, Mode::Sync) if job.workers > 1 => WorkerSums::Subtrees,
            (SumOrder::Tree, _) => WorkerSums::Trees,
        };
        // A credential may say reader as well; the option suffices without credentials.
        let reads_only = options::reads_only(job, place);
        let driver = Driver::start(
            CompletionTable::new(Arc::clone(local)),
            job.trace.clone(),
            &|inbox| transport::open(place, &inbox),
            |address, incarnation| {
                let rank = options::rank(job, place);
                let birth = NodeStart { rank, incarnation, address, scheduler: &job.root };
                let mut node = Node::new(limits, &birth, 0);
                node.set_launch(config::launch());
                if reads_only {
                    node.only_read();
                }
                node
            },
        )
        .map_err(|error| error.at("create"))?;
        // No deadline: the machine has the timeout of the start.
        let started = driver.wait(None, |machine| match machine.end() {
            Some(Err(failure)) => Some(Err(failure.clone())),
            _ => machine.is_ready().then(|| Ok(machine.me())),
        });
        if let Some(bug) = driver.bug() {
            return Err(bug.at("create"));
        }
        let closed = || Failure::new(Reason::Closed, "the store was closed");
        telemetry::trace(&driver);
        if started.is_none() && interrupt::requested() {
            driver.stop();
            return Err(fail!(Timeout, "create: processes of the job are still missing"));
        }
        match started.unwrap_or_else(|| Err(closed())) {
            Ok(me) => Self {
                local: Arc::clone(local),
                rank: me.rank,
                workers: job.workers,
                servers: job.servers,
                kind,
                slice_bytes: job.slice_bytes,
                sums,
                server_updater: job.server_updater,
                reads_only,
                found: Mutex::default(),
                whole: Mutex::default(),
                unsent: Mutex::default(),
                unfinished: Mutex::default(),
                exchanges: Arc::new(WorkerExchanges::new(local, job, me.rank, kind)),
                group: None,
                driver,
            }
            .begin(),
            Err(failure) => {
                driver.stop();
                Err(error_of(&local.keys.names, &failure).at("create"))
            }
        }
    }

    /// Gives the machine the names of keys, for observers of the job and for the directory. A reader declares
    /// its pushes done at once.
    fn begin(self) -> Result<Self> {
        let names = StoreKeyNames(Arc::downgrade(&self.local.keys.names));
        let _ = self.step(|worker, _| worker.name_keys(names));
        if self.reads_only {
            self.local.fault("done");
            self.finish_pushing().map_err(|error| error.at("create"))?;
        }
        Ok(self)
    }

    fn finish_pushing(&self) -> Result<()> {
        self.request(self.local.deadline(), WorkerMachine::finish_pushing)
    }

    /// Refuses a call that changes the job, if this worker only reads.
    fn check_writes(&self, call: &str) -> Result<()> {
        if self.reads_only {
            return Err(self.refusal(call, "it is a reader, which only pulls"));
        }
        Ok(())
    }

    /// Converts a deadline to the machine's clock.
    fn moment(&self, deadline: Deadline) -> Time {
        match deadline {
            Deadline::Never => self.driver.moment(None),
            Deadline::At(end) => self.driver.moment(Some(end)),
        }
    }

    /// Runs a step of the worker's machine; an error if the machine has stopped.
    fn step<T>(&self, work: impl FnOnce(&mut WorkerMachine, Time) -> T) -> Result<T> {
        let group = self.group_id();
        let step = self.driver.step(|node, now| node.part_of(group).map(|part| work(part, now)));
        step.flatten().ok_or_else(closed)
    }

    /// Like `step`, for work that changes the table of pending calls too.
    fn step_with<T>(
        &self,
        work: impl FnOnce(&mut WorkerMachine, &mut OpenCalls, Time) -> T,
    ) -> Result<T> {
        let group = self.group_id();
        let step = self.driver.step_with(|node, tables, now| {
            node.part_of(group).map(|part| work(part, tables.of(group), now))
        });
        step.flatten().ok_or_else(closed)
    }

    /// Makes one request about the job or a key, and waits for its end.
    fn request(
        &self,
        deadline: Deadline,
        ask: impl FnOnce(&mut WorkerMachine, Time, Time) -> std::result::Result<OpId, Failure>,
    ) -> Result<()> {
        self.request_told(deadline, ask).0
    }

    /// Like `request`; gives also the job's decision, if this worker proposed none or another one.
    fn request_told(
        &self,
        deadline: Deadline,
        ask: impl FnOnce(&mut WorkerMachine, Time, Time) -> std::result::Result<OpId, Failure>,
    ) -> (Result<()>, Vec<u8>) {
        let call = PendingCall::new(self.group.clone(), None, Plan::default(), Vec::new());
        let end = self.moment(deadline);
        let asked = self.step_with(|worker, open, now| {
            let operation = ask(worker, now, end).map_err(|failure| self.error(&failure))?;
            open.enter(&[(operation, 0)], &call);
            Ok(())
        });
        let asked = asked.flatten();
        if asked.is_err() {
            return (asked, Vec::new());
        }
        self.driver.host.settle(&call, 1, &self.driver.blocks);
        (self.wait(&call), call.told())
    }

    /// Waits for the result of a call. An interrupt expires the call at once.
    fn wait(&self, call: &PendingCall) -> Result<()> {
        // An error means that the machine has stopped; it has failed the call already.
        let expire = || _ = self.step(|worker, now| worker.expire(&call.operations(), now));
        let polling = call.is_small().then(|| self.driver.polling(PolledCall::SMALL));
        let result = call.outcome().wait(polling, expire);
        result.unwrap_or_else(|| Err(internal("a call without a result")))
    }

    fn error(&self, failure: &Failure) -> Error {
        error_of(&self.local.keys.names, failure)
    }

    /// Checks that slices of keys fit in messages.
    fn check_messages(
        &self,
        call: &str,
        whole: bool,
        handling: &Handling,
        mut keys: impl Iterator<Item = (Key, DType, usize)>,
    ) -> Result<()> {
        let limit = MessageLimit {
            call,
            slice_bytes: self.slice_bytes,
            adds_by_tree: self.sums != WorkerSums::Linear,
            whole,
            handling,
        };
        keys.try_for_each(|(key, dtype, count)| {
            limit.check(&|| self.local.keys.names.label(key), dtype, count)
        })
    }

    /// As `check_messages`, for all keys of the table under other settings.
    fn check_messages_of(&self, call: &str, after: &Handling) -> Result<()> {
        let slots = self.local.keys.table.slots();
        let sizes = slots.iter().map(|slot| (slot.key, slot.dtype, slot.count));
        self.check_messages(call, after.measures_whole_keys(), after, sizes)
    }

    /// Refuses to clip where workers cannot measure the gradients of a round, or servers not scale them.
    fn check_clips(&self, call: &str, max_norm: f64) -> Result<()> {
        self.check_writes(call)?;
        if max_norm == 0.0 {
            return self.check_knows(call, SCALES);
        }
        if self.kind.is_asynchronous() {
            return Err(fail!(
                Unsupported,
                "{call}: {} has no rounds whose gradients could be measured: each push is merged by itself; clip \
                 before the push, or use dist_sync",
                self.kind.name()
            ));
        }
        if self.sums != WorkerSums::Linear {
            return Err(fail!(
                Unsupported,
                "{call}: jobs with sum_order=tree do not clip yet; sum the gradients by allreduce and clip before \
                 the push, or use sum_order=linear"
            ));
        }
        if self.local.weight.get().is_some() {
            return Err(fail!(Unsupported, "{call}: {WEIGHED}"));
        }
        self.check_knows(call, SCALES).and(self.check_knows(call, EXCHANGES))
    }

    /// Splits the keys of a removal into existing ones and those that all workers have removed.
    fn split_removed(&self, slots: Slots, all: bool) -> Result<(Slots, Slots)> {
        if all {
            return Ok((Vec::new(), slots));
        }
        let (mut kept, mut gone) = (Vec::new(), Vec::new());
        for some in slots.chunks(AT_ONCE.0) {
            self.step(|worker, _| {
                for slot in some {
                    let is_there = worker.place_of(slot.key.id()).is_some();
                    if is_there { &mut kept } else { &mut gone }.push(Arc::clone(slot));
                }
            })?;
        }
        Ok((kept, gone))
    }

    /// Adds the keys that a removal has left to its error.
    fn stopped(&self, error: Error, kept: &[Arc<Slot>]) -> Error {
        let [first, _, ..] = kept else { return error };
        let first = self.local.keys.names.label(first.key);
        let others = kept.len() - 1;
        let text = format!("{}; {first} and {others} more of the list are kept", error.message());
        Error::new(error.kind(), text)
    }

    /// Assigns a ticket to a call, unless the call fails at once.
    fn with_ticket(
        &self,
        label: OperationLabel,
        send: impl FnOnce(u64) -> Result<Arc<PendingCall>>,
    ) -> Result<u64> {
        let (ticket, sequence) = self.local.tickets.begin(label)?;
        match send(sequence) {
            Ok(_) => Ok(ticket),
            Err(error) => {
                self.local.tickets.retract(sequence);
                Err(error)
            }
        }
    }

    fn is_done(&self) -> Result<bool> {
        self.step(|worker, _| worker.is_done())
    }

    /// Placement of a key.
    fn place(&self, key: Key) -> Result<Arc<Placement>> {
        self.of_place(key, Arc::clone)
    }

    /// What `of` takes from the placement of a key.
    fn of_place<T>(&self, key: Key, of: impl Fn(&Arc<Placement>) -> T) -> Result<T> {
        let place = || self.step(|worker, _| worker.place_of(key.id()).map(&of));
        if let Some(place) = place()? {
            return Ok(place);
        }
        // Other workers have moved the key.
        let deadline = self.local.deadline();
        self.request(deadline, |worker, now, end| worker.find(key.id(), now, end))?;
        place()?.ok_or_else(|| internal("a key without a place"))
    }

    /// Changes a merge setting, on all servers.
    fn change(&self, call: &'static str, change: &Change) -> Result<()> {
        self.check_writes(call)?;
        let after =
            change.apply(&self.local.handling.read().clone()).map_err(|error| error.at(call))?;
        let slots = self.local.keys.table.slots();
        self.local.check_keys(call, &after, &slots)?;
        self.check_messages_of(call, &after)?;
        let fields = change.encode();
        self.collective(call, fields.clone(), |collective| {
            self.change_together(change, fields, after, collective)
        })
    }

    fn change_together(
        &self,
        change: &Change,
        fields: Vec<u8>,
        after: Handling,
        collective: &mut Collective,
    ) -> Result<()> {
        let call = collective.call;
        let before = self.keep_whole_for(&after);
        let (set, told) = self.propose(fields, collective);
        let set = match set {
            Ok(()) => self.local.adopt(after),
            Err(error) => {
                *self.whole.lock() = before;
                Err(error.at(call))
            }
        };
        // After a conflict this worker follows the decision of the job.
        let in_force = if told.is_empty() { Ok(change.clone()) } else { Change::decode(&told) };
        if let (Err(_), Ok(other @ Change::Clipping { .. })) = (&set, &in_force)
            && !told.is_empty()
        {
            // All workers measure, or none does.
            let after = other.apply(&self.local.handling.read().clone())?;
            self.local.adopt(after)?;
        }
        if (set.is_ok() || !told.is_empty()) && in_force?.measures_whole_keys() {
            let made = self.make_whole(collective).map_err(|error| error.at(call));
            return set.and(made);
        }
        set
    }
}

impl Drop for WorkerStore {
    /// Runs also when the store was never opened: otherwise its threads would stay a member of the job.
    fn drop(&mut self) {
        self.abort();
    }
}

impl JobMember for WorkerStore {
    fn role(&self) -> Role {
        Role::Worker
    }

    fn rank(&self) -> u32 {
        self.seat().rank
    }

    fn workers(&self) -> u32 {
        self.seat().workers
    }

    /// Fails all calls at once, and stops the driver; of a group only its own calls.
    fn abort(&self) {
        if let Some(group) = &self.group {
            return self.leave_group(group, GroupExit::Dropped, &closed());
        }
        self.exchanges.stop();
        self.driver.stop();
        let is_poisoned = self.local.poisoned.load(Ordering::SeqCst);
        let why = if is_poisoned { poisoned() } else { closed() };
        self.driver.host.abort(&self.driver, &why);
        self.driver.tracer.finish("worker", self.rank);
    }

    /// Each store of a group has a reference to the exchanges of the job.
    fn is_shared(&self) -> bool {
        self.group.is_none() && Arc::strong_count(&self.exchanges) > 1
    }

    /// Leaves the job; pending calls have ended before.
    fn close(&self, deadline: Deadline) -> Result<()> {
        if let Some(group) = &self.group {
            return self.close_group(group, deadline);
        }
        self.exchanges.leave(deadline);
        let result = self.request(deadline, WorkerMachine::close);
        if result.is_ok() {
            self.local.log_names(self.kind.name(), self.servers);
        }
        self.abort();
        match result {
            // The worker has been closed before.
            Err(error) if error.kind() == ErrorKind::Closed => Ok(()),
            other => other,
        }
    }

    /// Updaters run on the servers: one that is set on a worker would never run.
    fn updates(&self) -> Result<bool> {
        self.check_of_job("set_updater", "an optimizer may be set")?;
        if self.server_updater || self.reads_only {
            return Ok(self.reads_only);
        }
        Err(fail!(
            Role,
            "set_updater: updaters run on the servers, and this process is worker {}; set it where \
             kv_serve is called, or set server_updater=yes if one source serves all roles",
            self.rank
        ))
    }

    fn lost(&self) -> usize {
        if let Some(group) = &self.group {
            return self.lost_of(group);
        }
        self.driver.peek(Node::lost).unwrap_or(0)
    }

    #[cfg(test)]
    fn takings(&self) -> u64 {
        self.driver.takings()
    }

    fn stats(&self) -> String {
        format!(
            ",\"role\":\"worker\",\"rank\":{},\"num_workers\":{}{}",
            self.rank(),
            self.workers(),
            telemetry::facts(self.driver.step(|node, now| (node.facts(now), node.ignored())))
        )
    }

    fn init(&self, values: &Pairs<'_>) -> Result<()> {
        self.create("init", values)
    }

    fn run(&self, call: DataCall, values: &Pairs<'_>, outs: &Pairs<'_>) -> Result<()> {
        let mut memory = CallMemory::take();
        let mut plan = memory.plan(&self.driver.blocks);
        let (call, deadline) = (self.plan(&mut plan, call, values, outs)?, self.local.deadline());
        let scale = self.clip(call, &mut plan, deadline)?;
        let call = self.send(&mut memory, plan, (0, scale), None, deadline)?;
        let result = self.wait(&call);
        memory.keep(call, &self.driver.blocks);
        memory.leave();
        result
    }

    fn bind(&self, values: &Pairs<'_>, outs: &Pairs<'_>) -> Result<()> {
        self.check_bound(values, outs)
    }

    fn submit(
        &self,
        call: DataCall,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
        priority: i32,
    ) -> Result<u64> {
        let mut plan = Plan::default();
        let call = self.plan(&mut plan, call, values, outs)?;
        self.check_unclipped(call, &plan)?;
        let mut memory = CallMemory::take();
        let ticket = self.with_ticket(plan.label(call), |sequence| {
            self.send(&mut memory, plan, (priority, None), Some(sequence), Deadline::Never)
        });
        memory.leave();
        ticket
    }

    fn run_rows(&self, call: DataCall, pairs: &RowPairs<'_>) -> Result<()> {
        let deadline = self.local.deadline();
        let mut memory = CallMemory::take();
        let mut run = || {
            let mut plan = memory.plan(&self.driver.blocks);
            self.plan_rows(&mut plan, call, pairs)?;
            let sent = self.send_rows(&mut memory, plan, 0, None, deadline)?;
            let result = self.wait(&sent);
            memory.keep(sent, &self.driver.blocks);
            result
        };
        let result = match run() {
            // Other workers may have moved the key, so that its rows are in other slices.
            Err(error) if error.kind() == ErrorKind::KeyNotFound && self.is_done()? => run(),
            other => other,
        };
        memory.leave();
        result
    }

    fn submit_rows(&self, call: DataCall, pairs: &RowPairs<'_>, priority: i32) -> Result<u64> {
        let mut plan = Plan::default();
        self.plan_rows(&mut plan, call, pairs)?;
        let mut memory = CallMemory::take();
        let ticket = self.with_ticket(plan.label(call), |sequence| {
            self.send_rows(&mut memory, plan, priority, Some(sequence), Deadline::Never)
        });
        memory.leave();
        ticket
    }

    fn look_up(&self, call: &'static str, key: Key) -> Result<()> {
        self.find(call, [key].into_iter())
    }

    fn digest(&self, keys: &[Key]) -> Result<Vec<KeyDigest>> {
        self.digests(keys)
    }

    fn remove(&self, keys: &[Key]) -> Result<()> {
        self.check_writes("remove")?;
        self.find("remove", keys.iter().copied())?;
        let slots = self.local.keys.find(&self.local.keys.scene("remove"), keys)?;
        self.leave_unfinished();
        let end = self.moment(self.local.deadline());
        let (_, result) =
            self.request_each(&slots, |worker, slot, now| worker.remove(slot.key.id(), now, end));
        let (kept, gone) = match self.split_removed(slots, result.is_ok()) {
            Ok(split) => split,
            // The machine has stopped; it has failed the call already.
            Err(error) => return result.and(Err(error)),
        };
        let mut found = self.found.lock();
        for slot in &gone {
            found.remove(&slot.key);
            self.unsent.lock().forget(slot.key.id());
        }
        // The directory may still report these keys as removed.
        found.extend(kept.iter().map(|slot| slot.key));
        drop(found);
        self.local.keys.table.remove(&gone, || Ok(()))?;
        result.map_err(|error| self.stopped(error, &kept))
    }

    /// Ends the loans of an operation with a ticket. Its pushes in progress take effect; the content of outs
    /// is undefined.
    fn cancel(&self, ticket: u64) {
        let number = Tickets::<LocalOperation>::number(ticket);
        self.cancel_exchange(number);
        let group = self.group_id();
        let found = self.driver.with_registry(|tables| tables.of(group).call_of(number));
        let Some(call) = found else { return };
        let stop = |some: &[OpId]| {
            self.step_with(|worker, open, _| {
                some.iter().for_each(|operation| worker.abandon(*operation));
                open.forget(some)
            })
        };
        let stopped: usize =
            call.operations().chunks(AT_ONCE.0).map(|some| stop(some).unwrap_or(0)).sum();
        if stopped > 0 {
            call.fail(0, fail!(Cancelled, "cancelled; a push goes on, outs are undefined"));
            self.driver.host.settle(&call, stopped, &self.driver.blocks);
        }
    }

    fn poll(&self, ticket: u64, is_over: &dyn Fn() -> bool) {
        let number = Tickets::<LocalOperation>::number(ticket);
        if let Some(polling) = self.polling_of_exchange(number) {
            return polling.wait(is_over);
        }
        let group = self.group_id();
        let call = self.driver.with_registry(|tables| tables.of(group).call_of(number));
        if call.is_some_and(|call| call.is_small()) {
            self.driver.polling(PolledCall::SMALL).wait(is_over);
        }
    }

    fn collective(&self, call: CollectiveCall) -> Result<()> {
        self.exchange_now(call)
    }

    fn group(&self, local: &Arc<Local>, name: &str, ranks: &[u32]) -> Result<Box<dyn JobMember>> {
        self.open_group(local, name, ranks)
    }

    fn submit_collective(&self, call: CollectiveCall) -> Result<u64> {
        self.exchange_with_ticket(call)
    }

    fn barrier(&self, deadline: Deadline) -> Result<()> {
        self.check_writes("barrier")?;
        self.leave_unfinished();
        self.request(deadline, WorkerMachine::barrier)
    }

    fn done(&self) -> Result<()> {
        if self.reads_only { Ok(()) } else { self.finish_pushing() }
    }

    fn resume(&self, deadline: Deadline) -> Result<()> {
        self.check_writes("resume")?;
        self.resume_together(deadline)
    }

    fn save(&self, path: &Path) -> Result<()> {
        self.check_writes("save")?;
        match self.alone()? {
            Some(why) => {
                self.leave_unfinished();
                self.save_alone(path, &why)
            }
            None => self.save_together(path),
        }
    }

    fn load(&self, path: &Path, namer: Option<KeyNamer<'_>>) -> Result<()> {
        self.check_writes("load")?;
        self.load_together(path, namer)
    }

    fn check_weights(&self, has_weight: bool) -> Result<()> {
        self.check_writes("set_weight")?;
        if !has_weight {
            return Ok(());
        }
        if self.local.handling.read().clipping.is_some() {
            return Err(fail!(Unsupported, "set_weight: {WEIGHED}"));
        }
        self.check_knows("set_weight", WEIGHTS)
    }

    fn last_round(&self, key: Key) -> Result<KeyRound> {
        self.round_of(key)
    }

    fn set_optimizer(&self, name: &str, params: &str) -> Result<()> {
        let (name, params) = (name.into(), params.into());
        self.change("set_optimizer", &Change::Optimizer { name, params })
    }

    fn set_optimizer_for(&self, keys: &[Key], name: &str, params: &str) -> Result<()> {
        let keys = keys.iter().map(|key| key.id()).collect();
        let (name, params) = (name.into(), params.into());
        self.change("set_optimizer_for", &Change::KeyOptimizer { keys, name, params })
    }

    fn set_hyperparameter(&self, name: &str, value: f64) -> Result<()> {
        let change = Change::Hyperparameter { name: name.into(), bits: value.to_bits() };
        self.change("set_hyperparameter", &change)
    }

    fn set_key_hyperparameter(&self, key: Key, name: &str, value: f64) -> Result<()> {
        let (key, name, bits) = (key.id(), name.into(), value.to_bits());
        self.change("set_key_hyperparameter", &Change::KeyHyperparameter { key, name, bits })
    }

    fn set_clipping(&self, max_norm: f64, non_finite: NonFinite) -> Result<()> {
        let call = "set_clipping";
        self.check_clips(call, max_norm)?;
        let (max_norm, fails) = (max_norm.to_bits(), non_finite == NonFinite::Fail);
        self.change(call, &Change::Clipping { max_norm, fails })
    }

    fn check_last_norm(&self) -> Result<()> {
        Ok(())
    }

    fn set_compression(&self, name: &str, params: &str) -> Result<()> {
        let (name, params) = (name.into(), params.into());
        self.change("set_compression", &Change::Compression { name, params })
    }
}

fn closed() -> Error {
    fail!(Closed, "the store has been closed; open a new one")
}

fn internal(what: &str) -> Error {
    fail!(Internal, "a bug of this library: {what}")
}
