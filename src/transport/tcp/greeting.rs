//! The messages by which a connection begins, in the format of docs/internals/wire.md.

use std::fmt;

use crate::config::address::has_port;
use crate::credentials::{Identity, Proof};
use crate::transport::tls::{PublicShare, SHARE};

/// Version of the greeting that this library speaks.
pub(super) const VERSION: u16 = 1;
pub(super) const CALL: [u8; 4] = *b"KVSC";
pub(super) const ANSWER: [u8; 4] = *b"KVSL";
/// Bytes in front of the fields: magic, version, and length of the fields.
const FRONT: usize = 8;
/// Maximum length of the fields in bytes.
const MOST_FIELDS: usize = 1_024;
/// Maximum length of a name in bytes.
const MOST_NAME: usize = 255;
/// Flag of both messages: the sender has a token, or wants one.
const TOKEN: u8 = 1;
/// Flags of a call: over this connection the caller, or the listener, sends, and over another one the other.
const CALLER_SENDS: u8 = 2;
const LISTENER_SENDS: u8 = 4;
/// Flags of a call, and of its answer: records follow the greeting, and a key share follows the fields.
const CALLER_SEALS: u8 = 8;
const LISTENER_SEALS: u8 = 2;
const RANDOM: usize = 32;
/// Length of a verdict in bytes.
pub(super) const VERDICT: usize = 1 + size_of::<Proof>();

pub(super) type Random = [u8; RANDOM];

/// How a listener answers a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Welcome = 0,
    Version = 1,
    WantsTls = 2,
    WantsToken = 3,
    WantsNoToken = 4,
    Full = 5,
    OtherToken = 6,
    NotAllowed = 7,
    Malformed = 8,
    WantsRecords = 9,
}

impl Status {
    const ALL: [Self; 10] = [
        Self::Welcome,
        Self::Version,
        Self::WantsTls,
        Self::WantsToken,
        Self::WantsNoToken,
        Self::Full,
        Self::OtherToken,
        Self::NotAllowed,
        Self::Malformed,
        Self::WantsRecords,
    ];

    pub(super) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|status| *status as u8 == number)
    }
}

/// Why the listener refuses the caller, as its log has it.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Welcome => "it is welcome",
            Self::Version => "it speaks another version of the greeting",
            Self::WantsTls => "it does not speak TLS",
            Self::WantsToken => "it has no token",
            Self::WantsNoToken => "it has a token, and this job has none",
            Self::Full => "there are too many connections",
            Self::OtherToken => "its token is another one",
            Self::NotAllowed => "its identity may not connect here",
            Self::Malformed => "its greeting makes no sense",
            Self::WantsRecords => "it does not seal what it sends",
        })
    }
}

/// Who sends over a connection. Each may, but the system locks a socket during a send, and a thread that
/// reads from it then waits; so two processes that exchange values have a connection for each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    Both,
    CallerSends,
    ListenerSends,
}

/// One of the connections that a caller makes with a listener. Over a long link there are more than one for each
/// direction: the system bounds the bytes that one has in flight. Also called: parallel streams, striping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    /// 0 for the first ones.
    pub(super) number: u8,
    pub(super) direction: Direction,
}

impl Lane {
    pub(super) fn first(direction: Direction) -> Self {
        Self { number: 0, direction }
    }

    /// The lanes beyond the first ones; both processes send over them.
    pub(super) fn further(count: u8) -> impl Iterator<Item = Self> {
        (1..=count).map(|number| Self { number, direction: Direction::Both })
    }

    pub(super) fn caller_sends(self) -> bool {
        self.direction != Direction::ListenerSends
    }

    pub(super) fn listener_sends(self) -> bool {
        self.direction != Direction::CallerSends
    }

    /// Whether it is the one without which the caller sends nothing.
    pub(super) fn is_main(self) -> bool {
        self.number == 0 && self.caller_sends()
    }
}

/// The first message: who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) has_token: bool,
    pub(super) lane: Lane,
    pub(super) random: Random,
    /// The identity on the caller's credential.
    pub(super) identity: Option<Identity>,
    /// The address of a caller that listens, else the name of its process.
    pub(super) name: String,
    /// With it, records are to follow the greeting.
    pub(super) share: Option<PublicShare>,
}

/// The listener's answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: Status,
    pub(super) wants_token: bool,
    pub(super) random: Random,
    pub(super) identity: Option<Identity>,
    /// With it, records follow the greeting.
    pub(super) share: Option<PublicShare>,
}

/// A message that no process of this library sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Malformed {
    /// It speaks another version of the greeting.
    Version,
    Nonsense,
}

impl Call {
    pub(super) fn encode(&self) -> Vec<u8> {
        let direction = match self.lane.direction {
            Direction::Both => 0,
            Direction::CallerSends => CALLER_SENDS,
            Direction::ListenerSends => LISTENER_SENDS,
        };
        let token = if self.has_token { TOKEN } else { 0 };
        let seals = if self.share.is_some() { CALLER_SEALS } else { 0 };
        let mut fields = vec![direction | token | seals, self.lane.number];
        fields.extend_from_slice(&self.random);
        put_text(&mut fields, &self.identity.map_or(String::new(), |it| it.to_string()));
        put_text(&mut fields, &self.name);
        fields.extend(self.share.iter().flatten());
        message(CALL, &fields)
    }

    /// Decodes a whole message.
    pub(super) fn decode(message: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(message.get(FRONT..).unwrap_or_default());
        let first = fields.bytes(2)?;
        let (flags, number) = (first[0], first[1]);
        let (has_token, sends) = (flags & TOKEN != 0, flags & (CALLER_SENDS | LISTENER_SENDS));
        let direction = match sends {
            CALLER_SENDS => Direction::CallerSends,
            LISTENER_SENDS => Direction::ListenerSends,
            _ => Direction::Both,
        };
        let random = fields.random()?;
        let identity = fields.identity()?;
        let name = fields.text()?;
        let is_name = !name.is_empty()
            && name.len() <= MOST_NAME
            && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'@' && byte != b'/');
        if !is_name || identity.is_some_and(|who| who.listens() && !has_port(name)) {
            return Err(Malformed::Nonsense);
        }
        let share = fields.share(flags & CALLER_SEALS != 0)?;
        let lane = Lane { number, direction };
        Ok(Self { has_token, lane, random, identity, name: name.into(), share })
    }
}

impl Answer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let token = if self.wants_token { TOKEN } else { 0 };
        let seals = if self.share.is_some() { LISTENER_SEALS } else { 0 };
        let mut fields = vec![self.status as u8, token | seals];
        fields.extend_from_slice(&self.random);
        put_text(&mut fields, &self.identity.map_or(String::new(), |it| it.to_string()));
        let reason = match self.status {
            Status::Welcome => String::new(),
            status => status.to_string(),
        };
        put_text(&mut fields, &reason);
        fields.extend(self.share.iter().flatten());
        message(ANSWER, &fields)
    }

    /// Decodes a whole message.
    pub(super) fn decode(message: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(message.get(FRONT..).unwrap_or_default());
        let first = fields.bytes(2)?;
        let (status, flags) = (Status::of(first[0]), first[1]);
        let random = fields.random()?;
        let identity = fields.identity()?;
        fields.text()?;
        let share = fields.share(flags & LISTENER_SEALS != 0)?;
        // A status of a later version is some refusal.
        let status = status.unwrap_or(Status::Malformed);
        Ok(Self { status, wants_token: flags & TOKEN != 0, random, identity, share })
    }
}

/// The length of the first message, once that is known; an error as soon as the bytes can begin none.
pub(super) fn len(magic: [u8; 4], bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    let known = bytes.len().min(magic.len());
    if bytes[..known] != magic[..known] {
        return Err(Malformed::Nonsense);
    }
    let Some([_, _, _, _, low, high, len @ ..]) = bytes.first_chunk::<FRONT>() else {
        return Ok(None);
    };
    if u16::from_le_bytes([*low, *high]) != VERSION {
        return Err(Malformed::Version);
    }
    let len = usize::from(u16::from_le_bytes(*len));
    if len > MOST_FIELDS { Err(Malformed::Nonsense) } else { Ok(Some(FRONT + len)) }
}

/// Takes the first message off the front of the received bytes, if it is whole.
pub(super) fn take(magic: [u8; 4], received: &mut Vec<u8>) -> Result<Option<Vec<u8>>, Malformed> {
    match len(magic, received)? {
        Some(len) if len <= received.len() => Ok(Some(received.drain(..len).collect())),
        _ => Ok(None),
    }
}

fn message(magic: [u8; 4], fields: &[u8]) -> Vec<u8> {
    let len = u16::try_from(fields.len()).unwrap_or(u16::MAX).to_le_bytes();
    [&magic[..], &VERSION.to_le_bytes(), &len, fields].concat()
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let text = &text.as_bytes()[..text.len().min(MOST_NAME)];
    out.extend_from_slice(&u16::try_from(text.len()).unwrap_or_default().to_le_bytes());
    out.extend_from_slice(text);
}

/// The fields of a message, which are taken from the front. Those of later versions stay.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(Malformed::Nonsense)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn random(&mut self) -> Result<Random, Malformed> {
        self.bytes(RANDOM)?.try_into().map_err(|_| Malformed::Nonsense)
    }

    fn share(&mut self, is_there: bool) -> Result<Option<PublicShare>, Malformed> {
        let share = if is_there { Some(self.bytes(SHARE)?) } else { None };
        share.map(|share| share.try_into().map_err(|_| Malformed::Nonsense)).transpose()
    }

    fn text(&mut self) -> Result<&'a str, Malformed> {
        let len = self.bytes(2)?;
        let len = usize::from(len[0]) | usize::from(len[1]) << 8;
        std::str::from_utf8(self.bytes(len)?).map_err(|_| Malformed::Nonsense)
    }

    fn identity(&mut self) -> Result<Option<Identity>, Malformed> {
        match self.text()? {
            "" => Ok(None),
            name => Identity::parse(name).map(Some).ok_or(Malformed::Nonsense),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Call {
        let identity = Identity::parse("worker.3");
        let lane = Lane::first(Direction::Both);
        let (random, name) = ([9; RANDOM], "host.1.a".into());
        Call { has_token: true, lane, random, identity, name, share: None }
    }

    #[test]
    fn a_call_and_an_answer_are_read_as_they_are_written() {
        let identity = Identity::parse("scheduler");
        for call in [
            call(),
            Call { has_token: false, identity: None, ..call() },
            Call { lane: Lane::first(Direction::CallerSends), ..call() },
            Call { lane: Lane::first(Direction::ListenerSends), ..call() },
            Call { lane: Lane { number: 200, direction: Direction::Both }, ..call() },
            Call { share: Some([7; SHARE]), ..call() },
        ] {
            assert_eq!(Call::decode(&call.encode()), Ok(call));
        }
        for status in Status::ALL {
            for share in [None, Some([7; SHARE])] {
                let random = [1; RANDOM];
                let answer = Answer { status, wants_token: true, random, identity, share };
                assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
            }
        }
    }

    #[test]
    fn a_message_is_taken_when_it_is_whole_and_fields_of_later_versions_are_skipped() {
        let mut later = call().encode();
        later.extend_from_slice(&[1, 2, 3]);
        later[6] += 3;
        let all = [&later[..], &[7]].concat();
        for end in 0..later.len() {
            assert_eq!(take(CALL, &mut all[..end].to_vec()), Ok(None));
        }
        let mut received = all;
        assert_eq!(take(CALL, &mut received), Ok(Some(later.clone())));
        assert_eq!(received, [7]);
        assert_eq!(Call::decode(&later), Ok(call()));
    }

    #[test]
    fn what_is_no_greeting_is_known_from_its_first_bytes() {
        assert_eq!(len(CALL, b"X"), Err(Malformed::Nonsense));
        assert_eq!(len(CALL, b"KVSL"), Err(Malformed::Nonsense));
        assert_eq!(len(CALL, b"KVSC\x02\0\0\0"), Err(Malformed::Version));
        assert_eq!(len(CALL, b"KVSC\x01\0\x01\x04"), Err(Malformed::Nonsense));
        assert_eq!(len(CALL, b"KVSC\x01\0\0\x04"), Ok(Some(FRONT + MOST_FIELDS)));
    }

    #[test]
    fn names_that_no_process_has_are_refused() {
        let with = |identity: &str, name: &str| Call {
            identity: Identity::parse(identity),
            name: name.into(),
            ..call()
        };
        for (identity, name) in [
            ("", ""),
            ("", "worker.3@host"),
            ("", "a/b"),
            ("", "a b"),
            ("", "caf\u{e9}"),
            ("server", "host.1.a"),
        ] {
            assert_eq!(Call::decode(&with(identity, name).encode()), Err(Malformed::Nonsense));
        }
        for (identity, name) in [
            ("", "10.0.0.2:7"),
            ("server.0", "[::1]:7"),
            ("worker", "[::1]:7"),
            ("reader", "host.1.a"),
        ] {
            assert!(Call::decode(&with(identity, name).encode()).is_ok(), "{identity} {name}");
        }
        let whole = call().encode();
        for end in FRONT..whole.len() {
            assert_eq!(Call::decode(&whole[..end]), Err(Malformed::Nonsense));
        }
    }
}
