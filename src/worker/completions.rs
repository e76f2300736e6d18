//! Driver host of a worker (also called: completion queue): a table from the machine's operations to the
//! pending calls, under the machine's lock.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::WorkerMachine;
use super::call::PendingCall;
use crate::error::Error;
use crate::job::errors::error_of;
use crate::local::{Local, poisoned};
use crate::panics;
use crate::runtime::{BlockPool, Bytes, Driver, DriverHost, SpareLists};
use crate::trace::Tracer;
use crate::transport::ReceiveTarget;
use kvstore_protocol::{Ended, Failure, Header, Node, OpId, SequenceMap, WorkerAction};

pub(super) struct CompletionTable {
    pub(super) local: Arc<Local>,
}

/// Pending calls of a worker: those of the job's store, and those of the stores of groups, by their numbers.
#[derive(Default)]
pub(super) struct CallTables {
    job: OpenCalls,
    groups: BTreeMap<u64, OpenCalls>,
}

/// Pending calls, by the operations of the machine: each with the part of the call.
#[derive(Default)]
pub(super) struct OpenCalls(SequenceMap<(Arc<PendingCall>, usize)>);

/// Work for pending calls, in order.
#[derive(Default)]
pub(super) struct CompletionList {
    events: Vec<(usize, CompletionKind)>,
    calls: Vec<CallEvents>,
}

/// Events of a call that follow each other. They are settled as one: each atomic addition is several nanoseconds.
struct CallEvents {
    call: Arc<PendingCall>,
    count: usize,
    /// How many outstanding events of the call end with them.
    ends: usize,
}

/// What happens to a part of a call.
enum CompletionKind {
    Fill { slice: u32, round: u64, at: u64, data: Bytes },
    Finished { ended: Ended, result: Result<(), Failure> },
}

thread_local! {
    static EVENTS: SpareLists<(usize, CompletionKind)> = const { SpareLists::new() };
    static CALLS: SpareLists<CallEvents> = const { SpareLists::new() };
}

impl CompletionTable {
    pub(super) fn new(local: Arc<Local>) -> Self {
        Self { local }
    }

    /// Removes outstanding events of a call; completes the call after the last one.
    pub(super) fn settle(&self, call: &Arc<PendingCall>, events: usize, blocks: &Arc<BlockPool>) {
        if !call.settle(events) {
            return;
        }
        let span = call.take_span();
        let complete = || {
            self.local.fault("complete");
            call.complete(self.local.keys.team, blocks)
        };
        let result = panics::catch(|| span.run(complete)).unwrap_or_else(|panic| {
            let bug = panics::internal(&panic);
            self.local.poison();
            Err(bug)
        });
        drop(span);
        match call.ticket {
            Some(sequence) => {
                call.with_local(&self.local, |local| local.tickets.finish(sequence, result));
            }
            None => call.outcome().finish(result),
        }
    }

    /// Takes the actions of a machine.
    fn collect_of(
        &self,
        part: &mut WorkerMachine,
        OpenCalls(open): &mut OpenCalls,
        todo: &mut CompletionList,
    ) {
        for action in part.actions() {
            self.local.fault("collect");
            match action {
                WorkerAction::Fill { op, slice, round, at, data } => {
                    if let Some((call, part)) = open.get(op) {
                        let what = CompletionKind::Fill { slice, round, at, data };
                        todo.fill(call, *part, what);
                    }
                }
                WorkerAction::Told { op, fields } => {
                    if let Some((call, _)) = open.get(op) {
                        call.tell(fields);
                    }
                }
                WorkerAction::Finished { op, ended, result } => {
                    if let Some((call, part)) = open.remove(op) {
                        let what = CompletionKind::Finished { ended, result };
                        todo.finish(call, part, what);
                    }
                }
            }
        }
    }

    fn run(&self, call: &PendingCall, part: usize, what: CompletionKind, tracer: &Tracer) {
        self.local.fault("errand");
        match what {
            CompletionKind::Fill { slice, round, at, data } => {
                call.fill(part, (slice, round), at, data);
            }
            CompletionKind::Finished { ended, result } => {
                call.ended(&ended, result.is_ok(), tracer);
                if let Err(failure) = result {
                    call.with_local(&self.local, |local| {
                        call.fail(part, error_of(&local.keys.names, &failure));
                    });
                }
            }
        }
    }

    /// Fails every pending call: the machine has stopped.
    pub(super) fn abort(&self, driver: &Driver<Self>, error: &Error) {
        let CallTables { job, groups } = driver.with_registry(std::mem::take);
        self.abort_some(driver, job, error);
        groups.into_values().for_each(|open| self.abort_some(driver, open, error));
    }

    /// Fails the pending calls of a group, whose machine is gone.
    pub(super) fn abort_group(&self, driver: &Driver<Self>, group: u64, error: &Error) {
        let open = driver.with_registry(|tables| tables.groups.remove(&group));
        self.abort_some(driver, open.unwrap_or_default(), error);
    }

    fn abort_some(&self, driver: &Driver<Self>, open: OpenCalls, error: &Error) {
        for (call, part) in open.0.into_values() {
            call.fail(part, error.clone());
            self.settle(&call, 1, &driver.blocks);
        }
    }
}

impl CompletionList {
    /// Adds a value for a call that is open, which must not end before: one of the events that are settled with it
    /// is outstanding.
    fn fill(&mut self, call: &Arc<PendingCall>, part: usize, what: CompletionKind) {
        self.events.push((part, what));
        match self.calls.last_mut() {
            Some(last) if Arc::ptr_eq(&last.call, call) => last.count += 1,
            _ => {
                call.expect();
                self.calls.push(CallEvents { call: Arc::clone(call), count: 1, ends: 1 });
            }
        }
    }

    /// Adds the end of an operation of a call, which is an outstanding event.
    fn finish(&mut self, call: Arc<PendingCall>, part: usize, what: CompletionKind) {
        self.events.push((part, what));
        match self.calls.last_mut() {
            Some(last) if Arc::ptr_eq(&last.call, &call) => {
                last.count += 1;
                last.ends += 1;
            }
            _ => self.calls.push(CallEvents { call, count: 1, ends: 1 }),
        }
    }
}

impl CallTables {
    /// Calls of a group; 0 is the job.
    pub(super) fn of(&mut self, group: u64) -> &mut OpenCalls {
        if group == 0 { &mut self.job } else { self.groups.entry(group).or_default() }
    }
}

impl OpenCalls {
    /// Registers operations of a call, each with its part.
    pub(super) fn enter(&mut self, operations: &[(OpId, usize)], call: &Arc<PendingCall>) {
        call.add_operations(operations);
        for (operation, part) in operations {
            self.0.insert(*operation, (Arc::clone(call), *part));
        }
    }

    /// Drops operations, and gives how many were unfinished; their effects in progress continue.
    pub(super) fn forget(&mut self, operations: &[OpId]) -> usize {
        operations.iter().filter(|operation| self.0.remove(**operation).is_some()).count()
    }

    /// Pending call of a ticket.
    pub(super) fn call_of(&self, sequence: u64) -> Option<Arc<PendingCall>> {
        let mut calls = self.0.iter().map(|(_, (call, _))| call);
        calls.find(|call| call.ticket == Some(sequence)).cloned()
    }

    /// Whether no call is open.
    pub(super) fn is_idle(&self) -> bool {
        self.0.is_empty()
    }
}

impl DriverHost for CompletionTable {
    type Machine = Node<Bytes, WorkerMachine>;
    type Todo = CompletionList;
    type Registry = CallTables;

    fn registry(&self) -> CallTables {
        CallTables::default()
    }

    fn todo() -> CompletionList {
        CompletionList { events: SpareLists::take(&EVENTS), calls: SpareLists::take(&CALLS) }
    }

    fn collect(
        &self,
        node: &mut Self::Machine,
        tables: &mut CallTables,
        todo: &mut CompletionList,
    ) {
        self.collect_of(&mut node.part, &mut tables.job, todo);
        node.each_group(|id, part| self.collect_of(part, tables.of(id), todo));
    }

    fn landing(
        &self,
        node: &Self::Machine,
        tables: &CallTables,
        head: &Header,
        len: usize,
    ) -> Option<ReceiveTarget> {
        let (operation, at) = node.awaits(head, len as u64)?;
        let open = if head.group == 0 { &tables.job } else { tables.groups.get(&head.group)? };
        let (call, part) = open.0.get(operation)?;
        call.landing(*part, at, len)
    }

    fn carry_out(&self, driver: &Arc<Driver<Self>>, mut todo: CompletionList) {
        let mut bug = None;
        let mut events = todo.events.drain(..);
        for CallEvents { call, count, ends } in todo.calls.drain(..) {
            for (part, what) in events.by_ref().take(count) {
                // The event is settled even after a panic: otherwise the call would never end.
                if let Err(panic) = panics::catch(|| self.run(&call, part, what, &driver.tracer)) {
                    let error = panics::internal(&panic);
                    call.fail(0, error);
                    bug = Some(panic);
                }
            }
            self.settle(&call, ends, &driver.blocks);
        }
        drop(events);
        SpareLists::keep(&EVENTS, todo.events);
        SpareLists::keep(&CALLS, todo.calls);
        if let Some(panic) = bug {
            resume_unwind(Box::new(panic));
        }
        if self.local.poisoned.load(Ordering::SeqCst) {
            self.abort(driver, &poisoned());
        }
    }

    fn broken(&self, driver: &Driver<Self>, bug: &Error) {
        self.local.poison();
        self.abort(driver, bug);
    }
}
