//! Admission of frames (also: authorization): the holder of a credential sends frames of its own role and
//! rank, from its own address, and a reader only those that leave the job as it is.
//!
//! The transport has verified the credential before; here the frame is compared with it.

use crate::job::{Data, NO_RANK, Role};
use crate::message::{
    Body, Book, ExchangeAddress, Field as _, Header, Hello, Message, MessageKind, Proposal,
};

/// Identity that a credential proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthenticatedPeer {
    /// Role of the holder.
    pub role: Role,
    /// Rank of the holder; None for a credential of any process of the role.
    pub rank: Option<u32>,
    /// The holder is a reader: it pulls values, and changes nothing.
    pub reads: bool,
}

/// Reason for which a frame is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdmissionError {
    /// Role or rank are not those of the credential.
    Identity,
    /// Role and rank of a member, from another address.
    Address,
    /// A message of a reader that would change the job.
    Changes,
    /// A reader that introduces itself as a worker that pushes.
    Pushes,
}

impl AuthenticatedPeer {
    /// Whether role and rank of a frame are those of the credential. To be called before the payload is read.
    #[must_use]
    pub fn is(self, head: &Header) -> bool {
        let rank = (head.rank != NO_RANK).then_some(head.rank);
        self.role == head.role && (self.rank.is_none() || self.rank == rank)
    }

    /// Admits a frame from an address, before [`Machine::receive`](crate::Machine::receive);
    /// `Err` is the reason to drop it. The Hello of a
    /// reader loses the fields that a reader must not decide.
    pub fn admit<D: Data>(
        self,
        from: &str,
        message: &mut Message<D>,
    ) -> Result<(), AdmissionError> {
        if !self.is(&message.head) {
            return Err(AdmissionError::Identity);
        }
        if message.head.kind == MessageKind::Hello {
            return self.greet(from, message);
        }
        if self.reads && !only_reads(message) {
            return Err(AdmissionError::Changes);
        }
        Ok(())
    }

    /// A hello must have the address that it was sent from. A reader is done from the beginning, has arrived
    /// at no barrier, and knows nothing of the job.
    fn greet<D: Data>(self, from: &str, message: &mut Message<D>) -> Result<(), AdmissionError> {
        let hello = Hello::decode(message.fields()).filter(|hello| hello.address == from);
        let Some(mut hello) = hello else { return Err(AdmissionError::Address) };
        if self.reads && !hello.reads {
            return Err(AdmissionError::Pushes);
        }
        if self.reads {
            hello.done = true;
            (hello.arrived, hello.passed, hello.book) = (0, 0, Book::default());
            (hello.resume, hello.resumed) = Default::default();
            *hello.exchange = ExchangeAddress::default();
            message.body = Body::Fields(hello.encode());
        }
        Ok(())
    }
}

/// Whether a frame is from the address of the linked process of its role and rank: `linked` is the result of
/// [`Machine::linked`](crate::Machine::linked). The Hello of
/// another incarnation is admitted: the scheduler decides on it.
#[must_use]
pub fn is_at(head: &Header, linked: Option<(&str, u64)>, from: &str) -> bool {
    linked.is_none_or(|(address, incarnation)| {
        address == from || (head.kind == MessageKind::Hello && head.incarnation != incarnation)
    })
}

/// Whether a message leaves the job as it is.
fn only_reads<D: Data>(message: &Message<D>) -> bool {
    match message.head.kind {
        MessageKind::Bundle => message.parts().iter().all(only_reads),
        // A reader announces that it makes no pushes; rounds would wait for any other number.
        MessageKind::Done => message.head.round == 0,
        MessageKind::Alive
        | MessageKind::Look
        | MessageKind::Leave
        | MessageKind::Ask
        | MessageKind::Pull
        | MessageKind::Report
        | MessageKind::Suspect
        | MessageKind::Unknown(_) => true,
        // A lookup of a key.
        MessageKind::Declare => {
            let proposal = Proposal::decode_key(message.fields());
            message.head.setting == 0 && matches!(proposal, Some(Proposal::Key(_, None)))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Peer;
    use crate::message::{KeySpec, MemberState, ResumePoint, Standing};
    use crate::sim::{Bytes, limits};

    const WORKER: AuthenticatedPeer =
        AuthenticatedPeer { role: Role::Worker, rank: Some(1), reads: false };
    const READER: AuthenticatedPeer = AuthenticatedPeer { reads: true, ..WORKER };

    /// The admitted message of worker 1, which is at `here`.
    fn kept(
        who: AuthenticatedPeer,
        kind: MessageKind,
        fields: Vec<u8>,
    ) -> Result<Message<Bytes>, AdmissionError> {
        let mut message = Message::new(kind, fields);
        (message.head.role, message.head.rank) = (Role::Worker, 1);
        who.admit("here", &mut message).map(|()| message)
    }

    fn hello(address: &str) -> Hello {
        Hello { address: address.into(), ..Hello::default() }
    }

    #[test]
    fn a_hello_is_that_of_its_sender_and_whole() {
        let own = hello("here").encode();
        assert_eq!(kept(WORKER, MessageKind::Hello, own.clone()).unwrap().fields(), own);
        for address in ["", "here2", "her", "there"] {
            let said = kept(WORKER, MessageKind::Hello, hello(address).encode());
            assert_eq!(said.unwrap_err(), AdmissionError::Address, "{address}");
        }
        // Without the last fields it is the hello of an earlier release.
        let without_exchanges = own.len() - 10;
        let without_resumes = without_exchanges - 2 * 32;
        let without_launch = without_resumes - size_of::<u128>();
        let earlier = [without_exchanges, without_resumes, without_launch];
        for end in (0..own.len()).filter(|end| !earlier.contains(end)) {
            assert!(kept(WORKER, MessageKind::Hello, own[..end].to_vec()).is_err(), "cut at {end}");
        }
        for other in [
            AuthenticatedPeer { rank: Some(2), ..WORKER },
            AuthenticatedPeer { role: Role::Server, ..WORKER },
        ] {
            let said = kept(other, MessageKind::Hello, own.clone());
            assert_eq!(said.unwrap_err(), AdmissionError::Identity, "{other:?}");
        }
        assert!(kept(AuthenticatedPeer { rank: None, ..WORKER }, MessageKind::Hello, own).is_ok());
    }

    #[test]
    fn the_hello_of_a_reader_says_nothing_of_the_job() {
        let lost = Standing {
            peer: Peer::server(0),
            incarnation: 3,
            state: MemberState::Lost,
            reads: false,
            address: "there".into(),
            features: 5,
            cause: String::new(),
            exchange: crate::message::ExchangeAddress::default(),
        };
        let terms = Some(limits().terms().into());
        let book = Book { epoch: 7, terms: terms.clone(), features: 6, members: vec![lost] };
        let forged = Hello {
            book,
            arrived: 8,
            passed: 9,
            resume: Box::new(ResumePoint { number: 3, pushes: 4, barriers: 5, agreements: 6 }),
            resumed: Box::new(ResumePoint { number: 2, ..ResumePoint::default() }),
            terms: terms.clone(),
            reads: true,
            ..hello("here")
        };
        let said = kept(READER, MessageKind::Hello, forged.encode()).unwrap();
        let plain = Hello { terms, done: true, reads: true, ..hello("here") };
        assert_eq!(Hello::decode(said.fields()), Some(plain));
        let said = kept(WORKER, MessageKind::Hello, forged.encode()).unwrap();
        assert_eq!(Hello::decode(said.fields()), Some(forged));
    }

    #[test]
    fn a_reader_says_that_it_reads() {
        let of = |reads, done| Hello { done, reads, ..hello("here") }.encode();
        for done in [false, true] {
            let said = kept(READER, MessageKind::Hello, of(false, done));
            assert_eq!(said.unwrap_err(), AdmissionError::Pushes);
            assert!(kept(READER, MessageKind::Hello, of(true, done)).is_ok());
            assert!(kept(WORKER, MessageKind::Hello, of(false, done)).is_ok());
        }
    }

    #[test]
    fn a_reader_makes_nothing() {
        let spec = KeySpec { dtype: 0x0001_2002, shape: vec![3], whole: false };
        let makes = Proposal::Key(0, Some(spec)).encode();
        let asks = Proposal::Key(0, None).encode();
        assert_eq!(
            kept(READER, MessageKind::Declare, makes.clone()).unwrap_err(),
            AdmissionError::Changes
        );
        assert!(kept(READER, MessageKind::Declare, asks.clone()).is_ok());
        assert!(kept(WORKER, MessageKind::Declare, makes.clone()).is_ok());
        for kind in MessageKind::ALL.iter().filter(|kind| kind.carries_slice()) {
            assert!(kept(READER, *kind, Vec::new()).is_err(), "{kind:?}");
        }
        // A kind of a later release has no effect, and its stream goes on.
        let unknown = MessageKind::Unknown(40);
        assert!(kept(READER, unknown, vec![1]).is_ok());
        let others = [
            (Message::<Bytes>::new(MessageKind::Declare, makes), false),
            (Message::new(MessageKind::Declare, asks), true),
            (Message::new(unknown, Vec::new()), true),
        ];
        let kinds = [MessageKind::Pull, MessageKind::Push, MessageKind::Init, MessageKind::Remove];
        let kinds = kinds.map(|kind| (Message::new(kind, Vec::new()), kind == MessageKind::Pull));
        for (other, allowed) in others.into_iter().chain(kinds) {
            let text = format!("{other:?}");
            let pull = Message::new(MessageKind::Pull, Vec::new());
            let mut bundle = Message::bundle(vec![pull, other]);
            (bundle.head.role, bundle.head.rank) = (Role::Worker, 1);
            assert_eq!(READER.admit("here", &mut bundle).is_ok(), allowed, "{text}");
        }
        for (round, allowed) in [(0, true), (1, false), (u64::MAX, false)] {
            let mut done = Message::<Bytes>::of_key(MessageKind::Done, 3, 1, Vec::new());
            (done.head.role, done.head.rank, done.head.round) = (Role::Worker, 1, round);
            assert_eq!(READER.admit("here", &mut done).is_ok(), allowed, "{round}");
        }
    }

    #[test]
    fn a_member_speaks_from_its_own_address() {
        let of = |kind, incarnation| Header { kind, incarnation, ..Header::default() };
        let linked = Some(("there", 5));
        for kind in [MessageKind::Hello, MessageKind::Alive, MessageKind::Pull] {
            assert!(is_at(&of(kind, 5), None, "here") && is_at(&of(kind, 5), linked, "there"));
            assert!(!is_at(&of(kind, 5), linked, "here"), "{kind:?}");
            assert_eq!(is_at(&of(kind, 6), linked, "here"), kind == MessageKind::Hello);
        }
    }
}
