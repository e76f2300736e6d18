//! How processes become members, and what their hellos are believed.
//!
//! An address, barriers and being done are believed of the sender alone, where role, rank and
//! incarnation are its own; terms come from workers. What a hello says of other members is for a
//! scheduler that was started again: see `takeover`.

use super::takeover::Takeover;
use super::{Progress, Scheduler};
use crate::job::{Data, NO_RANK, Peer, Role, Terms, Time};
use crate::message::{Hello, Standing, State};
use crate::peers::Why;

impl<D: Data> Scheduler<D> {
    /// `linked` when it came in the stream of the member.
    pub(super) fn hello(
        &mut self,
        peer: Peer,
        incarnation: u64,
        hello: &Hello,
        linked: bool,
        now: Time,
    ) {
        let taken = self.fits(peer, hello).and_then(|()| {
            self.adopt(peer, incarnation, hello, now);
            self.agrees(peer, hello)
        });
        if let Err(text) = taken {
            return self.refuse(&hello.address, incarnation, text);
        }
        let same =
            |member: &&Standing| member.peer.role == peer.role && member.incarnation == incarnation;
        if let Some(known) = self.book.members.iter().find(same).cloned() {
            if is_own(&known, peer, hello) {
                self.agree(peer, hello);
                self.greet(known.peer, hello, linked, now);
            } else if !had_another_seat(&known, hello) {
                self.net.note_drop(peer, Why::Foreign);
            }
            return;
        }
        match self.seat(peer, was_given_its_rank(peer, incarnation, hello)) {
            Ok(peer) => {
                let (state, reads, address) = (State::Here, hello.reads, hello.address.clone());
                self.book.members.push(Standing { peer, incarnation, state, reads, address });
                self.book.members.sort_by_key(|member| member.peer);
                self.progress.insert(peer, Progress::default());
                self.went.remove(&peer);
                self.agree(peer, hello);
                self.greet(peer, hello, linked, now);
            }
            Err(text) => self.refuse(&hello.address, incarnation, text),
        }
    }

    /// Whether the process expects a job of this size, and there is such a rank.
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

    /// Whether the process wants what the workers before it want.
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

    /// The job goes by what its first worker wants. Servers and readers have no say in it.
    fn agree(&mut self, peer: Peer, hello: &Hello) {
        let decides = peer.role == Role::Worker && !hello.reads && self.book.terms.is_none();
        if let Some(terms) = hello.terms.filter(|_| decides) {
            self.book.terms = Some(terms);
            self.net.limits.adopt(&terms);
        }
    }

    fn count(&self, role: Role) -> u32 {
        match role {
            Role::Scheduler => 0,
            Role::Worker => self.net.limits.workers,
            Role::Server => self.net.limits.servers,
        }
    }

    /// The rank of a new process: the one that it asks for, or the lowest that is free. One that the scheduler
    /// before this one has `given` gives way to another.
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
            Some(other) if other.state == State::Here => {
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

    /// Links a member, and brings it up to date. A repeated hello changes nothing.
    fn greet(&mut self, peer: Peer, hello: &Hello, linked: bool, now: Time) {
        let Some(member) = self.book.find_mut(peer) else { return };
        member.address.clone_from(&hello.address);
        let incarnation = member.incarnation;
        if member.state == State::Lost {
            self.untold.remove(&incarnation);
            return self.evict(peer, incarnation, &hello.address);
        }
        let progress = self.progress.entry(peer).or_default();
        progress.arrived = progress.arrived.max(hello.arrived);
        progress.done |= hello.done;
        if [Takeover::Learning, Takeover::Over].contains(&self.takeover) {
            progress.passed = progress.passed.max(hello.passed);
            progress.told = progress.told.max(hello.passed);
        }
        // One that is not in the stream may have been sent to the scheduler before this one.
        if linked {
            progress.known = true;
            progress.missing_at = None;
        }
        if self.net.incarnation_of(peer) == Some(incarnation) {
            return;
        }
        self.net.connect(peer, incarnation, &hello.address, now);
        if hello.reads {
            self.net.only_reads(peer);
        }
        let members = self.book.members.len() as u64;
        let expected = u64::from(self.net.limits.workers) + u64::from(self.net.limits.servers);
        if !self.started && members == expected {
            self.started = true;
            self.publish();
        } else {
            self.tell_book(peer);
        }
    }
}

/// Whether a member says a rank that it was given before members of a started job told its own: it has not
/// heard of that yet.
fn had_another_seat(known: &Standing, hello: &Hello) -> bool {
    hello.book.epoch == 0 && known.address == hello.address && known.reads == hello.reads
}

/// Whether a hello is of the member that has its incarnation: a rank or an address that was told
/// before stays, and a reader does not become a worker.
fn is_own(known: &Standing, peer: Peer, hello: &Hello) -> bool {
    let rank = peer.rank == NO_RANK || peer.rank == known.peer.rank;
    let address = known.address.is_empty() || known.address == hello.address;
    rank && address && known.reads == hello.reads
}

/// Whether a process that has not heard of the start has its rank from a scheduler, and not from its user.
fn was_given_its_rank(peer: Peer, incarnation: u64, hello: &Hello) -> bool {
    let own = hello.book.find(peer).filter(|own| own.incarnation == incarnation);
    hello.book.epoch == 0 && own.is_some()
}
