//! Driver host of a worker (also called: completion queue): a table from the machine's operations to the
//! pending calls.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::WorkerMachine;
use super::call::PendingCall;
use crate::error::Error;
use crate::job::errors::error_of;
use crate::local::{Local, poisoned};
use crate::panics;
use crate::runtime::{BlockPool, Bytes, Driver, DriverHost, ReceiveTarget, SpareLists};
use crate::sys::sync::Mutex;
use crate::trace::Tracer;
use kvstore_protocol::{Ended, Failure, Header, Node, OpId, SequenceMap, WorkerAction};

pub(super) struct CompletionTable {
    pub(super) local: Arc<Local>,
    open: Mutex<SequenceMap<(Arc<PendingCall>, usize)>>,
}

/// Work for a pending call.
pub(super) struct Completion {
    call: Arc<PendingCall>,
    part: usize,
    what: CompletionKind,
}

enum CompletionKind {
    Fill { slice: u32, round: u64, at: u64, data: Bytes },
    Finished { ended: Ended, result: Result<(), Failure> },
}

thread_local! {
    static TODO: SpareLists<Completion> = const { SpareLists::new() };
}

impl CompletionTable {
    pub(super) fn new(local: Arc<Local>) -> Self {
        Self { local, open: Mutex::default() }
    }

    /// Registers an operation of a call. Called with the machine locked.
    pub(super) fn enter(&self, operation: OpId, call: &Arc<PendingCall>, part: usize) {
        call.add_operation(operation);
        self.open.lock().insert(operation, (Arc::clone(call), part));
    }

    /// Removes an outstanding event of a call; completes the call after the last one.
    pub(super) fn settle(&self, call: &Arc<PendingCall>, blocks: &Arc<BlockPool>) {
        if !call.settle() {
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
            Some(sequence) => _ = self.local.tickets.finish(sequence, result),
            None => call.finish(result),
        }
    }

    /// Drops operations from the table, and gives how many were unfinished; their effects in progress
    /// continue. Called with the machine locked.
    pub(super) fn forget(&self, operations: &[OpId]) -> usize {
        let mut open = self.open.lock();
        operations.iter().filter(|operation| open.remove(**operation).is_some()).count()
    }

    /// Pending call of a ticket.
    pub(super) fn call_of(&self, sequence: u64) -> Option<Arc<PendingCall>> {
        let open = self.open.lock();
        let mut calls = open.iter().map(|(_, (call, _))| call);
        calls.find(|call| call.ticket == Some(sequence)).cloned()
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
                    call.fail(part, error_of(&self.local.keys.names, &failure));
                }
            }
        }
    }

    /// Whether no call is open.
    pub(super) fn is_idle(&self) -> bool {
        self.open.lock().is_empty()
    }

    /// Fails every pending call: the machine has stopped.
    pub(super) fn abort(&self, error: &Error, blocks: &Arc<BlockPool>) {
        let open = std::mem::take(&mut *self.open.lock());
        for (call, part) in open.into_values() {
            call.fail(part, error.clone());
            self.settle(&call, blocks);
        }
    }
}

impl DriverHost for CompletionTable {
    type Machine = Node<Bytes, WorkerMachine>;
    type Todo = Vec<Completion>;

    fn todo() -> Vec<Completion> {
        SpareLists::take(&TODO)
    }

    fn collect(&self, node: &mut Self::Machine, todo: &mut Vec<Completion>) {
        let actions = node.part.actions();
        if actions.len() == 0 {
            return;
        }
        let mut open = self.open.lock();
        for action in actions {
            self.local.fault("collect");
            match action {
                WorkerAction::Fill { op, slice, round, at, data } => {
                    if let Some((call, part)) = open.get(op) {
                        call.expect();
                        let what = CompletionKind::Fill { slice, round, at, data };
                        todo.push(Completion { call: Arc::clone(call), part: *part, what });
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
                        todo.push(Completion { call, part, what });
                    }
                }
            }
        }
    }

    fn landing(
        &self,
        _: &Arc<Driver<Self>>,
        node: &Self::Machine,
        head: &Header,
        len: usize,
    ) -> Option<ReceiveTarget> {
        let (operation, at) = node.awaits(head, len as u64)?;
        let open = self.open.lock();
        let (call, part) = open.get(operation)?;
        call.landing(*part, at, len)
    }

    fn carry_out(&self, driver: &Arc<Driver<Self>>, mut todo: Vec<Completion>) {
        let mut bug = None;
        for Completion { call, part, what } in todo.drain(..) {
            // The event is settled even after a panic: otherwise the call would never end.
            if let Err(panic) = panics::catch(|| self.run(&call, part, what, &driver.tracer)) {
                let error = panics::internal(&panic);
                call.fail(0, error);
                bug = Some(panic);
            }
            self.settle(&call, &driver.blocks);
        }
        SpareLists::keep(&TODO, todo);
        if let Some(panic) = bug {
            resume_unwind(Box::new(panic));
        }
        if self.local.poisoned.load(Ordering::SeqCst) {
            self.abort(&poisoned(), &driver.blocks);
        }
    }

    fn broken(&self, bug: &Error, blocks: &Arc<BlockPool>) {
        self.local.poison();
        self.abort(bug, blocks);
    }
}
