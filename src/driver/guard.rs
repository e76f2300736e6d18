//! Nobody speaks for another process than its credential says, and a reader changes nothing.

use super::Machine;
use super::bytes::Bytes;
use crate::cluster::{Body, Header, Kind, Message, NO_RANK, Peer, Role as Part};
use crate::credentials::Identity;
use crate::log::{Level, log};
use crate::role::Role;

/// Drops what the holder of a credential may not say.
pub(super) fn keep_own(who: Identity, from: &str, messages: &mut Vec<Message<Bytes>>) {
    messages.retain_mut(|message| {
        let may = speaks_for_itself(who, &message.head)
            && (message.head.kind != Kind::Hello || comes_from(message, from))
            && (!who.is_reader() || only_reads(message));
        if !may {
            let (kind, rank) = (message.head.kind, message.head.rank);
            log(Level::Warn, || {
                let role = role_of(message.head.role).name();
                format!("from {from}: {who} said {kind:?} as {role} {rank}; dropped")
            });
        }
        may
    });
}

/// Once more, now that the members are known: a member is where it said that it is.
pub(super) fn keep_known(
    who: Identity,
    from: &str,
    messages: &mut Vec<Message<Bytes>>,
    machine: &mut Machine,
) {
    messages.retain(|message| {
        let peer = Peer { role: message.head.role, rank: message.head.rank };
        let known = machine.address_of(peer);
        let may = known.is_none_or(|address| address == from) || message.head.kind == Kind::Hello;
        if may && known.is_some() && who.is_reader() {
            machine.only_reads(peer);
        }
        may
    });
}

fn role_of(part: Part) -> Role {
    match part {
        Part::Scheduler => Role::Scheduler,
        Part::Worker => Role::Worker,
        Part::Server => Role::Server,
    }
}

/// Whether the role and the rank are those of its credential.
pub(super) fn speaks_for_itself(who: Identity, head: &Header) -> bool {
    who.allows(role_of(head.role), (head.rank != NO_RANK).then_some(head.rank))
}

/// A hello has the address at which its sender is to be answered, behind two numbers and a length.
fn comes_from(message: &Message<Bytes>, from: &str) -> bool {
    const LENGTH_AT: usize = 8;
    let Some((_, rest)) = message.fields().split_at_checked(LENGTH_AT) else { return false };
    let Some((length, rest)) = rest.split_first_chunk() else { return false };
    let length = usize::from(u16::from_le_bytes(*length));
    rest.get(..length) == Some(from.as_bytes())
}

/// What leaves the job as it is. A reader is done from the beginning, whatever it says.
fn only_reads(message: &mut Message<Bytes>) -> bool {
    let kind = message.head.kind;
    if let (Kind::Hello, Body::Fields(fields)) = (kind, &mut message.body)
        && let Some(done) = fields.last_mut()
    {
        *done = 1;
    }
    match kind {
        Kind::Alive
        | Kind::Hello
        | Kind::Look
        | Kind::Done
        | Kind::Leave
        | Kind::Ask
        | Kind::Pull
        | Kind::Suspect => true,
        // To know where a key is.
        Kind::Declare => message.head.setting == 0 && message.fields().first() == Some(&0),
        _ => false,
    }
}
