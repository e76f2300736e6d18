//! Nobody speaks for another process than its credential says, and a reader changes nothing.

use super::Machine;
use super::bytes::Bytes;
use crate::cluster::{Body, Declare, Header, Hello, Kind, Message, NO_RANK, Peer, Role as Part};
use crate::credentials::Identity;
use crate::log::{Level, log};
use crate::role::Role;

/// Drops what the holder of a credential may not say.
pub(super) fn keep_own(who: Identity, from: &str, messages: &mut Vec<Message<Bytes>>) {
    messages.retain_mut(|message| {
        let may = speaks_for_itself(who, &message.head)
            && (message.head.kind != Kind::Hello || greets(who, from, message))
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

/// A hello has the address at which its sender is to be answered. A reader is done from the
/// beginning, whatever it says.
fn greets(who: Identity, from: &str, message: &mut Message<Bytes>) -> bool {
    let Some(mut hello) = Hello::decode(message.fields()) else { return false };
    if who.is_reader() {
        hello.done = true;
        message.body = Body::Fields(hello.encode());
    }
    hello.address == from
}

/// What leaves the job as it is.
fn only_reads(message: &Message<Bytes>) -> bool {
    match message.head.kind {
        Kind::Bundle => message.parts().iter().all(|part| part.head.kind == Kind::Pull),
        Kind::Alive
        | Kind::Hello
        | Kind::Look
        | Kind::Done
        | Kind::Leave
        | Kind::Ask
        | Kind::Pull
        | Kind::Suspect => true,
        // To know where a key is.
        Kind::Declare => {
            let declare = Declare::decode(message.fields());
            message.head.setting == 0 && declare.is_some_and(|it| it.spec.is_none())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Spec;

    /// What is left of a message of a worker, of rank 1.
    fn kept(who: &str, kind: Kind, fields: Vec<u8>) -> Option<Message<Bytes>> {
        let mut message = Message::new(kind, fields);
        (message.head.role, message.head.rank) = (Part::Worker, 1);
        let mut messages = vec![message];
        keep_own(Identity::parse(who).unwrap(), "worker.1@here", &mut messages);
        messages.pop()
    }

    fn hello(address: &str) -> Hello {
        Hello { address: address.into(), ..Hello::default() }
    }

    #[test]
    fn a_hello_is_that_of_its_sender_and_whole() {
        let own = hello("worker.1@here").encode();
        let said = kept("worker.1", Kind::Hello, own.clone()).unwrap();
        assert_eq!(said.fields(), own);
        for address in ["", "worker.1@here2", "worker.1@her", "worker.1@there"] {
            assert!(kept("worker.1", Kind::Hello, hello(address).encode()).is_none(), "{address}");
        }
        for end in 0..own.len() {
            assert!(kept("worker.1", Kind::Hello, own[..end].to_vec()).is_none(), "cut at {end}");
        }
        assert!(kept("worker.2", Kind::Hello, own.clone()).is_none());
        assert!(kept("server", Kind::Hello, own).is_none());
    }

    #[test]
    fn a_reader_is_done_and_makes_nothing() {
        let own = hello("worker.1@here").encode();
        let said = kept("reader.1", Kind::Hello, own).unwrap();
        assert!(Hello::decode(said.fields()).unwrap().done);
        let spec = Spec { dtype: 0x0001_2002, shape: vec![3], whole: false };
        let makes = Declare { name: 0, spec: Some(spec) }.encode();
        let asks = Declare { name: 0, spec: None }.encode();
        assert!(kept("reader.1", Kind::Declare, makes.clone()).is_none());
        assert!(kept("reader.1", Kind::Declare, asks).is_some());
        assert!(kept("worker.1", Kind::Declare, makes).is_some());
        for kind in Kind::ALL.iter().filter(|kind| kind.carries_data()) {
            assert!(kept("reader.1", *kind, Vec::new()).is_none(), "{kind:?}");
        }
        for (other, allowed) in [(Kind::Pull, true), (Kind::Push, false), (Kind::Declare, false)] {
            let parts = [Kind::Pull, other].map(|kind| Message::new(kind, Vec::new())).into();
            let mut bundle = Message::bundle(parts);
            (bundle.head.role, bundle.head.rank) = (Part::Worker, 1);
            let mut messages = vec![bundle];
            keep_own(Identity::parse("reader.1").unwrap(), "worker.1@here", &mut messages);
            assert_eq!(!messages.is_empty(), allowed, "{other:?}");
        }
    }
}
