//! A worker (also: client): requests of the user's program become operations, these become slices for the
//! servers, and answers become results. Requests on one key take effect in their order.

mod cancellation;
mod collective;
mod credit;
mod errors;
mod facts;
mod faults;
mod keys;
mod operation;
mod requests;
mod slices;
#[cfg(test)]
mod tests;
mod touched;
mod undelivered;

use std::collections::BTreeSet;

use super::job::{
    AT_ONCE, Data, DeliveryToken, Failure, Limits, MemberRole, Mode, OnLoss, Peer, Reason, Time,
    naming, take_all, words,
};
use super::message::{
    Body, Book, Header, MemberState, Message, MessageKind, Placement, failed, flags,
};
use super::peers::{DropReason, OutgoingMessage};
use super::sequence_map::SequenceMap;
use super::stream::{CONTROL, LAST};
use super::table::Table;
use credit::FlowControl;
pub use facts::{Ended, KeyNameLookup};
use keys::WorkerKey;
use operation::{CatchUpTarget, Operation, OperationKind};
pub use operation::{OpId, PullDependency};
use slices::Slices;
use touched::TouchedKeys;

/// Maximum operations whose timers are handled in one step; the next step has the rest. Each step looks at
/// all operations, so that a smaller maximum would take quadratic time.
const MOST_DUE: usize = 16 * AT_ONCE;

/// Server of the directory.
const DIRECTORY: Peer = Peer { role: MemberRole::Server, rank: 0 };

/// Action for the driver of a worker, in the order in which they take effect.
#[derive(Debug)]
pub enum WorkerAction<D> {
    /// Copy a slice of a pulled value to its place in the operation's output.
    Fill {
        /// Operation that pulled.
        op: OpId,
        /// Index of the slice.
        slice: u32,
        /// Last closed round in the value.
        round: u64,
        /// Offset of the slice in the value, in bytes.
        at: u64,
        /// Value of the slice, or the answer to the query of [`Worker::pull_wanted`].
        data: D,
    },
    /// The decision of the job, for an operation with an empty or another proposal.
    Told {
        /// Operation that proposed or asked.
        op: OpId,
        /// Decided setting; of [`Worker::learn_key`] the key, 8 bytes, little-endian.
        fields: Vec<u8>,
    },
    /// The operation has ended; a later action of it is void. After a timeout the machine may still send its
    /// data, but fills no output.
    Finished {
        /// Operation that ended.
        op: OpId,
        /// Call and times, for statistics.
        ended: Ended,
        /// Result of the operation.
        result: Result<(), Failure>,
    },
}

/// Request to the scheduler, which the node sends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SchedulerRequest {
    Barrier,
    AskBarrier(u64),
    Done,
    Leave,
}

/// Whether the program may push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PushPhase {
    Open,
    /// The program has announced the end of its pushes.
    Over,
    /// The number of pushes of each key was sent to the servers.
    Announced,
}

/// The machine of one worker, in [`NodeRole::Worker`](crate::NodeRole::Worker).
///
/// Each request returns the number of an operation at once, or the failure of a request that can never
/// succeed. The operation ends with a [`WorkerAction::Finished`], at the latest at its `deadline`, a moment of the
/// driver's clock (`Time::MAX` is none). Requests may be made before the job has started. `now` is the moment
/// of the call. Of requests with a `priority`, larger ones are sent earlier.
#[derive(Debug)]
pub struct Worker<D> {
    limits: Limits,
    started: bool,
    ops: SequenceMap<Operation<D>>,
    /// Operations on keys that have not started.
    waiting: BTreeSet<OpId>,
    /// Operations without a key that have not started.
    collective: BTreeSet<OpId>,
    /// Pending settings.
    changes: BTreeSet<OpId>,
    touched: TouchedKeys,
    next_op: OpId,
    /// Lower bound of the next timer of an operation.
    wake: Time,
    keys: Table<u64, WorkerKey>,
    flows: Vec<FlowControl>,
    servers_here: Vec<bool>,
    workers_lost: BTreeSet<u32>,
    /// Operations of the current key; kept for its memory.
    queue: Vec<OpId>,
    barriers: u64,
    /// Last barrier at which this worker has arrived.
    arrived: u64,
    /// Last barrier that has opened for this worker.
    released: u64,
    /// The last barrier, if the program has given it up: the next call joins it.
    barrier_given_up: Option<(u64, &'static str)>,
    /// The last setting, if the program has given it up: the next call with its fields joins it.
    setting_given_up: Option<(u64, Vec<u8>)>,
    settings: u64,
    /// Version of the setting in force.
    setting: u64,
    pushes: PushPhase,
    /// Operation that announces the number of pushes of each key, and the position of the next key in the
    /// table.
    announcing: Option<(OpId, usize)>,
    closing: bool,
    ended: bool,
    /// A loss after which no round closes.
    rounds_lost: Option<Failure>,
    /// A loss after which only leaving succeeds.
    all_lost: Option<Failure>,
    letters: Vec<OutgoingMessage<D>>,
    /// Reasons of dropped messages.
    faults: Vec<DropReason>,
    wants: Vec<SchedulerRequest>,
    actions: Vec<WorkerAction<D>>,
    tally: Box<facts::WorkerTally>,
    /// Count of looks at operations.
    #[cfg(test)]
    looks: std::cell::Cell<u64>,
}

impl<D: Data> Worker<D> {
    pub(super) fn new(limits: &Limits) -> Self {
        let servers = limits.servers as usize;
        Self {
            limits: limits.clone(),
            started: false,
            ops: SequenceMap::default(),
            waiting: BTreeSet::new(),
            collective: BTreeSet::new(),
            changes: BTreeSet::new(),
            touched: TouchedKeys::default(),
            next_op: 1,
            wake: Time::MAX,
            keys: Table::default(),
            flows: (0..servers).map(|_| FlowControl::new(limits.credit())).collect(),
            servers_here: vec![true; servers],
            workers_lost: BTreeSet::new(),
            queue: Vec::new(),
            barriers: 0,
            arrived: 0,
            released: 0,
            barrier_given_up: None,
            setting_given_up: None,
            settings: 0,
            setting: 0,
            pushes: PushPhase::Open,
            announcing: None,
            closing: false,
            ended: false,
            rounds_lost: None,
            all_lost: None,
            letters: Vec::new(),
            faults: Vec::new(),
            wants: Vec::new(),
            actions: Vec::new(),
            tally: Box::default(),
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        }
    }

    /// Actions since the last call, for the driver to carry out. Called after every event of the node.
    pub fn actions(&mut self) -> Vec<WorkerAction<D>> {
        take_all(&mut self.actions)
    }

    pub(super) fn letters(&mut self) -> Vec<OutgoingMessage<D>> {
        take_all(&mut self.letters)
    }

    pub(super) fn wants(&mut self) -> Vec<SchedulerRequest> {
        std::mem::take(&mut self.wants)
    }

    /// Shape and placement of a key, once this worker knows them.
    pub fn place_of(&self, key: u64) -> Option<&Placement> {
        self.keys.get(&key)?.place()
    }

    /// Number of pushes of a key, requested ones included: the next push has one more as its round.
    pub fn pushes_before_next(&self, key: u64) -> u64 {
        let Some(state) = self.keys.get(&key) else { return 0 };
        let unnumbered = |id: &OpId| {
            let op = self.ops.get(*id);
            op.is_some_and(|op| !op.started && matches!(op.what, OperationKind::Push { .. }))
        };
        state.pushed() + state.queue().filter(unnumbered).count() as u64
    }

    /// Ends these operations now as if their deadline had passed, with a timeout.
    pub fn expire(&mut self, ids: &[OpId], now: Time) {
        for id in ids {
            if let Some(op) = self.ops.get_mut(*id) {
                op.deadline = now;
            }
        }
        self.wake = now;
        self.tick(now);
    }

    /// Counts a look at an operation, for a test.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "it counts in tests only"))]
    fn note_look(&self) {
        #[cfg(test)]
        self.looks.update(|looks| looks + 1);
    }

    #[cfg(test)]
    fn take_looks(&self) -> u64 {
        self.looks.take()
    }

    /// Generation of a key that this worker knows.
    #[cfg(test)]
    pub(super) fn generation(&self, key: u64) -> u32 {
        self.keys.get(&key).map_or(0, WorkerKey::generation)
    }

    /// Whether [`finish_pushing`](Self::finish_pushing) was called.
    pub fn is_done(&self) -> bool {
        self.pushes != PushPhase::Open
    }

    /// Loss of another worker after which no round closes any more ([`OnLoss::Fail`]).
    pub fn lost_worker(&self) -> Option<&Failure> {
        self.rounds_lost.as_ref()
    }

    /// Whether the job has lost a worker.
    pub fn is_lost(&self, rank: u32) -> bool {
        self.workers_lost.contains(&rank)
    }

    /// Whether pushes are in rounds ([`Mode::Sync`]).
    pub fn is_in_rounds(&self) -> bool {
        self.limits.mode == Mode::Sync
    }

    /// Whether the worker has left the job, or was evicted or cut off.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The members are known, or have changed.
    pub(super) fn members(&mut self, book: &Book) {
        self.started = true;
        for gone in book.members.iter().filter(|member| member.state != MemberState::Here) {
            let is_lost = gone.state == MemberState::Lost;
            let how = if is_lost { "is lost" } else { "has left, as the job is over" };
            let text = format!("{} at {} {how}", gone.peer, gone.address);
            let failure = Failure::new(Reason::PeerLost, text);
            match gone.peer.role {
                MemberRole::Server => {
                    self.lose_all(&failure);
                    self.stop_waiting_for(gone.peer);
                }
                MemberRole::Worker if !is_lost => {}
                MemberRole::Worker => {
                    self.workers_lost.insert(gone.peer.rank);
                    if self.limits.on_loss == OnLoss::Fail && !gone.reads {
                        self.lose_rounds(&failure);
                    }
                }
                MemberRole::Scheduler => {}
            }
        }
        self.pump_all();
    }

    /// Rounds, barriers and other collective calls cannot end any more.
    fn lose_rounds(&mut self, failure: &Failure) {
        if self.rounds_lost.is_none() {
            self.rounds_lost = Some(failure.clone());
            self.flows.iter_mut().for_each(FlowControl::forget);
            let lost = |op: &Operation<D>| op.needs_all_workers();
            self.fail_where(lost, failure);
        }
    }

    /// Only leaving can succeed any more.
    fn lose_all(&mut self, failure: &Failure) {
        if self.all_lost.is_none() {
            self.all_lost = Some(failure.clone());
            self.fail_where(|op| !op.is_leaving(), failure);
        }
    }

    /// This process was evicted or refused, or cannot continue.
    pub(super) fn fatal(&mut self, failure: &Failure) {
        self.all_lost = Some(failure.clone());
        self.fail_where(|_| true, failure);
        self.letters.clear();
        self.wants.clear();
        self.ended = true;
    }

    /// Messages to a lost server will not arrive; leaving continues without it.
    fn stop_waiting_for(&mut self, server: Peer) {
        let Some(here) = self.servers_here.get_mut(server.rank as usize) else { return };
        *here = false;
        for id in self.ids(|op| !op.undelivered.is_empty()) {
            if let Some(op) = self.ops.get_mut(id) {
                op.undelivered.give_up(server.rank);
                self.finish_if_complete(id);
            }
        }
    }

    /// Operations, in the order of their requests.
    fn ids(&self, which: impl Fn(&Operation<D>) -> bool) -> Vec<OpId> {
        let looked = self.ops.iter().inspect(|_| self.note_look());
        looked.filter(|(_, op)| which(op)).map(|(id, _)| id).collect()
    }

    fn fail_where(&mut self, which: impl Fn(&Operation<D>) -> bool, failure: &Failure) {
        for id in self.ids(which) {
            self.finish(id, Err(failure.clone()));
        }
    }

    /// A message of a server.
    pub(super) fn message(&mut self, from: Peer, message: Message<D>) {
        let Message { head, body } = message;
        if self.is_unasked(&head) {
            return self.fault(DropReason::Unasked);
        }
        match (head.kind, body) {
            (MessageKind::Place, Body::Fields(fields)) => self.place(&head, &fields),
            (MessageKind::Grant, _) => self.grant(from, &head),
            (MessageKind::Credit, _) => {
                if let Some(flow) = self.flows.get_mut(from.rank as usize) {
                    flow.refund(head.total, self.limits.credit());
                }
            }
            (MessageKind::Value, Body::Data(data)) => self.value(&head, data),
            (MessageKind::Removed, _) => self.removed(&head),
            (MessageKind::Awaited, Body::Fields(fields)) => self.note_awaited(&head, &fields),
            (MessageKind::Failed, Body::Fields(fields)) => {
                match failed::decode(&fields, head.key) {
                    Some(failure) => self.failed(&head, failure),
                    None => self.fault(DropReason::Unreadable),
                }
            }
            _ => self.fault(DropReason::Unreadable),
        }
        self.go_on();
    }

    /// Placement of a key; or a setting to provide, or in force.
    fn place(&mut self, head: &Header, fields: &[u8]) {
        let provide = head.flags & flags::PROVIDE != 0;
        if head.setting > 0 {
            return self.setting_placed(head, provide, fields);
        }
        let Some(place) = Placement::decode(fields) else {
            return self.fault(DropReason::Unreadable);
        };
        let servers = self.flows.len();
        if place.servers.iter().any(|server| usize::from(*server) >= servers) {
            return self.fault(DropReason::Misfit);
        }
        let key = self.keys.get_or_default(head.key);
        key.set_place(head.generation, place);
        self.touched.add(head.key);
        if provide {
            return self.provide(head);
        }
        match self.ops.get(head.request).map(|op| &op.what) {
            Some(OperationKind::Init { .. }) => {
                self.keys.get_or_default(head.key).note_made(head.request);
                self.finish(head.request, Ok(()));
            }
            Some(OperationKind::Learn(CatchUpTarget::Key(_))) => {
                let (op, ours) = (head.request, self.tally.second_hash(head.key));
                if ours != 0 && head.total != 0 && ours != head.total {
                    return self.finish(op, Err(other_name(head.key)));
                }
                let fields = head.key.to_le_bytes().to_vec();
                self.actions.push(WorkerAction::Told { op, fields });
                self.finish(op, Ok(()));
            }
            _ => {}
        }
    }

    /// Sends the first value to all servers, as the provider.
    fn provide(&mut self, head: &Header) {
        let op = self.ops.get(head.request).map(|op| &op.what);
        let Some(OperationKind::Init { data, .. }) = op else { return };
        let data = data.clone();
        let Some(place) = self.keys.get(&head.key).and_then(WorkerKey::place).cloned() else {
            return;
        };
        if let Some(op) = self.ops.get_mut(head.request) {
            op.undelivered.restart();
        }
        let total = data.len();
        let fields = place.encode();
        for server in place.servers.iter().copied().collect::<BTreeSet<_>>() {
            let message =
                Message::of_key(MessageKind::Describe, head.key, head.generation, fields.clone());
            self.post(Peer::server(server.into()), message);
        }
        for (slice, server) in (0..).zip(&place.servers) {
            let (offset, len) = place.range(slice);
            let mut message =
                Message::of_key(MessageKind::Init, head.key, head.generation, Vec::new());
            message.head.slice = slice;
            message.head.offset = offset;
            message.head.total = total;
            message.body = Body::Data(data.part(offset, len));
            self.send_awaited(head.request, Peer::server((*server).into()), message, 0);
        }
    }

    fn setting_placed(&mut self, head: &Header, provide: bool, decided: &[u8]) {
        let id = self.setting_of(head);
        let Some(op) = self.ops.get_mut(id) else { return };
        let (fields, version) = match &op.what {
            OperationKind::Set { fields, version, .. } => (fields.clone(), *version),
            OperationKind::Learn(CatchUpTarget::Setting(version)) if !provide => {
                self.settings = self.settings.max(*version);
                (Vec::new(), *version)
            }
            _ => return,
        };
        if !provide {
            if !decided.is_empty() {
                self.actions.push(WorkerAction::Told { op: id, fields: decided.to_vec() });
            }
            if head.flags & flags::DIFFERS != 0 {
                return;
            }
            self.setting = self.setting.max(version);
            self.touched.add_all();
            return self.finish(id, Ok(()));
        }
        op.undelivered.restart();
        for server in 0..self.limits.servers {
            let mut message = Message::new(MessageKind::Setting, fields.clone());
            message.head.setting = version;
            self.send_awaited(id, Peer::server(server), message, CONTROL);
        }
    }

    fn value(&mut self, head: &Header, data: D) {
        let key = self.keys.get_mut(&head.key);
        let Some(key) = key.filter(|key| key.generation() == head.generation) else { return };
        if self.limits.mode == Mode::Sync {
            key.note_closed(head.slice, head.round);
        }
        let Some((op, at)) = self.asked(head, data.len()) else {
            return self.check_late(head, data.len());
        };
        let abandoned = op.abandoned;
        if let Some(op) = self.ops.get_mut(head.request) {
            op.unanswered.remove(head.slice);
        }
        if !abandoned {
            let Header { request: op, slice, round, .. } = *head;
            self.actions.push(WorkerAction::Fill { op, slice, round, at, data });
        }
        self.finish_if_complete(head.request);
    }

    /// Operation that takes a slice of its value, and the offset of the slice.
    pub(super) fn awaits(&self, head: &Header, len: u64) -> Option<(OpId, u64)> {
        let (op, at) = self.asked(head, len)?;
        (!op.abandoned && op.wants_whole_value()).then_some((head.request, at))
    }

    /// Operation that has asked for a slice, and the offset of the slice.
    fn asked(&self, head: &Header, len: u64) -> Option<(&Operation<D>, u64)> {
        let op = self.ops.get(head.request).filter(|op| op.key == head.key)?;
        let key = self.keys.get(&head.key).filter(|key| key.slices().is_some())?;
        if key.generation() != head.generation {
            return None;
        }
        let (at, expected) = key.range(head.slice);
        let fits = !op.wants_whole_value() || len == expected;
        (fits && op.unanswered.contains(head.slice)).then_some((op, at))
    }

    fn failed(&mut self, head: &Header, failure: Failure) {
        if self.ops.get(head.request).is_some() {
            if failure.reason == Reason::KeyNotFound && self.seeks(head) {
                return;
            }
            if failure.reason != Reason::PeerLost {
                return self.finish(head.request, Err(failure));
            }
            let text = [words("the round cannot close: "), failure.text.clone()].concat();
            self.finish(head.request, Err(Failure { text, ..failure }));
            // A server may know of a loss before the scheduler's book arrives here.
            if self.limits.on_loss == OnLoss::Fail {
                self.lose_rounds(&failure);
            }
            return;
        }
        // No worker has initialised the key: operations that wait for it fail, up to its init.
        let Some(key) = self.keys.get_mut(&head.key) else { return };
        self.touched.add(head.key);
        if key.stop_search(head.request) {
            for id in key.queue().collect::<Vec<_>>() {
                match self.ops.get(id) {
                    Some(op) if op.is_over() => {}
                    // Requested after the search, it searches again.
                    Some(_) if id > head.request => break,
                    Some(Operation { what: OperationKind::Init { .. }, .. }) => break,
                    _ => self.finish(id, Err(failure.clone())),
                }
            }
        }
    }

    /// Searches a key again for a pull, if the other workers may have moved it: a worker that is done takes
    /// no part in that.
    fn seeks(&mut self, head: &Header) -> bool {
        let (id, key) = (head.request, head.key);
        let Some(op) = self.ops.get_mut(id).filter(|_| self.pushes == PushPhase::Announced) else {
            return false;
        };
        let OperationKind::Pull { wanted, sought, .. } = &mut op.what else { return false };
        let Some(state) = self.keys.get_mut(&key) else { return false };
        let is_known = state.place().is_some() && state.generation() == head.generation;
        if is_known && !*sought {
            state.forget();
        }
        // A query of slices has no meaning for the slices of another generation.
        if !wanted.is_empty() || (is_known && *sought) {
            return false;
        }
        if !std::mem::replace(sought, true) {
            op.started = false;
            op.unanswered = Slices::default();
            self.waiting.insert(id);
            self.pump(key);
        }
        true
    }

    /// A server has acknowledged the message of this token.
    pub(super) fn delivered(&mut self, server: u32, token: DeliveryToken) {
        let id = token.operation;
        if let Some(op) = self.ops.get_mut(id) {
            op.undelivered.arrive(server, token.attempt);
            self.touched.add(op.key);
            self.finish_if_complete(id);
            self.go_on();
        }
    }

    /// Sends a message whose acknowledgement the operation waits for.
    fn send_awaited(&mut self, id: OpId, to: Peer, mut message: Message<D>, priority: i32) {
        message.head.request = id;
        let token = self.ops.get_mut(id).map(|op| {
            let attempt = op.undelivered.send(to.rank);
            DeliveryToken { operation: id, attempt }
        });
        self.letters.push(OutgoingMessage { to, message, priority, token });
    }

    fn post(&mut self, to: Peer, message: Message<D>) {
        self.letters.push(OutgoingMessage { to, message, priority: CONTROL, token: None });
    }

    /// Ends an operation, or starts its next stage, if all its messages are acknowledged and all answers are
    /// here.
    fn finish_if_complete(&mut self, id: OpId) {
        let Some(op) = self.ops.get(id) else { return };
        let announces = self.announcing.is_some_and(|(by, _)| by == id);
        if announces || !op.is_complete() {
            return;
        }
        let (key, generation) = (op.key, self.keys.get(&op.key).map_or(0, WorkerKey::generation));
        match &op.what {
            OperationKind::Init { .. } => {
                let mut message = Message::of_key(MessageKind::Ready, key, generation, Vec::new());
                message.head.request = id;
                self.post(DIRECTORY, message);
                self.finish_if_given_up(id);
            }
            OperationKind::Set { version, .. } => {
                let mut message = Message::new(MessageKind::Ready, Vec::new());
                message.head.setting = *version;
                message.head.request = id;
                self.post(DIRECTORY, message);
            }
            OperationKind::Push { .. }
            | OperationKind::Pull { .. }
            | OperationKind::Restore { .. }
            | OperationKind::Find
            | OperationKind::Done => {
                self.finish(id, Ok(()));
            }
            OperationKind::Close => self.wants.push(SchedulerRequest::Leave),
            OperationKind::Learn(_)
            | OperationKind::Remove { .. }
            | OperationKind::Barrier { .. } => {}
        }
    }

    /// Ends an operation, with an action unless the driver has abandoned it.
    fn finish(&mut self, id: OpId, result: Result<(), Failure>) {
        let Some(op) = self.ops.remove(id) else { return };
        self.waiting.remove(&id);
        self.collective.remove(&id);
        if self.changes.remove(&id) {
            self.touched.add_all();
        }
        self.touched.add(op.key);
        if let Some(key) = self.keys.get_mut(&op.key) {
            key.leave(id);
        }
        if matches!(op.what, OperationKind::Close) {
            self.ended = true;
        }
        if !op.abandoned {
            let ended = self.tally.ended(&op, result.is_ok());
            let result = result.map_err(|failure| errors::during(&op, failure));
            self.actions.push(WorkerAction::Finished { op: id, ended, result });
        }
    }

    /// Starts all operations that may start.
    fn pump_all(&mut self) {
        self.touched.add_all();
        self.go_on();
    }

    /// Starts operations on touched keys, and operations without a key.
    fn go_on(&mut self) {
        if !self.started || self.ended {
            return;
        }
        if self.waiting.is_empty() {
            self.touched.clear();
            return self.pump_collective();
        }
        let mut touched = std::mem::take(&mut self.touched);
        touched.fill(|| {
            let waiting = self.waiting.iter().inspect(|_| self.note_look());
            let waiting = waiting.filter_map(|id| self.ops.get(*id));
            let keys: BTreeSet<_> = waiting.map(|op| op.key).collect();
            keys.into_iter().collect()
        });
        self.touched = touched;
        // An operation that starts may fail at once, which lets others of its key start.
        while let Some(key) = self.touched.pop() {
            self.pump(key);
        }
        self.pump_collective();
    }

    /// Ends overdue operations, and queries the members that others wait for.
    pub(super) fn tick(&mut self, now: Time) {
        if self.announcing.is_some() && !self.ended {
            self.announce_more();
            self.go_on();
        }
        if now < self.wake {
            return;
        }
        let due = |op: &Operation<D>| !op.abandoned && op.next_moment() <= now;
        for id in self.ids(due).into_iter().take(MOST_DUE) {
            let Some(op) = self.ops.get_mut(id) else { continue };
            if now < op.deadline {
                self.look_after(id, now);
                continue;
            }
            self.overdue(id, now);
        }
        let live = self.ops.iter().map(|(_, op)| op).filter(|op| !op.abandoned);
        self.wake = live.map(Operation::next_moment).min().unwrap_or(Time::MAX);
        self.go_on();
    }

    /// Moment of the next `tick`, at the latest.
    pub(super) fn wake_at(&self) -> Time {
        if self.announcing.is_some() && !self.ended { 0 } else { self.wake }
    }

    fn ask(&mut self, id: OpId) {
        let Some(op) = self.ops.get(id) else { return };
        let searches = self.keys.get(&op.key).is_some_and(WorkerKey::is_searched);
        let mut message = Message::of_key(MessageKind::Ask, op.key, 0, Vec::new());
        message.head.request = id;
        let mut to = DIRECTORY;
        match &op.what {
            // The operation waits for an earlier call, or for the init of its key.
            _ if !op.started && (op.is_collective() || !searches) => return,
            _ if !op.started => {}
            OperationKind::Barrier { number, .. } => {
                return self.wants.push(SchedulerRequest::AskBarrier(*number));
            }
            OperationKind::Set { version, .. } => message.head.setting = *version,
            OperationKind::Push { .. } | OperationKind::Pull { .. } => {
                let Some(key) = self.keys.get(&op.key) else { return };
                let slice = op.unanswered.first().or_else(|| self.offered_slice(id));
                let Some((slice, place)) = slice.zip(key.place()) else { return };
                let Some(server) = place.servers.get(slice as usize) else { return };
                to = Peer::server((*server).into());
                message.head.slice = slice;
                message.head.generation = key.generation();
                message.head.round = op.round();
            }
            OperationKind::Init { .. }
            | OperationKind::Remove { .. }
            | OperationKind::Restore { .. }
            | OperationKind::Find => {}
            OperationKind::Learn(_) | OperationKind::Done | OperationKind::Close => return,
        }
        // Lowest priority: queries of observers must not delay the messages that the operation waits for.
        self.letters.push(OutgoingMessage { to, message, priority: LAST, token: None });
    }
}

/// Failure of a learned key whose name in the job is not the one here.
fn other_name(key: u64) -> Failure {
    let text = ": the job has another name with the same 63-bit hash; rename one of the two";
    Failure { reason: Reason::NameCollision, text: naming("", key, text) }
}
