//! Authorization of frames: each must fit the identity that the transport has authenticated. Also called: access
//! control.

use std::collections::VecDeque;

use super::buffers::Bytes;
use super::event_log::DropLog;
use crate::credentials::Identity;
use crate::log::Level;
use kvstore_protocol::{AdmissionError, AuthenticatedPeer, Header, Machine, Message, Peer, is_at};

/// Drops frames that the sender's credential does not permit.
pub(super) fn keep_own(
    who: Identity,
    from: &str,
    messages: &mut VecDeque<Message<Bytes>>,
    ledger: &DropLog,
) {
    let speaker = speaker(who);
    messages.retain_mut(|message| match speaker.admit(from, message) {
        Ok(()) => true,
        Err(breach) => {
            note(ledger, who, from, &message.head, breach);
            false
        }
    });
}

/// Second check, with the members known: a member's frame must come from the member's own address.
pub(super) fn is_known(
    who: Identity,
    from: &str,
    head: &Header,
    machine: &impl Machine<Bytes>,
    ledger: &DropLog,
) -> bool {
    let peer = Peer { role: head.role, rank: head.rank };
    let may = is_at(head, machine.linked(peer), from);
    if !may {
        note(ledger, who, from, head, AdmissionError::Address);
    }
    may
}

/// The process that a credential stands for.
pub(super) fn speaker(who: Identity) -> AuthenticatedPeer {
    AuthenticatedPeer { role: who.kind.role(), rank: who.rank, reads: who.is_reader() }
}

fn note(ledger: &DropLog, who: Identity, from: &str, head: &Header, breach: AdmissionError) {
    let (kind, role) = (head.kind, head.role.name());
    let why = match breach {
        AdmissionError::Identity => "role or rank are not those of its credential",
        AdmissionError::Address => "the address is not that of the process that it speaks for",
        AdmissionError::Changes => "a reader changes nothing",
        AdmissionError::Pushes => "a reader pushes nothing",
    };
    let reason = format!("dropped a frame {kind:?} as {role}: {why}");
    ledger.note(Level::Warn, who.to_string(), from, reason);
}
