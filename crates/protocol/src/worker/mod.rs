//! A worker (also: client): requests of the user's program become operations, these become slices for the
//! servers, and answers become results. Requests on one key take effect in their order.

mod cancellation;
mod collective;
mod credit;
mod errors;
mod facts;
mod keys;
mod meeting;
mod operation;
mod requests;
mod resume;
mod role;
#[cfg(test)]
mod tests;
mod touched;
mod undelivered;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::vec::Drain;

use smallvec::SmallVec;

use super::bit_set::BitSet;
use super::drops::{DropReason, Handled};
use super::job::{
    AT_ONCE, Data, DeliveryToken, Failure, Limits, Mode, OnLoss, Peer, Reason, Role, Time, naming,
    take_all, words,
};
use super::machine::{NodeRole as _, SchedulerRequest};
use super::message::kinds::{Ask, Describe, Failed, Init, Place, Ready, Setting, Value};
use super::message::{
    COLLECTIVE, Content, Decision, GroupTerms, Header, Message, Placement, SliceName,
};
use super::peers::OutgoingMessage;
use super::placement::SharedPlaces;
use super::sequence_map::SequenceMap;
use super::stream::{CONTROL, LAST};
use super::table::Table;
use credit::FlowControl;
pub use facts::{Ended, KeyNameLookup};
use keys::WorkerKey;
use meeting::Meeting;
use operation::{CatchUpTarget, Operation, OperationKind};
pub use operation::{OpId, PullDependency};
use resume::Resumption;
use touched::TouchedKeys;

/// Maximum operations whose timers are handled in one step; the next step has the rest. Each step looks at
/// all operations, so that a smaller maximum would take quadratic time.
const MOST_DUE: usize = 16 * AT_ONCE;

/// Server of the directory.
const DIRECTORY: Peer = Peer { role: Role::Server, rank: 0 };

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

/// Whether the program may push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PushPhase {
    Open,
    /// The program has announced the end of its pushes.
    Over,
    /// The number of pushes of each key was sent to the servers.
    Announced,
}

/// The machine of one worker, the role of a [`Node`](crate::Node).
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
    places: SharedPlaces,
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
    /// The same of agreements of collective calls.
    agreement_given_up: Option<(u64, Vec<u8>)>,
    agreements: u64,
    /// Version of the setting in force.
    setting: u64,
    /// Of the pushes that are requested next.
    weight: u64,
    part: u64,
    scale: u64,
    pushes: PushPhase,
    /// Operation that announces the number of pushes of each key, and the position of the next key in the
    /// table.
    announcing: Option<(OpId, usize)>,
    resumption: Resumption,
    meeting: Meeting,
    /// The group of this machine; None for the workers of the job.
    group: Option<GroupTerms>,
    closing: bool,
    ended: bool,
    /// A loss after which no round closes.
    rounds_lost: Option<Failure>,
    /// A loss after which only leaving succeeds.
    all_lost: Option<Failure>,
    letters: Vec<OutgoingMessage<D>>,
    wants: Vec<SchedulerRequest>,
    actions: Vec<WorkerAction<D>>,
    tally: Box<facts::WorkerTally>,
    /// Count of looks at operations.
    #[cfg(test)]
    looks: std::cell::Cell<u64>,
}

impl<D: Data> Worker<D> {
    /// Actions since the last call, for the driver to carry out. Called after every event of the node.
    pub fn actions(&mut self) -> Drain<'_, WorkerAction<D>> {
        take_all(&mut self.actions)
    }

    /// Shape and placement of a key, once this worker knows them.
    pub fn place_of(&self, key: u64) -> Option<&Arc<Placement>> {
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

    /// Takes a message of a server, or returns the reason to drop it.
    pub(super) fn message(&mut self, from: Peer, message: Message<D>) -> Handled {
        let Message { head, body } = message;
        if head.request >= self.next_op {
            return Err(DropReason::Unasked);
        }
        let handled = match Content::read(&head, body)? {
            Content::Place(place) => self.place(place),
            Content::Grant(grant) => self.grant(from, &grant),
            Content::Credit(credit) => self.refund(from, credit.bytes),
            Content::Value(value) => self.value(value),
            Content::Removed(removed) => self.removed(&removed),
            Content::Awaited(awaited) => match self.ops.get_mut(awaited.request) {
                Some(op) => {
                    op.awaited = Some(Box::new(awaited.peers));
                    Ok(())
                }
                None => Err(DropReason::Late),
            },
            Content::Failed(failed) => self.failed(failed),
            Content::Resumed(resumed) => self.resumed_at(from, resumed.number),
            Content::Formed(formed) => self.formed(from, formed.request),
            _ => Err(DropReason::Misdirected),
        };
        self.go_on();
        handled
    }

    /// A server returns credit.
    fn refund(&mut self, from: Peer, bytes: u64) -> Handled {
        let flow = self.flows.get_mut(from.rank as usize).ok_or(DropReason::Misdirected)?;
        if flow.refund(bytes) { Ok(()) } else { Err(DropReason::Misfit) }
    }

    /// Placement of a key; or a setting to provide, or in force.
    fn place(&mut self, said: Place) -> Handled {
        let Place { key, generation, name, setting, request, provide, differs, decision } = said;
        let place = match decision {
            Decision::Key(place) => place,
            Decision::Setting(decided) => {
                return self.setting_placed((request, setting), provide, differs, decided);
            }
        };
        let servers = self.flows.len();
        if place.servers.iter().any(|server| usize::from(*server) >= servers) {
            return Err(DropReason::Misfit);
        }
        let place = self.places.share(place);
        self.keys.get_or_default(key).set_place(generation, place, self.resumption.base());
        self.touched.add(key);
        if provide {
            return self.provide(key, generation, request);
        }
        match self.ops.get(request).map(|op| &op.what) {
            Some(OperationKind::Init { .. }) => {
                self.keys.get_or_default(key).note_made(request);
                self.finish(request, Ok(()));
            }
            Some(OperationKind::Learn(CatchUpTarget::Key(_))) => {
                let ours = self.tally.second_hash(key);
                if ours != 0 && name != 0 && ours != name {
                    self.finish(request, Err(other_name(key)));
                    return Ok(());
                }
                let fields = key.to_le_bytes().to_vec();
                self.actions.push(WorkerAction::Told { op: request, fields });
                self.finish(request, Ok(()));
            }
            // The answer to a search, whose operations start now.
            _ => {}
        }
        Ok(())
    }

    /// Sends the first value to all servers, as the provider.
    fn provide(&mut self, key: u64, generation: u32, request: OpId) -> Handled {
        let Some(OperationKind::Init { data, .. }) = self.ops.get(request).map(|op| &op.what)
        else {
            return Err(DropReason::Late);
        };
        let data = data.clone();
        let place = self.keys.get(&key).and_then(WorkerKey::place).cloned();
        let place = place.ok_or(DropReason::Late)?;
        if let Some(op) = self.ops.get_mut(request) {
            op.undelivered.restart();
        }
        let mut servers: SmallVec<[u16; 4]> = SmallVec::from_slice(&place.servers);
        servers.sort_unstable();
        servers.dedup();
        for server in servers {
            let place = Arc::clone(&place);
            self.post(Peer::server(server.into()), Describe { key, generation, place });
        }
        let total = data.len();
        for (slice, server) in (0..).zip(&place.servers) {
            let (offset, len) = place.range(slice);
            let data = data.part(offset, len);
            let init = Init { key, generation, slice, offset, total, request, data };
            self.send_awaited(request, Peer::server((*server).into()), init, 0);
        }
        Ok(())
    }

    /// A setting to provide, or the decision on one, or on a collective call.
    fn setting_placed(
        &mut self,
        (request, version): (OpId, u64),
        provide: bool,
        differs: bool,
        decided: Vec<u8>,
    ) -> Handled {
        let id = self.setting_of(request, version);
        let op = self.ops.get_mut(id).ok_or(DropReason::Late)?;
        let (fields, version) = match &op.what {
            OperationKind::Set { fields, version, .. } => (fields.clone(), *version),
            OperationKind::Learn(CatchUpTarget::Setting(version)) if !provide => {
                self.settings = self.settings.max(*version);
                (Vec::new(), *version)
            }
            _ => return Err(DropReason::Misfit),
        };
        if provide && version > COLLECTIVE {
            return Err(DropReason::Misfit);
        }
        if provide {
            op.undelivered.restart();
            for server in 0..self.limits.servers {
                let setting = Setting { version, request: id, fields: fields.clone() };
                self.send_awaited(id, Peer::server(server), setting, CONTROL);
            }
            return Ok(());
        }
        if !decided.is_empty() {
            self.actions.push(WorkerAction::Told { op: id, fields: decided });
        }
        if !differs {
            if version < COLLECTIVE {
                self.setting = self.setting.max(version);
                self.touched.add_all();
            }
            self.finish(id, Ok(()));
        }
        Ok(())
    }

    fn value(&mut self, value: Value<D>) -> Handled {
        let (name, len) = (value.name(), value.data.len());
        let Value { key, generation, slice, round, request, data } = value;
        let state = self.keys.get_mut(&key);
        let state = state.filter(|key| key.generation() == generation).ok_or(DropReason::Late)?;
        if self.limits.mode == Mode::Sync {
            state.note_closed(slice, round);
        }
        let Some((op, at)) = self.asked(request, name, len) else {
            return Err(self.check_late(request, name, len));
        };
        let abandoned = op.abandoned;
        if let Some(op) = self.ops.get_mut(request) {
            op.unanswered.remove(slice);
        }
        if !abandoned {
            self.actions.push(WorkerAction::Fill { op: request, slice, round, at, data });
        }
        self.finish_if_complete(request);
        Ok(())
    }

    /// Operation that takes a slice of its value, and the offset of the slice.
    pub(super) fn awaits(&self, head: &Header, len: u64) -> Option<(OpId, u64)> {
        let (op, at) = self.asked(head.request, head.slice_name(), len)?;
        (!op.abandoned && op.wants_whole_value()).then_some((head.request, at))
    }

    /// Operation that has asked for a slice, and the offset of the slice.
    fn asked(&self, request: OpId, name: SliceName, len: u64) -> Option<(&Operation<D>, u64)> {
        let op = self.ops.get(request).filter(|op| op.key == name.key)?;
        let key = self.keys.get(&name.key).filter(|key| key.slices().is_some())?;
        if key.generation() != name.generation {
            return None;
        }
        let (at, expected) = key.range(name.slice);
        let fits = !op.wants_whole_value() || len == expected;
        (fits && op.unanswered.contains(name.slice)).then_some((op, at))
    }

    /// Reason to drop a value that no operation takes: a value of another key, or of a slice outside of the
    /// key, does not fit; any other is late.
    fn check_late(&self, request: OpId, name: SliceName, len: u64) -> DropReason {
        let Some(op) = self.ops.get(request) else { return DropReason::Late };
        let key = self.keys.get(&name.key);
        let slices = key.and_then(WorkerKey::slices).unwrap_or_default();
        let is_inside = slices.is_empty() || slices.contains(&name.slice);
        let expected = key.map_or(0, |key| key.range(name.slice).1);
        let waits = op.unanswered.contains(name.slice) && op.wants_whole_value();
        let fits = op.key == name.key && is_inside && (!waits || len == expected);
        if fits { DropReason::Late } else { DropReason::Misfit }
    }

    fn failed(&mut self, failed: Failed) -> Handled {
        let Failed { key: id, generation, request, failure, .. } = failed;
        if self.ops.get(request).is_some() {
            if failure.reason == Reason::KeyNotFound && self.seeks(request, id, generation) {
                return Ok(());
            }
            if failure.reason != Reason::PeerLost {
                self.finish(request, Err(failure));
                return Ok(());
            }
            let text = [words("the round cannot close: "), failure.text.clone()].concat();
            self.finish(request, Err(Failure { reason: failure.reason, text }));
            // A server may know of a loss before the scheduler's book arrives here.
            if self.limits.on_loss == OnLoss::Fail {
                self.lose_rounds(&failure);
            }
            return Ok(());
        }
        // No worker has initialised the key: operations that wait for it fail, up to its init.
        let key = self.keys.get_mut(&id).ok_or(DropReason::Late)?;
        self.touched.add(id);
        if !key.stop_search(request) {
            return Err(DropReason::Late);
        }
        for op in key.queue().collect::<Vec<_>>() {
            match self.ops.get(op) {
                Some(op) if op.is_over() => {}
                // Requested after the search, it searches again.
                Some(_) if op > request => break,
                Some(Operation { what: OperationKind::Init { .. }, .. }) => break,
                _ => self.finish(op, Err(failure.clone())),
            }
        }
        Ok(())
    }

    /// Searches a key again for a pull, if the other workers may have moved it: a worker that is done takes
    /// no part in that.
    fn seeks(&mut self, id: OpId, key: u64, generation: u32) -> bool {
        let Some(op) = self.ops.get_mut(id).filter(|_| self.pushes == PushPhase::Announced) else {
            return false;
        };
        let OperationKind::Pull { wanted, sought, .. } = &mut op.what else { return false };
        let Some(state) = self.keys.get_mut(&key) else { return false };
        let is_known = state.place().is_some() && state.generation() == generation;
        if is_known && !*sought {
            state.forget();
        }
        // A query of slices has no meaning for the slices of another generation.
        if wanted.is_some() || (is_known && *sought) {
            return false;
        }
        if !std::mem::replace(sought, true) {
            op.started = false;
            op.unanswered = BitSet::default();
            self.waiting.insert(id);
            self.pump(key);
        }
        true
    }

    /// Sends a message whose acknowledgement the operation waits for.
    fn send_awaited(&mut self, id: OpId, to: Peer, message: impl Into<Message<D>>, priority: i32) {
        let mut message = message.into();
        message.head.request = id;
        let token = self.ops.get_mut(id).map(|op| {
            let attempt = op.undelivered.send(to.rank);
            DeliveryToken { operation: id, attempt, group: 0 }
        });
        self.letters.push(OutgoingMessage { to, message, priority, token });
    }

    fn post(&mut self, to: Peer, message: impl Into<Message<D>>) {
        let message = message.into();
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
                self.post(DIRECTORY, Ready { key, generation, setting: 0, request: id });
                self.finish_if_given_up(id);
            }
            OperationKind::Set { version, .. } => {
                let setting = *version;
                self.post(DIRECTORY, Ready { key: 0, generation: 0, setting, request: id });
            }
            OperationKind::Push { .. }
            | OperationKind::Pull { .. }
            | OperationKind::Restore { .. }
            | OperationKind::Find
            | OperationKind::Form
            | OperationKind::Done => {
                self.finish(id, Ok(()));
            }
            OperationKind::Close if self.group.is_some() => self.finish(id, Ok(())),
            OperationKind::Close => self.wants.push(SchedulerRequest::Leave),
            OperationKind::Learn(_)
            | OperationKind::Remove { .. }
            | OperationKind::Barrier { .. }
            | OperationKind::Meet { .. }
            | OperationKind::Resume { .. } => {}
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

    fn ask(&mut self, id: OpId) {
        let Some(op) = self.ops.get(id) else { return };
        let searches = self.keys.get(&op.key).is_some_and(WorkerKey::is_searched);
        let (key, request) = (op.key, id);
        let mut ask = Ask { key, generation: 0, slice: 0, round: 0, request, setting: 0 };
        let mut to = DIRECTORY;
        match &op.what {
            // The operation waits for an earlier call, or for the init of its key.
            _ if !op.started && (op.is_collective() || !searches) => return,
            _ if !op.started => {}
            OperationKind::Barrier { number, .. } => {
                return self.wants.push(SchedulerRequest::AskBarrier(*number));
            }
            OperationKind::Resume { number } => {
                return self.wants.push(SchedulerRequest::AskResume(*number));
            }
            OperationKind::Meet { .. } => {
                return self.wants.push(SchedulerRequest::AskMeeting);
            }
            OperationKind::Set { version, .. } => ask.setting = *version,
            OperationKind::Push { .. } | OperationKind::Pull { .. } => {
                let Some(key) = self.keys.get(&op.key) else { return };
                let slice = op.unanswered.first().or_else(|| self.offered_slice(id));
                let Some((slice, place)) = slice.zip(key.place()) else { return };
                let Some(server) = place.servers.get(slice as usize) else { return };
                to = Peer::server((*server).into());
                (ask.slice, ask.generation, ask.round) = (slice, key.generation(), op.round());
            }
            OperationKind::Init { .. }
            | OperationKind::Remove { .. }
            | OperationKind::Restore { .. }
            | OperationKind::Find => {}
            OperationKind::Learn(_)
            | OperationKind::Done
            | OperationKind::Form
            | OperationKind::Close => return,
        }
        // Lowest priority: queries of observers must not delay the messages that the operation waits for.
        self.letters.push(OutgoingMessage { to, message: ask.into(), priority: LAST, token: None });
    }
}

/// Failure of a learned key whose name in the job is not the one here.
fn other_name(key: u64) -> Failure {
    let text = ": the job has another name with the same 63-bit hash; rename one of the two";
    Failure { reason: Reason::NameCollision, text: naming("", key, text) }
}
