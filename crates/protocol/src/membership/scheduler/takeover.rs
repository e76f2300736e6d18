//! Takeover (also: state recovery): a restarted scheduler learns the job from its members.
//!
//! The books of workers and servers have the members of the job and their states; they count until each
//! member has sent its hello or is lost. The address of a member is learned from that member alone. A
//! scheduler that has started its job itself learns nothing from the books of others, but which members have
//! left while it was cut off.

use super::Scheduler;
use crate::job::{Data, Peer, Role, Time};
use crate::message::kinds::Who;
use crate::message::{Book, Hello, MemberState, Standing};

/// Stage of the takeover: whether an earlier scheduler has started the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takeover {
    None,
    /// Hellos of members are missing, and the books of the others count.
    Learning,
    /// This scheduler may have been cut off: a worker that has left meanwhile has told the servers only.
    /// Nothing else in the books counts.
    Doubt,
    Over,
}

impl<D: Data> Scheduler<D> {
    /// Learns the book of a member of a running job, after a restart.
    pub(super) fn adopt(&mut self, peer: Peer, incarnation: u64, hello: &Hello, now: Time) {
        let theirs = &hello.book;
        // The sender is a member itself.
        let has = |book: &Book| {
            let found = book.find(peer);
            found.is_some_and(|member| member.incarnation == incarnation && !member.reads)
        };
        let learning = [Takeover::Learning, Takeover::Doubt].contains(&self.takeover);
        let learns = !self.started || (learning && has(&self.book));
        if hello.reads || theirs.epoch == 0 || !learns || !has(theirs) {
            return;
        }
        if !self.started {
            self.take_over(theirs, now);
        }
        self.note_places(theirs);
        // A member that is lost or has left for one is so for all; one that has left was not lost.
        let mut news = false;
        for gone in theirs.members.iter().filter(|member| member.state != MemberState::Here) {
            if self.takeover == Takeover::Doubt && gone.state != MemberState::Left {
                continue;
            }
            let ours = self.book.find_mut(gone.peer);
            let Some(ours) = ours.filter(|ours| ours.incarnation == gone.incarnation) else {
                continue;
            };
            if ours.state == MemberState::Here {
                ours.state = gone.state;
                ours.cause.clone_from(&gone.cause);
                news = true;
                if let Some(progress) = self.progress.get_mut(&gone.peer) {
                    progress.missing_at = None;
                }
            }
        }
        let behind = self.takeover == Takeover::Learning && self.book.epoch < theirs.epoch;
        if behind {
            self.book.epoch = theirs.epoch;
        }
        if news || behind {
            self.publish_epoch();
        }
    }

    /// Begins the takeover: members of the running job must send their hello, processes that asked for their
    /// ranks are refused, and those that were assigned another rank meanwhile get their own.
    fn take_over(&mut self, theirs: &Book, now: Time) {
        (self.started, self.takeover) = (true, Takeover::Learning);
        // Until the hello of a worker, these terms serve for timeouts.
        if let Some(terms) = &theirs.terms {
            self.net.limits.adopt(&terms.known);
        }
        let members = theirs.members.iter().cloned();
        let members = members.map(|member| Standing { address: String::new(), ..member }).collect();
        let features = self.book.features;
        let book = Book { epoch: theirs.epoch, terms: None, features, members };
        let before = std::mem::replace(&mut self.book, book);
        let mut progress = std::mem::take(&mut self.progress);
        let mut names = Vec::new();
        for other in &before.members {
            let same = |m: &&mut Standing| {
                let who = (m.peer.role, m.incarnation, m.reads);
                who == (other.peer.role, other.incarnation, other.reads)
            };
            if let Some(known) = self.book.members.iter_mut().find(same) {
                known.address.clone_from(&other.address);
                // Its hello to this scheduler had the terms.
                if known.peer.role == Role::Worker && !known.reads {
                    self.book.terms.clone_from(&before.terms);
                }
                names.push((other.peer, known.peer));
                self.progress.extend(progress.remove(&other.peer).map(|p| (known.peer, p)));
            } else {
                let text = format!("{} belongs to a running job already", other.peer);
                self.refuse(&other.address, other.incarnation, text);
                self.net.disconnect(other.peer);
            }
        }
        if let Some(terms) = &self.book.terms {
            self.net.limits.adopt(&terms.known);
        }
        self.net.rename(&names);
        debug_assert!(
            self.progress.keys().all(|peer| self.book.find(*peer).is_some()),
            "progress is that of members"
        );
        let missing_at = Some(now + self.net.limits.silence());
        for member in self.book.members.clone() {
            let progress = self.progress.entry(member.peer).or_default();
            if member.state == MemberState::Here && !progress.known {
                progress.missing_at = missing_at;
            }
            self.tell_book(member.peer);
        }
    }

    /// Records the addresses in another member's book, only to send Who there.
    fn note_places(&mut self, theirs: &Book) {
        for member in &theirs.members {
            if let Some(progress) = self.progress.get_mut(&member.peer) {
                progress.rumoured.get_or_insert_with(|| member.address.clone());
            }
        }
    }

    /// Asks a member without a link to introduce itself.
    pub(super) fn ask_who(&mut self, known: &Standing) {
        if let Some(address) = self.whereabouts(known) {
            self.net.cast(&address, known.incarnation, Who {}.into());
        }
    }

    /// Address of a member for a frame outside of its stream.
    pub(super) fn whereabouts(&self, known: &Standing) -> Option<String> {
        let rumoured = || self.progress.get(&known.peer)?.rumoured.clone();
        let told = Some(&known.address).filter(|address| !address.is_empty());
        told.cloned().or_else(rumoured)
    }

    /// Ends the takeover once each member has sent its hello or is lost, and publishes all addresses.
    pub(super) fn stop_learning(&mut self) {
        match self.takeover {
            Takeover::Learning => {
                self.takeover = Takeover::Over;
                self.learned_at = Some(self.net.last_now());
                self.publish_epoch();
            }
            Takeover::Doubt => self.takeover = Takeover::None,
            Takeover::None | Takeover::Over => {}
        }
    }
}
