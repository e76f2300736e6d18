//! Looks of observers at a server (also: monitoring): echoes, and digests of its slices.

use super::Node;
use crate::drops::{DropReason, Handled};
use crate::job::{Data, Role, Time};
use crate::machine::NodeRole;
use crate::message::{Content, Header, Look, Message, MessageKind, SeenDigests, echo_of};

/// Maximum requests for digests that wait for the driver, which takes them in the same step.
const MOST_LOOKS: usize = 32;

/// An observer's request for digests of slices.
#[derive(Debug, Clone)]
pub struct DigestLook {
    /// Number of slices to skip, in the order of the server.
    pub skip: usize,
    head: Header,
    look: Look,
}

#[expect(private_bounds, reason = "only the worker and the server of this crate are roles")]
impl<D: Data, R: NodeRole<D>> Node<D, R> {
    /// Answers an observer's probe of the frame size (path MTU), and keeps a request for digests for the driver.
    /// Servers answer no other Looks.
    pub(super) fn look(&mut self, message: Message<D>, now: Time) -> Handled {
        if !self.net.may_echo(now) {
            return Err(DropReason::TooMany);
        }
        let head = message.head.clone();
        let (echo, digests) = {
            let fields = message.body.fields();
            (Look::echo(fields), Look::digests(fields))
        };
        let Content::Look(look) = Content::read(&head, message.body)? else {
            return Err(DropReason::Misdirected);
        };
        match (echo, digests) {
            (Some(bytes), _) if R::ROLE == Role::Server => {
                let answer = Message::new(MessageKind::Seen, echo_of(bytes));
                self.net.answer_look(&head, &look, answer);
                Ok(())
            }
            (None, Some(skip)) if R::ROLE == Role::Server && self.looks.len() < MOST_LOOKS => {
                let skip = usize::try_from(skip).unwrap_or(usize::MAX);
                self.looks.push(DigestLook { skip, head, look });
                Ok(())
            }
            _ => Err(DropReason::Misdirected),
        }
    }

    /// Takes the requests for digests, for [`show_digests`](Self::show_digests).
    pub fn digest_looks(&mut self) -> Vec<DigestLook> {
        std::mem::take(&mut self.looks)
    }

    /// Answers a request for digests.
    pub fn show_digests(&mut self, of: &DigestLook, digests: &SeenDigests) {
        let answer = Message::new(MessageKind::Seen, digests.encode());
        self.net.answer_look(&of.head, &of.look, answer);
    }
}
