//! Exit notices (also: exit notifications): launchers that have seen their processes end. The word of a launcher is
//! as good as the end of a connection: no grace period follows.
//!
//! A launcher gives each process that it starts a number of its own, by which it names the process here. A
//! process that is started again has another number. The number is a secret of the launcher, the process and
//! the scheduler, so that no member can declare another one dead.

use super::Scheduler;
use crate::drops::{DropReason, Handled};
use crate::job::{Data, Peer};
use crate::message::{Content, Message};

impl<D: Data> Scheduler<D> {
    /// Declares the members lost that a launcher has seen end. Members that have left stay so.
    pub(super) fn exit_notice(&mut self, message: Message<D>) -> Handled {
        let Content::ExitNotice(word) = Content::read(&message.head, message.body)? else {
            return Err(DropReason::Misdirected);
        };
        let is_meant = |peer: Peer, launch| launch == word.launch && self.book.is_here(peer);
        let all = self.progress.iter().filter(|(peer, it)| is_meant(**peer, it.launch));
        let ended: Vec<Peer> = all.map(|(peer, _)| *peer).collect();
        for peer in &ended {
            if let Some(member) = self.book.find_mut(*peer) {
                member.cause.clone_from(&word.how);
            }
            self.lose(*peer);
        }
        if ended.is_empty() { Err(DropReason::Outdated) } else { Ok(()) }
    }
}
