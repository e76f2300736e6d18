//! Driver host of a worker (also called: completion queue): a table from the machine's operations to the
//! pending calls.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::call::PendingCall;
use crate::error::Error;
use crate::job::errors::error_of;
use crate::local::{Local, poisoned};
use crate::panics;
use crate::runtime::{BlockPool, Bytes, Driver, DriverHost, ReceiveTarget};
use crate::sys::sync::Mutex;
use crate::trace::Tracer;
use kvstore_protocol::{Ended, Failure, Header, Node, NodeRole, OpId, SequenceMap, WorkerAction};

pub(super) struct CompletionTable {
    pub(super) local: Arc<Local>,
    open: Mutex<SequenceMap<(Arc<PendingCall>, usize)>>,
}

/// Work for a pending call.
pub(super) enum Completion {
    Fill { call: Arc<PendingCall>, part: usize, slice: u32, round: u64, at: u64, data: Bytes },
    Finished { call: Arc<PendingCall>, part: usize, ended: Ended, result: Result<(), Failure> },
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

    fn run(&self, errand: Completion, tracer: &Tracer) {
        self.local.fault("errand");
        match errand {
            Completion::Fill { call, part, slice, round, at, data } => {
                call.fill(part, (slice, round), at, data);
            }
            Completion::Finished { call, part, ended, result } => {
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

impl Completion {
    fn call(&self) -> &Arc<PendingCall> {
        match self {
            Completion::Fill { call, .. } | Completion::Finished { call, .. } => call,
        }
    }
}

impl DriverHost for CompletionTable {
    type Todo = Vec<Completion>;

    fn collect(&self, node: &mut Node<Bytes>, todo: &mut Vec<Completion>) {
        let NodeRole::Worker(worker) = &mut node.part else { return };
        let actions = worker.actions();
        if actions.is_empty() {
            return;
        }
        todo.reserve(actions.len());
        let mut open = self.open.lock();
        for action in actions {
            self.local.fault("collect");
            match action {
                WorkerAction::Fill { op, slice, round, at, data } => {
                    if let Some((call, part)) = open.get(op) {
                        call.expect();
                        let (call, part) = (Arc::clone(call), *part);
                        todo.push(Completion::Fill { call, part, slice, round, at, data });
                    }
                }
                WorkerAction::Told { op, fields } => {
                    if let Some((call, _)) = open.get(op) {
                        call.tell(fields);
                    }
                }
                WorkerAction::Finished { op, ended, result } => {
                    if let Some((call, part)) = open.remove(op) {
                        todo.push(Completion::Finished { call, part, ended, result });
                    }
                }
            }
        }
    }

    fn landing(
        &self,
        driver: &Arc<Driver<Self>>,
        node: &Node<Bytes>,
        head: &Header,
        len: usize,
    ) -> Option<ReceiveTarget> {
        let (operation, at) = node.awaits(head, len as u64)?;
        let open = self.open.lock();
        let (call, part) = open.get(operation)?;
        let driver = Arc::clone(driver);
        call.landing(*part, at, len, move |call| driver.host.settle(call, &driver.blocks))
    }

    fn carry_out(&self, driver: &Arc<Driver<Self>>, todo: Vec<Completion>) {
        let mut bug = None;
        for errand in todo {
            let call = Arc::clone(errand.call());
            // The event is settled even after a panic: otherwise the call would never end.
            if let Err(panic) = panics::catch(|| self.run(errand, &driver.tracer)) {
                let error = panics::internal(&panic);
                call.fail(0, error);
                bug = Some(panic);
            }
            self.settle(&call, &driver.blocks);
        }
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
