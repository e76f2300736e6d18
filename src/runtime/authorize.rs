//! Authorization of frames: each must fit the identity that the engine has authenticated. Also called: access
//! control.

use super::Machine;
use super::buffers::Bytes;
use super::event_log::Ledger;
use crate::credentials::{CredentialKind, Identity};
use crate::log::Level;
use crate::role::Role;
use kvstore_protocol::{Breach, Header, MemberRole, Message, Peer, Speaker, is_at};

/// Drops frames that the sender's credential does not permit.
pub(super) fn keep_own(
    who: Identity,
    from: &str,
    messages: &mut Vec<Message<Bytes>>,
    ledger: &Ledger,
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

/// Second check, with the members known: a member's frames must come from the member's own address.
pub(super) fn keep_known(
    who: Identity,
    from: &str,
    messages: &mut Vec<Message<Bytes>>,
    machine: &Machine,
    ledger: &Ledger,
) {
    messages.retain(|message| {
        let peer = Peer { role: message.head.role, rank: message.head.rank };
        let may = is_at(&message.head, machine.linked(peer), from);
        if !may {
            note(ledger, who, from, &message.head, Breach::Address);
        }
        may
    });
}

/// Whether the role and rank of a frame are those of the sender's credential.
pub(super) fn speaks_for_itself(who: Identity, head: &Header) -> bool {
    speaker(who).is(head)
}

fn speaker(who: Identity) -> Speaker {
    let role = match who.kind {
        CredentialKind::Scheduler => MemberRole::Scheduler,
        CredentialKind::Server => MemberRole::Server,
        CredentialKind::Worker | CredentialKind::Reader => MemberRole::Worker,
    };
    Speaker { role, rank: who.rank, reads: who.is_reader() }
}

fn role_of(part: MemberRole) -> Role {
    match part {
        MemberRole::Scheduler => Role::Scheduler,
        MemberRole::Worker => Role::Worker,
        MemberRole::Server => Role::Server,
    }
}

fn note(ledger: &Ledger, who: Identity, from: &str, head: &Header, breach: Breach) {
    let (kind, role) = (head.kind, role_of(head.role).name());
    let why = match breach {
        Breach::Identity => "role or rank are not those of its credential",
        Breach::Address => "the address is not that of the process that it speaks for",
        Breach::Changes => "a reader changes nothing",
        Breach::Pushes => "a reader pushes nothing",
    };
    let reason = format!("dropped a frame {kind:?} as {role}: {why}");
    ledger.note(Level::Warn, who.to_string(), from, reason);
}
