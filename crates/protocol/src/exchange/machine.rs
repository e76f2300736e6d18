//! The exchanges of a worker as the state machine of a driver.

use std::vec::Drain;

use super::{ExchangeId, Exchanges};
use crate::drops::{DropCount, DropReason};
use crate::job::{Data, Failure, Limits, Peer, Reason, Role, Time};
use crate::machine::Machine;
use crate::message::{BadFrame, Message, MessageKind};
use crate::peers::{Incoming, OutgoingFrame, PeerEvent};

impl<D: Data> Machine<D> for Exchanges<D> {
    fn me(&self) -> Peer {
        self.net.me
    }

    fn limits(&self) -> &Limits {
        &self.net.limits
    }

    fn linked(&self, peer: Peer) -> Option<(&str, u64)> {
        self.net.linked(peer)
    }

    fn features(&self, peer: Peer) -> u64 {
        self.net.features(peer)
    }

    fn has_started(&self) -> bool {
        true
    }

    fn end(&self) -> Option<&Result<(), Failure>> {
        None
    }

    fn receive(&mut self, message: Message<D>, now: Time) {
        self.net.notice_pause(now);
        let (from, kind) = (message.head.sender(), message.head.kind);
        if from.role != Role::Worker {
            return self.net.note_drop(from, kind, DropReason::Misdirected);
        }
        let was_heard = self.is_heard(from.rank);
        match self.net.receive(message, now, usize::MAX) {
            Incoming::Linked(mut received) => {
                if !was_heard {
                    self.send_waiting(from.rank);
                }
                for token in received.delivered.drain(..) {
                    let id = ExchangeId { group: token.group, number: token.operation };
                    if let Some(call) = self.calls.get_mut(&id) {
                        call.note_delivered(from.rank);
                        self.finish_if_complete(id);
                    }
                }
                self.net.give_back(from, received.delivered);
                for message in received.next.into_iter().chain(received.early) {
                    let kind = message.head.kind;
                    if kind != MessageKind::Alive {
                        let handled = self.message(from.rank, message);
                        self.net.note_handled(from, kind, handled);
                    }
                }
            }
            Incoming::Stranger(_) => self.net.note_drop(from, kind, DropReason::Stranger),
            // Noted before.
            Incoming::Stale | Incoming::Former(..) => {}
        }
    }

    fn bad_frame(&mut self, _: &str, _: BadFrame, _: Time) {
        self.net.note_bad();
    }

    fn down(&mut self, address: &str, _: Time) {
        let gone = self.net.addresses().find(|(_, known)| *known == address).map(|(peer, _)| peer);
        if let Some(peer) = gone {
            let text = format!("{peer} at {address} has ended");
            self.lose(peer.rank, &Failure::new(Reason::PeerLost, text));
        }
    }

    fn reconnected(&mut self, address: &str, now: Time) {
        self.net.reconnected(address, now);
    }

    fn refused(&mut self, address: &str, reason: &str, _: Time) {
        let refuses =
            self.net.addresses().find(|(_, known)| *known == address).map(|(peer, _)| peer);
        if let Some(peer) = refuses {
            let text = format!("{}: no way to {peer}: {reason}", self.net.me);
            self.lose(peer.rank, &Failure::new(Reason::Refused, text));
        }
    }

    fn tick(&mut self, now: Time) {
        self.net.notice_pause(now);
        for peer in self.net.silent(now) {
            if self.is_heard(peer.rank) {
                self.miss(peer.rank);
            } else {
                self.unheard.push(peer.rank);
            }
        }
        self.expire(now);
    }

    fn send(&mut self, now: Time) -> Drain<'_, OutgoingFrame<D>> {
        self.net.send(now)
    }

    fn ignored(&self) -> Vec<DropCount> {
        self.net.ignored()
    }

    fn news(&mut self) -> Vec<PeerEvent> {
        self.net.news()
    }

    fn wake_at(&self) -> Time {
        self.net.wake_at().min(self.wake)
    }
}
