//! Joining (also: handshake, registration): how processes become members, and which fields of a hello are
//! trusted.
//!
//! Address, barriers and the end of pushes are trusted for the sender alone, where role, rank and incarnation
//! are its own; terms are those of workers. The book of a hello is for a restarted scheduler: see `takeover`.

use super::takeover::Takeover;
use super::{MemberProgress, Scheduler};
use crate::drops::{DropReason, Handled};
use crate::job::{Data, NO_RANK, Peer, Role, Time};
use crate::message::{ExchangeAddress, Hello, MemberState, Standing, Terms};

impl<D: Data> Scheduler<D> {
    /// Takes a hello; `linked` when it arrived in the stream of the member.
    pub(super) fn hello(
        &mut self,
        peer: Peer,
        incarnation: u64,
        hello: &Hello,
        linked: bool,
        now: Time,
    ) -> Handled {
        let same =
            |member: &&Standing| member.peer.role == peer.role && member.incarnation == incarnation;
        // The process may belong to the next job at this address: it repeats its hello, and finds the
        // scheduler of that job.
        if self.ending && self.book.members.iter().find(same).is_none() {
            return Err(DropReason::Late);
        }
        let taken = self.fits(peer, hello).and_then(|()| {
            self.adopt(peer, incarnation, hello, now);
            self.agrees(peer, hello)
        });
        if let Err(text) = taken {
            self.refuse(&hello.address, incarnation, text);
            return Ok(());
        }
        if let Some(known) = self.book.members.iter().find(same).cloned() {
            if !is_own(&known, peer, hello) {
                let is_old = had_another_seat(&known, hello);
                return Err(if is_old { DropReason::Outdated } else { DropReason::Foreign });
            }
            self.agree(peer, hello);
            self.greet(known.peer, hello, linked, now);
            return Ok(());
        }
        match self.seat(peer, was_given_its_rank(peer, incarnation, hello)) {
            Ok(peer) => {
                self.book.members.push(Standing {
                    peer,
                    incarnation,
                    state: MemberState::Here,
                    reads: hello.reads,
                    address: hello.address.clone(),
                    features: hello.features,
                    cause: String::new(),
                    exchange: ExchangeAddress::clone(&hello.exchange),
                });
                self.book.members.sort_unstable_by_key(|member| member.peer);
                self.book.check();
                self.progress.insert(peer, MemberProgress::default());
                self.went.remove(&peer);
                self.agree(peer, hello);
                self.greet(peer, hello, linked, now);
            }
            Err(text) => self.refuse(&hello.address, incarnation, text),
        }
        Ok(())
    }

    /// Whether the process expects a job of this size, and the rank exists.
    fn fits(&self, peer: Peer, hello: &Hello) -> Result<(), String> {
        let (workers, servers) = (self.net.limits.workers, self.net.limits.servers);
        if (hello.workers, hello.servers) != (workers, servers) {
            return Err(format!(
                "{peer} at {} expects {} workers and {} servers; the job has {workers} and \
                 {servers}: start all processes with the same num_workers and num_servers",
                hello.address, hello.workers, hello.servers
            ));
        }
        let count = self.count(peer.role);
        if peer.rank != NO_RANK && peer.rank >= count {
            return Err(format!(
                "{peer} at {}: the job has room for {count} of this role; ranks begin at 0",
                hello.address
            ));
        }
        Ok(())
    }

    /// Whether the terms of the process are those of the workers before it.
    fn agrees(&self, peer: Peer, hello: &Hello) -> Result<(), String> {
        let differs = |(ours, theirs): (&Terms, &Terms)| ours.difference(theirs);
        match self.book.terms.as_ref().zip(hello.terms.as_ref()).and_then(differs) {
            Some((what, ours, theirs)) => Err(format!(
                "{peer} at {} has {theirs} for {what}, the workers before it have {ours}; use the \
                 same type and options in all workers",
                hello.address
            )),
            None => Ok(()),
        }
    }

    /// The first worker decides the terms of the job; servers and readers do not.
    fn agree(&mut self, peer: Peer, hello: &Hello) {
        let decides = peer.role == Role::Worker && !hello.reads && self.book.terms.is_none();
        if let Some(terms) = hello.terms.as_ref().filter(|_| decides) {
            self.book.terms = Some(terms.clone());
            self.net.limits.adopt(&terms.known);
        }
    }

    /// Notes where a worker listens for others; false if that was known.
    fn listens(&mut self, peer: Peer, at: &ExchangeAddress) -> bool {
        let member = self.book.find_mut(peer).filter(|member| member.exchange != *at);
        member.map(|member| member.exchange.clone_from(at)).is_some()
    }

    /// Once all workers listen for each other, all learn where.
    fn publish_meeting(&mut self) {
        let is_there = |member: &Standing| {
            let pushes = member.peer.role == Role::Worker && !member.reads;
            !pushes || member.state != MemberState::Here || member.exchange.is_known()
        };
        let is_complete = self.book.members.iter().all(is_there);
        let is_learning = self.takeover == Takeover::Learning;
        if self.started && !is_learning && is_complete {
            self.publish_epoch();
        }
    }

    fn count(&self, role: Role) -> u32 {
        match role {
            Role::Scheduler => 0,
            Role::Worker => self.net.limits.workers,
            Role::Server => self.net.limits.servers,
        }
    }

    /// Rank of a new process: the one that it asks for, or the lowest free one. A rank that an earlier
    /// scheduler has assigned (`given`) may be replaced by a free one.
    fn seat(&self, peer: Peer, given: bool) -> Result<Peer, String> {
        let taken = |rank| self.book.find(Peer { rank, ..peer });
        let free = || {
            let rank = (0..self.count(peer.role)).find(|rank| taken(*rank).is_none())?;
            Some(Peer { rank, ..peer })
        };
        if peer.rank == NO_RANK {
            return free().ok_or_else(|| format!("{peer}: all ranks of its role are taken"));
        }
        match taken(peer.rank) {
            None => Ok(peer),
            Some(other) if other.state == MemberState::Here => {
                given.then(free).flatten().ok_or_else(|| {
                    format!(
                        "there is a {peer} already, at {}; give every process a rank of its own",
                        other.address
                    )
                })
            }
            Some(other) => Err(format!(
                "{peer} was at {} before and is gone; it cannot join the running job again",
                other.address
            )),
        }
    }

    /// Links a member and sends it the book. A repeated hello changes nothing.
    fn greet(&mut self, peer: Peer, hello: &Hello, linked: bool, now: Time) {
        let Some(member) = self.book.find_mut(peer) else { return };
        member.address.clone_from(&hello.address);
        member.features = hello.features;
        let incarnation = member.incarnation;
        if member.state == MemberState::Lost {
            self.untold.remove(&incarnation);
            return self.evict(peer, incarnation, &hello.address);
        }
        let progress = self.progress.entry(peer).or_default();
        progress.arrived = progress.arrived.max(hello.arrived);
        if hello.resume.number > progress.resume.number {
            progress.resume = *hello.resume;
        }
        let learns = [Takeover::Learning, Takeover::Over].contains(&self.takeover);
        if learns && hello.resumed.number > self.resumed.number {
            self.resumed = *hello.resumed;
        }
        if learns {
            progress.resumed = progress.resumed.max(hello.resumed.number);
        }
        // A hello outside of the stream may be from before a resume.
        progress.done |= hello.done && hello.resumed.number >= self.resumed.number;
        if progress.launch == 0 {
            progress.launch = hello.launch;
        }
        if [Takeover::Learning, Takeover::Over].contains(&self.takeover) {
            progress.passed = progress.passed.max(hello.passed);
            progress.told = progress.told.max(hello.passed);
        }
        // A hello outside of the stream may have been sent to an earlier scheduler.
        if linked {
            progress.known = true;
            progress.missing_at = None;
        }
        let is_linked = self.net.incarnation_of(peer) == Some(incarnation);
        if hello.exchange.is_known() && self.listens(peer, &hello.exchange) && is_linked {
            self.publish_meeting();
        }
        if is_linked {
            return;
        }
        self.net.connect(peer, incarnation, &hello.address, now);
        self.net.note_features(peer, incarnation, hello.features);
        if hello.reads {
            self.net.only_reads(peer);
        }
        let members = self.book.members.len() as u64;
        let expected = u64::from(self.net.limits.workers) + u64::from(self.net.limits.servers);
        if !self.started && members == expected {
            self.started = true;
            self.publish_epoch();
        } else {
            self.tell_book(peer);
        }
    }
}

/// Whether a member has a rank that was assigned before members of a started job reported its own, and does
/// not know that yet.
fn had_another_seat(known: &Standing, hello: &Hello) -> bool {
    hello.book.epoch == 0 && known.address == hello.address && known.reads == hello.reads
}

/// Whether a hello is from the member that has its incarnation: rank and address do not change, and a reader
/// does not become a worker.
fn is_own(known: &Standing, peer: Peer, hello: &Hello) -> bool {
    let rank = peer.rank == NO_RANK || peer.rank == known.peer.rank;
    let address = known.address.is_empty() || known.address == hello.address;
    rank && address && known.reads == hello.reads
}

/// Whether a process that does not know of the start has its rank from a scheduler, not from its user.
fn was_given_its_rank(peer: Peer, incarnation: u64, hello: &Hello) -> bool {
    let own = hello.book.find(peer).filter(|own| own.incarnation == incarnation);
    hello.book.epoch == 0 && own.is_some()
}
