//! A scheduler that was started again takes the job over from its members.

use super::scheduler::Scheduler;
use crate::cluster::common::{Data, Time};
use crate::cluster::wire::{Book, Standing, State};

impl<D: Data> Scheduler<D> {
    /// Takes over what a member of a running job knows, after a restart.
    pub(super) fn adopt(&mut self, theirs: &Book, now: Time) {
        let before = std::mem::take(&mut self.book);
        self.book = if self.started { before.clone() } else { theirs.clone() };
        if !self.started {
            self.started = true;
            if let Some(terms) = &theirs.terms {
                self.set_terms(terms);
            }
            self.take_over(&before, now);
        }
        // Who is gone for one is gone for all; and who has left was not lost.
        let mut news = false;
        for gone in theirs.members.iter().filter(|member| member.state != State::Here) {
            let Some(ours) = self.book.find_mut(gone.peer) else { continue };
            if ours.state == State::Here {
                ours.state = gone.state;
                news = true;
                if let Some(progress) = self.progress.get_mut(&gone.peer) {
                    progress.missing_at = None;
                }
            }
        }
        let behind = self.book.epoch < theirs.epoch;
        self.book.epoch = self.book.epoch.max(theirs.epoch);
        if news || behind {
            self.publish();
        }
    }

    /// The members of a running job must show up; processes that wanted their places must go, and
    /// those that were given another rank meanwhile get their own.
    fn take_over(&mut self, before: &Book, now: Time) {
        let mut progress = std::mem::take(&mut self.progress);
        let mut names = Vec::new();
        for other in &before.members {
            let same = |m: &&Standing| {
                m.peer.role == other.peer.role && m.incarnation == other.incarnation
            };
            if let Some(known) = self.book.members.iter().find(same) {
                names.push((other.peer, known.peer));
                self.progress.extend(progress.remove(&other.peer).map(|p| (known.peer, p)));
            } else {
                let text = format!("{} belongs to a running job already", other.peer);
                self.refuse(&other.address, other.incarnation, text);
                self.net.disconnect(other.peer);
            }
        }
        self.net.rename(&names);
        let missing_at = Some(now + self.net.limits.silence());
        for member in self.book.members.clone() {
            let progress = self.progress.entry(member.peer).or_default();
            if member.state == State::Here && !progress.known {
                progress.missing_at = missing_at;
            }
            self.tell_book(member.peer);
        }
    }
}
