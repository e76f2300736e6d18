//! A server (also: parameter server, shard): rounds of the slices of many keys, and, on server 0, the
//! directory of all keys.
//!
//! It decides which contributions are added in which order, when a round closes, and which value answers a
//! pull. Its driver does the arithmetic, in the order of the actions of each slice.

mod agreement;
mod asking;
mod backpressure;
mod directory;
mod facts;
mod keys;
mod resume;
mod role;
mod rounds;

use std::sync::Arc;
use std::vec::Drain;

use smallvec::SmallVec;

use super::bit_set::BitSet;
use super::drops::{DropReason, Handled};
use super::job::{AT_ONCE, Data, Failure, Limits, Peer, Reason, Role, take_all};
use super::message::kinds::{
    Ask, Awaited, Credit, Describe, Done, Failed, Grant, Init, Offer, Pull, Push, Remove, Setting,
    Value,
};
use super::message::{Content, Message, Placement, ResumePoint, SliceName};
use super::peers::OutgoingMessage;
use super::placement::SharedPlaces;
use super::stream::{CONTROL, LAST};
use backpressure::WorkerBacklog;
use directory::Directory;
use keys::{ServerKey, ServerKeys};
use resume::Resumption;
use rounds::{Contribution, RoundStep, Slice, SpareBacklogs, WaitingPull};

/// Action for the driver of a server. Those of one slice take effect in their order; slices are independent.
#[derive(Debug)]
pub enum ServerAction<D> {
    /// Store the first value of a slice, or replace the value of an init that was repeated.
    Install {
        /// Slice to store.
        slice: SliceName,
        /// Shape and placement of the key.
        place: Arc<Placement>,
        /// Value of the slice.
        data: D,
    },
    /// Add a contribution to the sum of a round.
    Add {
        /// Slice of the push.
        slice: SliceName,
        /// Round, from 1; without rounds, number of the worker's push.
        round: u64,
        /// Rank of the worker.
        rank: u32,
        /// First contribution of the round: the sum begins with it.
        first: bool,
        /// Codec of the data; 0 is raw values.
        codec: u16,
        /// Version of the setting in force for the push.
        setting: u64,
        /// Weight, as [`Worker::weigh`](crate::Worker::weigh) got it; 0 without one.
        weight: u64,
        /// Part of the tree, as [`Worker::set_part`](crate::Worker::set_part) got it; 0 without one.
        part: u64,
        /// Scale of the round, as [`Worker::scale`](crate::Worker::scale) got it; 0 without one.
        scale: u64,
        /// Contribution, of the length of the slice if it is raw.
        data: D,
    },
    /// Replace value and state of a slice.
    Restore {
        /// Slice to replace.
        slice: SliceName,
        /// Payload, as [`Worker::restore`](crate::Worker::restore) got it.
        data: D,
    },
    /// Merge the sum into the value: the round is closed.
    Close {
        /// Slice of the round.
        slice: SliceName,
        /// Closed round; without rounds, number of merged pushes.
        round: u64,
        /// Largest version of the setting among the contributions.
        setting: u64,
    },
    /// Pass the value to [`Server::value`], or a failure to [`Server::no_value`]; at any later time.
    Answer(ValueRequest<D>),
    /// Merge pushes of this version, and later ones, under a setting.
    Setting {
        /// Version of the setting, from 1.
        version: u64,
        /// The setting, as [`Worker::set`](crate::Worker::set) got it.
        fields: Vec<u8>,
    },
    /// Drop all slices of a removed key.
    Drop {
        /// Removed key.
        key: u64,
        /// Removed generation.
        generation: u32,
        /// Upper bound, exclusive, of the indices of its slices here.
        slices: u32,
    },
}

/// A pull whose value is due.
#[derive(Debug, Clone)]
pub struct ValueRequest<D> {
    /// Number of the group of the machine that answers; 0 for the workers of the job.
    pub group: u64,
    /// Slice of the value.
    pub slice: SliceName,
    /// Query of [`Worker::pull_wanted`](crate::Worker::pull_wanted), opaque to the protocol; None for the
    /// value.
    pub wanted: Option<D>,
    pub(crate) to: u32,
    pub(crate) round: u64,
    request: u64,
    priority: i32,
}

/// State of the workers.
#[derive(Debug)]
pub(super) struct Workers {
    limits: Limits,
    here: Vec<bool>,
    done: Vec<bool>,
}

impl Workers {
    /// Whether a round waits for a worker; `pushes` are the announced pushes of workers that are done.
    fn is_awaited(&self, rank: u32, round: u64, pushes: &[u64]) -> bool {
        let at = rank as usize;
        let to_come = self.done.get(at) == Some(&true)
            && pushes.get(at).is_some_and(|pushes| round <= *pushes);
        self.is_active(rank) || (to_come && self.here.get(at) == Some(&true))
    }

    /// Whether a worker takes part in collective calls: it is here and not done.
    fn is_active(&self, rank: u32) -> bool {
        let at = rank as usize;
        self.here.get(at) == Some(&true) && self.done.get(at) == Some(&false)
    }

    /// Whether a worker is neither lost nor has left.
    fn is_here(&self, rank: u32) -> bool {
        self.here.get(rank as usize) == Some(&true)
    }

    fn ranks(&self) -> std::ops::Range<u32> {
        0..self.limits.workers
    }

    fn active(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranks().filter(|rank| self.is_active(*rank))
    }

    fn lowest(&self) -> Option<u32> {
        self.active().next()
    }

    /// Active workers that are missing in a set.
    fn absent(&self, came: &BitSet) -> Vec<Peer> {
        self.active().filter(|rank| !came.contains(*rank)).map(Peer::worker).collect()
    }
}

/// The machine of one server, the role of a [`Node`](crate::Node).
#[derive(Debug)]
pub struct Server<D> {
    workers: Workers,
    keys: ServerKeys<D>,
    places: SharedPlaces,
    directory: Directory,
    /// By rank, credit in use.
    used: Vec<u64>,
    /// By rank, credit to return.
    owed: Vec<u64>,
    /// By rank, waiting pulls and answers.
    waiting: Vec<WorkerBacklog>,
    /// Number of slices.
    slices: u64,
    /// Bytes of contributions that are held out of turn.
    held_bytes: u64,
    duplicates: u64,
    /// The loss that ended all rounds.
    broken: Option<Failure>,
    letters: Vec<OutgoingMessage<D>>,
    actions: Vec<ServerAction<D>>,
    tally: facts::ServerTally,
    /// Steps of the current slice; kept for its memory.
    steps: Vec<RoundStep<D>>,
    /// Backlogs for slices; kept for their memory.
    spare: SpareBacklogs<D>,
    /// Keys to settle after a change of the workers: those with slices here, and those of the directory.
    sweep: (Vec<u64>, Vec<u64>),
    resumption: Resumption,
    /// Number of the group of this machine; 0 for the workers of the job.
    group: u64,
}

impl<D: Data> Server<D> {
    /// Actions since the last call, for the driver to carry out. Called after every event of the node.
    pub fn actions(&mut self) -> Drain<'_, ServerAction<D>> {
        take_all(&mut self.actions)
    }

    /// Bytes of contributions that are held out of turn; at most [`Limits::hold_bytes`].
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Number of duplicate pushes.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Answers an [`ServerAction::Answer`] with the value after all actions of the slice before it. The node sends
    /// it with its next `send`.
    pub fn value(&mut self, answer: &ValueRequest<D>, data: D) {
        let SliceName { key, generation, slice } = answer.slice;
        let ValueRequest { round, request, priority, .. } = *answer;
        let waiting = self.waiting.get_mut(answer.to as usize);
        let token = waiting.and_then(|waiting| waiting.answer(answer.wanted.as_ref(), data.len()));
        let message = Value { key, generation, slice, round, request, data }.into();
        self.letters.push(OutgoingMessage {
            to: Peer::worker(answer.to),
            message,
            priority,
            token,
        });
    }

    /// Answers an [`ServerAction::Answer`] with a failure.
    pub fn no_value(&mut self, answer: &ValueRequest<D>, failure: &Failure) {
        self.fail(answer.to, answer.slice, answer.request, failure);
    }

    /// Places keys whole from now on: the driver's merge rule may not work on slices. Called on server 0
    /// before the start.
    pub fn keep_whole(&mut self) {
        self.directory.keep_whole();
    }

    /// Takes a message of a worker, or returns the reason to drop it.
    pub(super) fn message(&mut self, from: Peer, message: Message<D>) -> Handled {
        let rank = from.rank;
        if from.role != Role::Worker || !self.workers.ranks().contains(&rank) {
            return Err(DropReason::Misdirected);
        }
        let Message { head, body } = message;
        match Content::read(&head, body)? {
            Content::Describe(describe) => self.describe(describe),
            Content::Init(init) => self.install(init),
            Content::Push(push) => self.push(rank, push),
            Content::Restore(restore) => {
                let slice = restore.name();
                // The next pull of the worker fails if the slice is removed.
                self.keys.slice_mut(slice).ok_or(DropReason::Late)?;
                self.actions.push(ServerAction::Restore { slice, data: restore.data });
                Ok(())
            }
            Content::Setting(Setting { version, fields, .. }) => {
                self.actions.push(ServerAction::Setting { version, fields });
                Ok(())
            }
            Content::Offer(offer) => self.offer(rank, &offer),
            Content::Pull(pull) => self.pull(rank, pull),
            Content::Remove(remove) => self.remove(rank, &remove),
            Content::Done(Done { key, generation, pushes }) if generation > 0 => {
                let key = self.keys.get_mut(key, generation).ok_or(DropReason::Late)?;
                key.pushes[rank as usize] = pushes;
                Ok(())
            }
            Content::Resume(resume) => {
                self.resume(rank, ResumePoint::from(&resume));
                Ok(())
            }
            Content::Done(_) => {
                self.end_pushes(rank);
                Ok(())
            }
            Content::Leave(_) => {
                // Also behind a resume: in a group the book still has the worker.
                self.resumption.stays_done(rank);
                self.end_pushes(rank);
                Ok(())
            }
            Content::Declare(declare) => {
                let key = declare.key;
                let handled = self.directory.declare(rank, declare, &self.workers);
                self.end_searches(key);
                self.post_directory();
                handled
            }
            Content::Ready(ready) => {
                let handled = self.directory.ready(rank, &ready);
                self.post_directory();
                handled
            }
            Content::Ask(ask) => {
                self.ask(rank, &ask);
                Ok(())
            }
            _ => Err(DropReason::Misdirected),
        }
    }

    /// Treats a reader as a worker that is done.
    fn only_reads(&mut self, rank: u32) {
        self.resumption.stays_done(rank);
        if self.workers.done.get(rank as usize) == Some(&false) {
            self.end_pushes(rank);
        }
    }

    fn end_pushes(&mut self, rank: u32) {
        self.workers.done[rank as usize] = true;
        self.settle_all();
    }

    /// Begins a generation of a key. A provider that was lost half way left an older one behind, or its
    /// messages still arrive.
    fn describe(&mut self, Describe { key: id, generation, place }: Describe) -> Handled {
        if let Some(older) = self.keys.generation_of(id) {
            if older >= generation {
                return Err(DropReason::Outdated);
            }
            self.drop_key(id, older);
        }
        let workers = self.workers.limits.workers as usize;
        // Server 0 has it in the directory.
        let known = self.directory.place_of(id, generation).filter(|known| **known == place);
        let known = known.map(Arc::clone);
        let place = known.unwrap_or_else(|| self.places.share(place));
        let key = ServerKey {
            generation,
            place,
            slices: SmallVec::new(),
            pushes: SmallVec::from_elem(0, workers),
            removed_by: BitSet::default(),
        };
        self.keys.insert(id, key);
        Ok(())
    }

    fn install(&mut self, init: Init<D>) -> Handled {
        let (workers, mode) = (self.workers.limits.workers, self.workers.limits.mode);
        let (name, data) = (init.name(), init.data);
        let key = self.keys.get_mut(name.key, name.generation).ok_or(DropReason::Late)?;
        let at = name.slice as usize;
        if at >= key.place.servers.len() || key.place.range(name.slice).1 != data.len() {
            return Err(DropReason::Misfit);
        }
        if at >= key.slices.len() {
            key.slices.resize_with(at + 1, || None);
        }
        self.tally.stored_bytes += data.len();
        let old = key.slices[at]
            .replace(Slice::new(data.len(), workers).begin_at(self.resumption.base(), mode));
        let place = Arc::clone(&key.place);
        self.actions.push(ServerAction::Install { slice: name, place, data });
        self.slices += 1;
        if let Some(old) = old {
            self.drop_slice(name, old);
        }
        Ok(())
    }

    fn push(&mut self, rank: u32, push: Push<D>) -> Handled {
        let free = self.workers.limits.credit().saturating_sub(self.used[rank as usize]);
        let (name, bytes) = (push.name(), push.data.len());
        let Push { round, request, granted, codec, setting, weight, part, scale, priority, .. } =
            push;
        let Some(slice) = self.keys.slice_mut(name) else {
            self.fail(rank, name, request, &unknown(name.slice));
            return Ok(());
        };
        if slice.has(rank, round) {
            self.duplicates += 1;
            return Err(DropReason::Duplicate);
        }
        let paid = if granted { 0 } else { bytes };
        if (codec == 0 && bytes != slice.len())
            || paid > free
            || slice.is_too_far(round, &self.workers)
            || (granted && !slice.was_granted(rank, round))
        {
            // A loss that has ended all rounds has revoked the grants.
            let failure = self.broken.clone().unwrap_or_else(|| unfit(name.slice, bytes));
            self.fail(rank, name, request, &failure);
            return Ok(());
        }
        let contribution =
            Contribution { data: push.data, paid, setting, codec, weight, part, scale };
        slice.push(rank, round, contribution, &mut self.spare);
        let before = slice.came(self.tally.now);
        if push.answer {
            let pull = WaitingPull { rank, round, request, priority, wanted: None };
            self.waiting[rank as usize].begin(&pull);
            slice.pull(pull, &mut self.spare);
        }
        self.used[rank as usize] += paid;
        debug_assert!(
            self.used[rank as usize] <= self.workers.limits.credit(),
            "worker {rank} has not more credit in use than there is"
        );
        self.held_bytes += bytes;
        let rounds = self.tally.rounds();
        self.settle(name);
        self.note_late(rank, before, rounds);
        Ok(())
    }

    fn offer(&mut self, rank: u32, offer: &Offer) -> Handled {
        let slice = self.keys.slice_mut(offer.name()).ok_or(DropReason::Late)?;
        slice.offer(rank, offer.round, &mut self.spare);
        self.settle(offer.name());
        Ok(())
    }

    fn pull(&mut self, rank: u32, pull: Pull<D>) -> Handled {
        let name = pull.name();
        if let Some(failure) = self.unanswerable(rank, &pull) {
            self.fail(rank, name, pull.request, &failure);
            return Err(DropReason::Unanswerable);
        }
        let Pull { round, request, priority, wanted, .. } = pull;
        match self.keys.slice_mut(name) {
            Some(slice) => {
                let pull = WaitingPull { rank, round, request, priority, wanted };
                self.waiting[rank as usize].begin(&pull);
                slice.pull(pull, &mut self.spare);
                self.settle(name);
            }
            None => self.fail(rank, name, request, &unknown(name.slice)),
        }
        Ok(())
    }

    fn remove(&mut self, rank: u32, remove: &Remove) -> Handled {
        if remove.at_directory {
            self.directory.remove(rank, remove, &self.workers);
            self.post_directory();
            return Ok(());
        }
        let key = self.keys.get_mut(remove.key, remove.generation).ok_or(DropReason::Late)?;
        key.removed_by.insert(rank);
        self.settle_removal(remove.key, remove.generation);
        Ok(())
    }

    /// Drops the slices of a key when each worker has passed on the directory's removal.
    fn settle_removal(&mut self, key: u64, generation: u32) {
        let Some(state) = self.keys.get(key, generation) else { return };
        if state.removed_by.is_empty() || !self.workers.absent(&state.removed_by).is_empty() {
            return;
        }
        self.drop_key(key, generation);
    }

    fn drop_key(&mut self, key: u64, generation: u32) {
        if let Some(state) = self.keys.remove(key, generation) {
            let slices = u32::try_from(state.slices.len()).unwrap_or(u32::MAX);
            let paid: Vec<_> = state.slices.iter().flatten().flat_map(Slice::paid).collect();
            paid.into_iter().for_each(|(rank, bytes)| self.give_back(rank, bytes));
            for (slice, state) in (0..).zip(state.slices) {
                if let Some(state) = state {
                    self.drop_slice(SliceName { key, generation, slice }, state);
                }
            }
            self.actions.push(ServerAction::Drop { key, generation, slices });
        }
    }

    /// Fails the pulls that waited at a removed slice, and returns its held bytes.
    fn drop_slice(&mut self, name: SliceName, mut slice: Slice<D>) {
        self.tally.stored_bytes -= slice.len();
        self.slices -= 1;
        let (pulls, bytes) = slice.give_up();
        self.held_bytes -= bytes;
        pulls.iter().for_each(|pull| self.disappoint(name, pull, &unknown(name.slice)));
    }

    /// Takes all steps that are possible on a slice.
    fn settle(&mut self, name: SliceName) {
        let broken = self.broken.clone();
        let Some(key) = self.keys.get_mut(name.key, name.generation) else { return };
        let Some(Some(slice)) = key.slices.get_mut(name.slice as usize) else { return };
        let mut steps = std::mem::take(&mut self.steps);
        if broken.is_none() {
            slice.advance(&self.workers, &key.pushes, &mut steps);
        }
        slice.answer(&self.workers, &key.pushes, &mut steps);
        let hopeless = if broken.is_some() { slice.give_up() } else { (Vec::new(), 0) };
        self.spare.take_back(slice);
        self.held_bytes -= hopeless.1;
        steps.drain(..).for_each(|step| self.step(name, step));
        self.steps = steps;
        if let Some(lost) = broken {
            hopeless.0.into_iter().for_each(|pull| self.disappoint(name, &pull, &lost));
        }
    }

    fn disappoint(&mut self, slice: SliceName, pull: &WaitingPull<D>, lost: &Failure) {
        self.waiting[pull.rank as usize].end(pull.wanted.as_ref());
        self.fail(pull.rank, slice, pull.request, lost);
    }

    fn step(&mut self, slice: SliceName, step: RoundStep<D>) {
        match step {
            RoundStep::Add {
                round,
                rank,
                first,
                contribution: Contribution { data, paid, codec, setting, weight, part, scale },
            } => {
                self.held_bytes -= data.len();
                self.actions.push(ServerAction::Add {
                    slice,
                    round,
                    rank,
                    first,
                    codec,
                    setting,
                    weight,
                    part,
                    scale,
                    data,
                });
                self.give_back(rank, paid);
            }
            RoundStep::Close { round, setting } => {
                self.tally.closed(round);
                self.actions.push(ServerAction::Close { slice, round, setting });
            }
            RoundStep::Grant { rank, round } => {
                let SliceName { key, generation, slice } = slice;
                self.post(rank, Grant { key, generation, slice, round });
            }
            RoundStep::Answer {
                pull: WaitingPull { rank: to, request, priority, wanted, .. },
                round,
            } => {
                self.waiting[to as usize].end(wanted.as_ref());
                let group = self.group;
                let answer = ValueRequest { group, slice, wanted, to, round, request, priority };
                self.actions.push(ServerAction::Answer(answer));
            }
        }
    }

    /// Returns credit in portions of an eighth: small pushes are not answered one by one.
    fn give_back(&mut self, rank: u32, bytes: u64) {
        let (used, owed) = (&mut self.used[rank as usize], &mut self.owed[rank as usize]);
        debug_assert!(bytes <= *used, "worker {rank} gets no credit back that it has not used");
        *used = used.saturating_sub(bytes);
        *owed += bytes;
        if *owed > self.workers.limits.credit() / 8 {
            let bytes = std::mem::take(owed);
            self.post(rank, Credit { bytes });
        }
    }

    /// Settles every key after a change of the workers.
    fn settle_all(&mut self) {
        self.sweep = (self.keys.iter().map(|(key, _)| key).collect(), self.directory.keys());
        self.directory.settle_settings(&self.workers);
        self.sweep();
    }

    /// Settles some of the keys of `settle_all`; `tick` continues with the rest.
    fn sweep(&mut self) {
        for _ in 0..AT_ONCE {
            let Some(key) = self.sweep.0.pop() else { break };
            self.settle_key(key);
        }
        for _ in 0..AT_ONCE {
            let Some(key) = self.sweep.1.pop() else { break };
            self.directory.settle_key(key, &self.workers);
            self.end_searches(key);
        }
        self.post_directory();
        self.settle_resume();
    }

    fn settle_key(&mut self, key: u64) {
        let Some(generation) = self.keys.generation_of(key) else { return };
        let slices = self.keys.get(key, generation).map_or(0, |state| state.slices.len());
        for slice in 0..u32::try_from(slices).unwrap_or(u32::MAX) {
            self.settle(SliceName { key, generation, slice });
        }
        self.settle_removal(key, generation);
    }

    fn is_sweeping(&self) -> bool {
        !(self.sweep.0.is_empty() && self.sweep.1.is_empty())
    }

    fn ask(&mut self, rank: u32, ask: &Ask) {
        let Ask { key, generation, slice, round, request, .. } = *ask;
        let of_slice = || {
            let key = self.keys.get(key, generation)?;
            let slice = key.slices.get(slice as usize)?.as_ref()?;
            Some(slice.awaited(round, &self.workers, &key.pushes))
        };
        let peers = match round {
            0 => self.directory.awaited(ask, &self.workers),
            _ => of_slice().unwrap_or_default(),
        };
        let message = Awaited { request, round: 0, peers }.into();
        let to = Peer::worker(rank);
        self.letters.push(OutgoingMessage { to, message, priority: LAST, token: None });
    }

    /// Once a loss has ended all rounds, no key is created.
    fn end_searches(&mut self, key: u64) {
        if let Some(lost) = &self.broken {
            self.directory.end_searches(key, lost);
        }
    }

    fn post_directory(&mut self) {
        for (rank, message) in self.directory.answers() {
            self.post(rank, message);
        }
    }

    fn fail(&mut self, rank: u32, name: SliceName, request: u64, failure: &Failure) {
        let SliceName { key, generation, slice } = name;
        self.post(rank, Failed { key, generation, slice, request, failure: failure.clone() });
    }

    fn post(&mut self, rank: u32, message: impl Into<Message<D>>) {
        let (to, message) = (Peer::worker(rank), message.into());
        self.letters.push(OutgoingMessage { to, message, priority: CONTROL, token: None });
    }

    /// Whether no push is held and no pull waits.
    #[cfg(test)]
    pub(super) fn is_at_rest(&self) -> bool {
        let idle = self
            .keys
            .iter()
            .flat_map(|(_, key)| key.slices.iter().flatten())
            .all(Slice::is_at_rest);
        idle && self.held_bytes == 0
    }
}

/// A push that the protocol does not allow: of another length, or without credit or grant.
fn unfit(slice: u32, bytes: u64) -> Failure {
    let text =
        format!("slice {slice}: {bytes} bytes do not fit the slice, or nothing allowed them");
    invalid(text)
}

fn invalid(text: String) -> Failure {
    Failure::new(Reason::Invalid, text)
}

fn unknown(slice: u32) -> Failure {
    let text = format!("the server does not have slice {slice}");
    Failure::new(Reason::KeyNotFound, text)
}
