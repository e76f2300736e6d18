//! The server as the role of its node: what events of the node change in it.

use std::vec::Drain;

use super::backpressure::WorkerBacklog;
use super::directory::Directory;
use super::keys::ServerKeys;
use super::resume::Resumption;
use super::rounds::SpareBacklogs;
use super::{Server, Workers, facts};
use crate::drops::Handled;
use crate::job::{
    Data, DeliveryToken, Failure, Limits, OnLoss, Peer, Reason, Role, Time, take_all,
};
use crate::machine::NodeRole;
use crate::message::{Book, GroupTerms, MemberState, Message};
use crate::peers::OutgoingMessage;
use crate::placement::SharedPlaces;
use crate::telemetry::ProcessStats;

impl<D: Data> NodeRole<D> for Server<D> {
    const ROLE: Role = Role::Server;
    const PARTNERS: Role = Role::Worker;

    fn new(limits: &Limits) -> Self {
        let workers = limits.workers as usize;
        Self {
            workers: Workers {
                limits: limits.clone(),
                here: vec![true; workers],
                done: vec![false; workers],
            },
            keys: ServerKeys::default(),
            places: SharedPlaces::default(),
            directory: Directory::new(limits),
            used: vec![0; workers],
            owed: vec![0; workers],
            waiting: vec![WorkerBacklog::default(); workers],
            slices: 0,
            held_bytes: 0,
            duplicates: 0,
            broken: None,
            letters: Vec::new(),
            actions: Vec::new(),
            tally: facts::ServerTally::new(limits.workers),
            steps: Vec::new(),
            spare: SpareBacklogs::default(),
            sweep: (Vec::new(), Vec::new()),
            resumption: Resumption::default(),
            group: 0,
        }
    }

    /// Workers outside of the group count as workers that were never here.
    fn of_group(limits: &Limits, group: u64, terms: &GroupTerms, _: u64) -> Self {
        let mut server = Self { group, ..Self::new(limits) };
        for (rank, here) in (0..).zip(&mut server.workers.here) {
            *here = terms.has(rank);
        }
        server
    }

    fn tell_time(&mut self, now: Time) {
        self.tally.now = now;
    }

    /// Continues a sweep that did not fit into one step.
    fn tick(&mut self, _: Time) {
        if self.is_sweeping() {
            self.sweep();
        }
    }

    fn wake_at(&self) -> Time {
        if self.is_sweeping() { 0 } else { Time::MAX }
    }

    fn letters(&mut self) -> Drain<'_, OutgoingMessage<D>> {
        take_all(&mut self.letters)
    }

    fn report(&mut self, facts: &mut ProcessStats) {
        Server::report(self, facts);
    }

    fn members(&mut self, book: &Book) {
        let mut news = false;
        for member in book.members.iter().filter(|member| member.peer.role == Role::Worker) {
            if member.reads {
                self.only_reads(member.peer.rank);
            }
            let Some(here) = self.workers.here.get_mut(member.peer.rank as usize) else { continue };
            if !*here || member.state == MemberState::Here {
                continue;
            }
            *here = false;
            news = true;
            for slice in self.keys.values_mut().flat_map(|key| key.slices.iter_mut().flatten()) {
                self.held_bytes -= slice.forget(member.peer.rank);
            }
            self.waiting[member.peer.rank as usize] = WorkerBacklog::default();
            let fails = self.workers.limits.on_loss == OnLoss::Fail;
            if member.state == MemberState::Lost && !member.reads && fails && self.broken.is_none()
            {
                let (peer, address, cause) = (member.peer, &member.address, member.cause());
                let text = format!("{peer} at {address} is lost{cause}");
                self.broken = Some(Failure::new(Reason::PeerLost, text));
            }
        }
        if news {
            self.settle_all();
        }
    }

    fn message(&mut self, from: Peer, message: Message<D>) -> Handled {
        Server::message(self, from, message)
    }

    /// A worker has acknowledged an answer.
    fn delivered(&mut self, by: u32, token: DeliveryToken) {
        if let Some(waiting) = self.waiting.get_mut(by as usize) {
            waiting.delivered(token);
        }
    }

    fn active_workers(&self) -> Vec<u32> {
        self.workers.active().collect()
    }

    fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    fn room_for(&self, peer: Peer) -> usize {
        if peer.role == Role::Worker { self.room_for(peer) } else { usize::MAX }
    }

    fn adopt(&mut self, limits: &Limits) {
        let whole = self.directory.is_whole();
        *self = Self::new(limits);
        if whole {
            self.keep_whole();
        }
    }
}
