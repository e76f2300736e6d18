//! Requests of the user's program, and how they become messages.

use super::errors;
use super::operation::{
    CatchUpTarget, OpId, Operation, OperationKind, PullDependency, RemovalRollback,
};
use super::{DIRECTORY, PushPhase, Worker, WorkerKey};
use crate::drops::{DropReason, Handled};
use crate::job::{Data, Failure, Mode, Peer, Reason, Time, naming};
use crate::message::kinds::{Declare, Grant, Offer, Pull, Push, Remove, Restore};
use crate::message::{COLLECTIVE, KeySpec, Proposal, ROUNDS_OVER};
use crate::peers::OutgoingMessage;
use crate::stream::{CONTROL, LAST};

impl<D: Data> Worker<D> {
    /// Initialises a key; every rank makes the call. The value of the lowest rank counts, the others must
    /// have its shape and dtype.
    ///
    /// # Errors
    /// The value has not the bytes of `spec`, or no request can succeed any more.
    pub fn init(
        &mut self,
        key: u64,
        spec: KeySpec,
        data: D,
        now: Time,
        deadline: Time,
    ) -> Result<OpId, Failure> {
        if spec.bytes() != Some(data.len()) {
            let text = naming("init: ", key, ": the value has not the bytes of its shape");
            return Err(Failure { reason: Reason::Invalid, text });
        }
        self.request(OperationKind::Init { spec: Box::new(spec), data }, key, now, deadline)
    }

    /// Pushes a value: the next round of this worker on the key. Ends when all servers have acknowledged it,
    /// which may be before the round closes.
    ///
    /// # Errors
    /// No push can succeed any more: the worker is done or closed, or a loss has ended the rounds.
    pub fn push(
        &mut self,
        key: u64,
        data: D,
        priority: i32,
        now: Time,
        deadline: Time,
    ) -> Result<OpId, Failure> {
        self.request(self.a_push(data, priority, false), key, now, deadline)
    }

    /// Pushes a value and pulls the value of the push's own round.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn pushpull(
        &mut self,
        key: u64,
        data: D,
        priority: i32,
        now: Time,
        deadline: Time,
    ) -> Result<OpId, Failure> {
        self.request(self.a_push(data, priority, true), key, now, deadline)
    }

    /// Gives the pushes that are requested from now on a weight: the bits of a float64, opaque to the protocol; 0
    /// for none.
    pub fn weigh(&mut self, weight: u64) {
        self.weight = weight;
    }

    /// Gives the pushes that are requested from now on their part of the tree of a round: the first leaf and, from
    /// bit 32 on, the number of leaves; opaque to the protocol; 0 for none.
    pub fn set_part(&mut self, part: u64) {
        self.part = part;
    }

    /// Has the sums of the rounds of pushes that are requested from now on multiplied before their merge rules: the
    /// bits of a float64, opaque to the protocol; 0 for no scale.
    pub fn scale(&mut self, scale: u64) {
        self.scale = scale;
    }

    fn a_push(&self, data: D, priority: i32, answer: bool) -> OperationKind<D> {
        OperationKind::Push {
            round: 0,
            data,
            priority: bounded(priority),
            answer,
            setting: self.settings,
            weight: self.weight,
            part: self.part,
            scale: self.scale,
        }
    }

    /// Pulls the value after all pushes of this worker on the key before it.
    ///
    /// # Errors
    /// No request can succeed any more.
    pub fn pull(
        &mut self,
        key: u64,
        priority: i32,
        now: Time,
        deadline: Time,
    ) -> Result<OpId, Failure> {
        self.a_pull(key, None, (PullDependency::Own, priority), now, deadline)
    }

    /// Pulls with queries: `wanted` is of the bytes of the key, and each part that is a slice has what the server's
    /// driver gets as [`ValueRequest::wanted`](crate::ValueRequest::wanted); an empty one does not query its slice.
    ///
    /// # Errors
    /// No request can succeed any more.
    pub fn pull_wanted(
        &mut self,
        key: u64,
        wanted: D,
        how: (PullDependency, i32),
        now: Time,
        deadline: Time,
    ) -> Result<OpId, Failure> {
        self.a_pull(key, Some(wanted), how, now, deadline)
    }

    fn a_pull(
        &mut self,
        key: u64,
        wanted: Option<D>,
        (after, priority): (PullDependency, i32),
        now: Time,
        deadline: Time,
    ) -> Result<OpId, Failure> {
        let priority = bounded(priority);
        let what = OperationKind::Pull { round: 0, priority, wanted, after, sought: false };
        self.request(what, key, now, deadline)
    }

    /// Replaces value and state of every slice of a key, from a checkpoint: `slices` has their payloads, in
    /// order, opaque to the protocol.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn restore(
        &mut self,
        key: u64,
        slices: Vec<D>,
        now: Time,
        deadline: Time,
    ) -> Result<OpId, Failure> {
        self.request(OperationKind::Restore { slices }, key, now, deadline)
    }

    /// Looks up shape and placement of a key, for [`place_of`](Self::place_of). Ends when the key is
    /// initialised.
    ///
    /// # Errors
    /// No request can succeed any more.
    pub fn find(&mut self, key: u64, now: Time, deadline: Time) -> Result<OpId, Failure> {
        self.request(OperationKind::Find, key, now, deadline)
    }

    /// Removes a key; it is removed when every active worker has made the call. Before the deadline the
    /// removal is withdrawn, and the key kept.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn remove(&mut self, key: u64, now: Time, deadline: Time) -> Result<OpId, Failure> {
        self.request(OperationKind::Remove { back: RemovalRollback::No }, key, now, deadline)
    }

    /// Changes the setting of the servers, such as the merge rule; every rank makes the call with the same
    /// fields. Later pushes of this worker wait until it is in force. Empty fields accept the decided
    /// setting, which is an [`Action::Told`](crate::WorkerAction::Told).
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn set(&mut self, fields: Vec<u8>, now: Time, deadline: Time) -> Result<OpId, Failure> {
        let version = self.version_of(&fields, false);
        let id = self.request(OperationKind::Set { version, fields }, 0, now, deadline)?;
        self.settings = version;
        self.setting_given_up = None;
        Ok(id)
    }

    /// Agrees with all workers on the next content of a collective call, which servers do not use: the proposal of
    /// the lowest rank counts. The other ranks fail, or propose nothing and accept it, and learn it as an
    /// [`Action::Told`](crate::WorkerAction::Told).
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn agree(&mut self, fields: Vec<u8>, now: Time, deadline: Time) -> Result<OpId, Failure> {
        let version = self.version_of(&fields, true);
        let id = self.request(OperationKind::Set { version, fields }, 0, now, deadline)?;
        self.agreements = version;
        self.agreement_given_up = None;
        Ok(id)
    }

    /// Learns the next setting that this worker does not know, without a proposal; for a worker that is done.
    ///
    /// # Errors
    /// No request can succeed any more.
    pub fn learn_setting(&mut self, now: Time, deadline: Time) -> Result<OpId, Failure> {
        self.request(
            OperationKind::Learn(CatchUpTarget::Setting(self.settings + 1)),
            0,
            now,
            deadline,
        )
    }

    /// Learns the first existing key from this one on, without a proposal; for a worker that is done.
    ///
    /// # Errors
    /// No request can succeed any more.
    pub fn learn_key(&mut self, from: u64, now: Time, deadline: Time) -> Result<OpId, Failure> {
        self.request(OperationKind::Learn(CatchUpTarget::Key(from)), 0, now, deadline)
    }

    /// Waits until every active worker has made the call.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn barrier(&mut self, now: Time, deadline: Time) -> Result<OpId, Failure> {
        self.barrier_of("barrier", now, deadline)
    }

    /// A barrier that is part of the call with this name: after a timeout, the next one of the call joins the
    /// barrier that was given up.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn barrier_of(
        &mut self,
        call: &'static str,
        now: Time,
        deadline: Time,
    ) -> Result<OpId, Failure> {
        let again = self.barrier_given_up == Some((self.barriers, call));
        let number = if again { self.barriers } else { self.barriers + 1 };
        let id = self.request(OperationKind::Barrier { number, call }, 0, now, deadline)?;
        self.barriers = number;
        // A given-up barrier is joined once.
        self.barrier_given_up = None;
        Ok(id)
    }

    /// Announces the end of this worker's pushes; it may still pull. Rounds and barriers no longer wait for
    /// it.
    ///
    /// # Errors
    /// The worker is closed, or has ended.
    pub fn finish_pushing(&mut self, now: Time, deadline: Time) -> Result<OpId, Failure> {
        let id = self.request(OperationKind::Done, 0, now, deadline)?;
        self.resumption.note_done();
        if self.pushes == PushPhase::Open {
            self.pushes = PushPhase::Over;
        }
        Ok(id)
    }

    /// Leaves the job, once all operations before it have ended. Later requests fail.
    ///
    /// # Errors
    /// The worker is closed, or has ended.
    pub fn close(&mut self, now: Time, deadline: Time) -> Result<OpId, Failure> {
        let id = self.request(OperationKind::Close, 0, now, deadline)?;
        self.closing = true;
        Ok(id)
    }

    pub(super) fn request(
        &mut self,
        what: OperationKind<D>,
        key: u64,
        now: Time,
        deadline: Time,
    ) -> Result<OpId, Failure> {
        let op = Operation::new(what, key, now, deadline);
        self.admit(&op).map_err(|failure| errors::during(&op, failure))?;
        let id = self.next_op;
        self.next_op += 1;
        self.wake = self.wake.min(op.first_moment());
        if matches!(op.what, OperationKind::Push { .. }) {
            self.resumption.note_push();
        }
        let is_collective = op.is_collective();
        let is_change =
            matches!(op.what, OperationKind::Set { version, .. } if version < COLLECTIVE);
        self.ops.insert(id, op);
        if is_collective {
            self.collective.insert(id);
            if is_change {
                self.changes.insert(id);
            }
            self.go_on();
            return Ok(id);
        }
        self.keys.get_or_default(key).enter(id);
        if self.started && !self.ended {
            self.pump(key);
        }
        if self.ops.get(id).is_some_and(|op| !op.started) {
            self.waiting.insert(id);
        }
        if self.touched.has_keys() {
            self.go_on();
        }
        Ok(id)
    }

    /// Refuses a request that can never succeed.
    fn admit(&self, op: &Operation<D>) -> Result<(), Failure> {
        if self.closing {
            return Err(Failure::new(Reason::Closed, "the store is closed"));
        }
        if let Some(lost) = self.all_lost.as_ref().filter(|_| self.ended || !op.is_leaving()) {
            return Err(lost.clone());
        }
        if let Some(lost) = self.rounds_lost.as_ref().filter(|_| op.needs_all_workers()) {
            return Err(lost.clone());
        }
        let is_resume = matches!(op.what, OperationKind::Resume { .. });
        if self.pushes != PushPhase::Open && op.needs_all_workers() && !is_resume {
            let text = "this worker is done; it may only pull and close";
            return Err(Failure::new(Reason::Invalid, text));
        }
        Ok(())
    }

    /// Starts operations on a key, in the order of the calls, up to one that must wait for those before it.
    pub(super) fn pump(&mut self, key: u64) {
        let mut queue = std::mem::take(&mut self.queue);
        queue.clear();
        if let Some(state) = self.keys.get(&key) {
            queue.extend(state.queue());
        }
        self.pump_these(key, &queue);
        self.queue = queue;
    }

    /// Starts these operations on a key, oldest first.
    fn pump_these(&mut self, key: u64, queue: &[OpId]) {
        let (mut first, mut value_wanted) = (true, false);
        for &id in queue {
            self.note_look();
            let Some(op) = self.ops.get(id) else { continue };
            let (exclusive, wants_value) = (op.is_exclusive(), op.wants_value());
            if op.is_over() {
                if exclusive && op.is_in_transit() {
                    return;
                }
                first &= !op.is_in_transit();
                continue;
            }
            if !op.started {
                let push = matches!(op.what, OperationKind::Push { .. });
                let blocked =
                    if exclusive { !first } else { push && (value_wanted || self.is_setting(id)) };
                if blocked || !self.start(id, key) {
                    return;
                }
            }
            if exclusive {
                return;
            }
            first &= self.ops.get(id).is_none_or(|op| op.is_over() && !op.is_in_transit());
            value_wanted |= wants_value && !self.ops.get(id).is_some_and(|op| op.abandoned);
        }
    }

    /// Whether a setting of an earlier call is not in force yet.
    fn is_setting(&self, id: OpId) -> bool {
        self.setting < self.settings && self.changes.first().is_some_and(|first| *first < id)
    }

    /// First pending setting before this operation.
    pub(super) fn setting_before(&self, id: OpId) -> Option<&Operation<D>> {
        self.changes.range(..id).find_map(|id| self.ops.get(*id))
    }

    /// Starts one operation; false when it has to wait for the place of its key, or has failed.
    fn start(&mut self, id: OpId, key: u64) -> bool {
        let Some(op) = self.ops.get_mut(id) else { return false };
        if let OperationKind::Init { spec, .. } = &op.what {
            let spec = Some(KeySpec::clone(spec));
            op.start();
            self.wake = self.wake.min(op.first_moment());
            self.waiting.remove(&id);
            self.keys.get_or_default(key).take_gone_unsaid();
            self.declare(id, key, spec);
            return true;
        }
        let state = self.keys.get_or_default(key);
        if matches!(op.what, OperationKind::Remove { .. }) && state.take_gone_unsaid() {
            self.finish(id, Ok(()));
            return false;
        }
        let Some(slices) = state.slices() else {
            let search = self.next_op;
            if state.search(search) {
                self.next_op += 1;
                self.declare(search, key, None);
            }
            return false;
        };
        let expected = state.bytes();
        op.start();
        self.wake = self.wake.min(op.first_moment());
        self.waiting.remove(&id);
        match &mut op.what {
            OperationKind::Push { data, .. } | OperationKind::Pull { wanted: Some(data), .. }
                if data.len() != expected =>
            {
                let text = format!("the value has {} bytes, the key has {expected}", data.len());
                self.finish(id, Err(Failure::new(Reason::Invalid, text)));
                return false;
            }
            OperationKind::Push { round, answer, setting, .. } => {
                *setting = self.setting.min(*setting);
                *round = state.next_round();
                op.unsent = slices.clone().collect();
                if *answer {
                    op.unanswered = slices.clone().collect();
                }
                slices.for_each(|slice| self.send_push(id, slice));
            }
            OperationKind::Pull { round, wanted, after, .. } => {
                *round = match after {
                    PullDependency::Own => state.pushed(),
                    PullDependency::Nothing => 0,
                    PullDependency::All => ROUNDS_OVER,
                };
                let is_asked = |slice: &u32| {
                    wanted.as_ref().is_none_or(|wanted| state.part(*slice, wanted).len() > 0)
                };
                op.unanswered = slices.clone().filter(is_asked).collect();
                for slice in slices {
                    self.send_pull(id, slice);
                }
                self.finish_if_complete(id);
            }
            OperationKind::Restore { slices: parts } => {
                let parts = std::mem::take(parts);
                (0..).zip(parts).for_each(|(slice, part)| self.send_restore(id, slice, part));
                self.finish_if_complete(id);
            }
            OperationKind::Find => self.finish(id, Ok(())),
            OperationKind::Remove { .. } => self.send_remove(id, false),
            _ => {}
        }
        true
    }

    fn declare(&mut self, request: OpId, key: u64, spec: Option<KeySpec>) {
        let proposal = Proposal::Key(self.tally.second_hash(key), spec);
        self.post(
            DIRECTORY,
            Declare { key, setting: 0, request, learn: false, back: false, proposal },
        );
    }

    /// Sends a slice if there is credit, and if its round is not too far ahead; offers it otherwise.
    fn send_push(&mut self, id: OpId, slice: u32) {
        let Some(op) = self.ops.get(id) else { return };
        let (round, key) = (op.round(), op.key);
        let Some(state) = self.keys.get(&key) else { return };
        let Some(server) = state.server_of(slice) else { return };
        let OperationKind::Push { data, .. } = &op.what else { return };
        let len = state.part(slice, data).len();
        let generation = state.generation();
        let lead = self.limits.lead();
        let near = lead.is_none_or(|lead| round <= state.closed(slice).saturating_add(lead));
        let flow = &mut self.flows[server as usize];
        if near && flow.pay(len) {
            return self.send_slice(id, slice, false);
        }
        flow.offer((key, generation, round, slice), id);
        self.post(Peer::server(server), Offer { key, generation, slice, round });
    }

    /// A server grants an offered push.
    pub(super) fn grant(&mut self, from: Peer, grant: &Grant) -> Handled {
        let Grant { key: id, generation, slice, round } = *grant;
        let flow = self.flows.get_mut(from.rank as usize).ok_or(DropReason::Misdirected)?;
        let op = flow.granted((id, generation, round, slice)).ok_or(DropReason::Late)?;
        if let Some(key) = self.keys.get_mut(&id) {
            let behind = match self.limits.mode {
                Mode::Sync => 1,
                Mode::Async { staleness } => staleness.unwrap_or(round),
            };
            key.note_closed(slice, round.saturating_sub(behind));
        }
        self.send_slice(op, slice, true);
        Ok(())
    }

    fn send_slice(&mut self, id: OpId, slice: u32, granted: bool) {
        let Some(op) = self.ops.get_mut(id) else { return };
        let OperationKind::Push { round, data, priority, answer, setting, weight, part, scale } =
            &op.what
        else {
            return;
        };
        let Some(state) = self.keys.get(&op.key) else { return };
        let Some(server) = state.server_of(slice) else { return };
        let (offset, _) = state.range(slice);
        let (priority, data_of_slice) = (*priority, state.part(slice, data));
        let push = Push {
            key: op.key,
            generation: state.generation(),
            slice,
            round: *round,
            offset,
            total: data.len(),
            request: id,
            setting: *setting,
            priority,
            codec: data.codec(),
            weight: *weight,
            part: *part,
            scale: *scale,
            granted,
            answer: *answer,
            data: data_of_slice,
        };
        op.unsent.remove(slice);
        self.send_awaited(id, Peer::server(server), push, priority);
    }

    /// Sends a pull of a slice, if the operation wants the slice.
    fn send_pull(&mut self, id: OpId, slice: u32) {
        let Some(op) = self.ops.get(id) else { return };
        let OperationKind::Pull { round, priority, wanted, .. } = &op.what else { return };
        if !op.unanswered.contains(slice) {
            return;
        }
        let (round, priority) = (*round, *priority);
        let Some(state) = self.keys.get(&op.key) else { return };
        let Some(server) = state.server_of(slice) else { return };
        let wanted = wanted.as_ref().map(|wanted| state.part(slice, wanted));
        // The pull waits at the server for the pushes before it: the value then leaves at once, while
        // later slices still arrive.
        let overtakes = wanted.is_none() && !self.limits.one_way_at_a_time;
        let urgency = if overtakes { CONTROL } else { priority };
        let (key, generation) = (op.key, state.generation());
        let pull = Pull { key, generation, slice, round, request: id, priority, wanted };
        let (to, message) = (Peer::server(server), pull.into());
        self.letters.push(OutgoingMessage { to, message, priority: urgency, token: None });
    }

    fn send_restore(&mut self, id: OpId, slice: u32, data: D) {
        let Some(key) = self.ops.get(id).map(|op| op.key) else { return };
        let Some(state) = self.keys.get(&key) else { return };
        let Some(server) = state.server_of(slice) else { return };
        let generation = state.generation();
        let restore = Restore { key, generation, slice, request: id, data };
        self.send_awaited(id, Peer::server(server), restore, 0);
    }

    /// Sends a removal to the directory, or its withdrawal.
    pub(super) fn send_remove(&mut self, request: OpId, back: bool) {
        let Some(key) = self.ops.get(request).map(|op| op.key) else { return };
        let generation = self.keys.get(&key).map_or(0, WorkerKey::generation);
        self.post(DIRECTORY, Remove { key, generation, request, at_directory: true, back });
    }

    /// A slice of the operation that waits for credit.
    pub(super) fn offered_slice(&self, id: OpId) -> Option<u32> {
        self.ops.get(id)?.unsent.first()
    }
}

/// Clamps a priority between those that the protocol reserves.
fn bounded(priority: i32) -> i32 {
    priority.clamp(LAST + 1, CONTROL - 1)
}
