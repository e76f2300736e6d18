//! A struct for each kind of message (also: typed messages, schema): the fields of the header that the kind
//! uses, its flags, its payload, and the check of what can be known without any state.
//!
//! The bytes are those of docs/internals/wire.md: a struct becomes a [`Message`] and is read from one, and fields
//! that its kind does not use are 0.

use std::sync::Arc;

use super::body::{Book, Decision, ExitNotice, Hello, Placement, Proposal, ResumePoint, SliceName};
use super::bundle::BundleParts;
use super::facts::{JobView, Look};
use super::groups::GroupTerms;
use super::header::{COLLECTIVE, Header, MessageKind, ROUNDS_OVER, flags};
use super::payload::Payload;
use super::{Body, Message};
use crate::job::{Data, Failure, Peer, Role};
use crate::telemetry::ProcessStats;

/// Why a message has no content for this process.
pub(crate) enum NoContent {
    /// It is invalid: a sentence.
    Invalid(&'static str),
    /// Its kind is one of a later release.
    UnknownKind,
}

pub(crate) const NO_GENERATION: &str = "generations of a key begin at 1";
pub(crate) const NO_ROUND: &str = "pushes are of rounds from 1";
pub(crate) const NO_BARRIER: &str = "barriers have numbers from 1";
pub(crate) const NO_RESUME: &str = "resumes have numbers from 1";
/// Step of an exchange in which results are sent; contributions are sent in step 0.
pub(crate) const LAST_STEP: u32 = 1;
pub(crate) const NO_EXCHANGE: &str = "exchanges have numbers from 1";
pub(crate) const TOO_LONG: &str = "the slice ends behind its value";

/// The field of a header that a field of a struct stands for: the one of its name, or the one given.
macro_rules! at {
    ($head:ident, $field:ident) => {
        $head.$field
    };
    ($head:ident, $field:ident, $at:ident) => {
        $head.$at
    };
}

/// The payload of a struct, or none.
macro_rules! body {
    () => {
        Body::Fields(Vec::new())
    };
    ($payload:expr) => {
        $payload.put()
    };
}

/// `Kind { name: type = field of the header, | name: flag, => name: payload } [invalid => why]`; a field of
/// the header of the same name is not repeated.
/// `whole` kinds use no field of the header: their payload is their struct.
macro_rules! messages {
    (
        whole {
            $($(#[$whole_doc:meta])* $whole:ident = $fields:ty $([$($bad:expr => $reason:expr,)*])?;)+
        }
        $($(#[$doc:meta])* $kind:ident $(<$data:ident>)? {
            $($field:ident: $type:ty $(= $at:ident)?,)*
            $(| $flag:ident: $bit:ident,)*
            $(=> $body:ident: $content:ty)?
        } $([$($wrong:expr => $why:expr,)*])?)+
    ) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone)]
            pub(crate) struct $kind $(<$data>)? {
                $(pub(crate) $field: $type,)*
                $(pub(crate) $flag: bool,)*
                $(pub(crate) $body: $content,)?
            }

            impl<D: Data> From<$kind $(<$data>)?> for Message<D> {
                #[allow(unused_mut, unused_variables, reason = "some kinds have no fields")]
                fn from(of: $kind $(<$data>)?) -> Self {
                    let mut head = Header { kind: MessageKind::$kind, ..Header::default() };
                    $(at!(head, $field $(, $at)?) = of.$field;)*
                    $(head.flags |= if of.$flag { flags::$bit } else { 0 };)*
                    Self { head, body: body!($(of.$body)?) }
                }
            }

            impl $(<$data: Data>)? $kind $(<$data>)? {
                /// The struct of a message, or why the message is invalid.
                #[allow(unused_mut, unused_variables, reason = "some kinds have no fields")]
                fn read<E: Data>(head: &Header, body: Body<E>) -> Result<Self, &'static str>
                where
                    $($content: Payload<E>,)?
                {
                    let mut body = Some(body);
                    $(let $body = <$content as Payload<E>>::take(head, body.take())?;)?
                    <() as Payload<E>>::take(head, body)?;
                    let of = Self {
                        $($field: at!(head, $field $(, $at)?),)*
                        $($flag: head.flags & flags::$bit != 0,)*
                        $($body,)?
                    };
                    of.invalid().map_or(Ok(of), Err)
                }

                /// Why a message of these fields is invalid.
                #[allow(unused_variables, reason = "some kinds have no checks")]
                pub(crate) fn invalid(&self) -> Option<&'static str> {
                    $(let $field = self.$field;)*
                    $(let $flag = self.$flag;)*
                    $(let $body = &self.$body;)?
                    $($(if $wrong { return Some($why); })*)?
                    None
                }
            }
        )+

        $(
            impl<D: Data> From<$fields> for Message<D> {
                fn from(of: $fields) -> Self {
                    let head = Header { kind: MessageKind::$whole, ..Header::default() };
                    Self { head, body: of.put() }
                }
            }
        )+

        /// The content of a message, by its kind.
        #[derive(Debug, Clone)]
        #[allow(dead_code, reason = "of some kinds the variant is all that is needed")]
        pub(crate) enum Content<D> {
            $($(#[$whole_doc])* $whole($fields),)+
            $($(#[$doc])* $kind($kind $(<$data>)?),)+
        }

        impl<D: Data> Content<D> {
            /// The content of a message, or why the message is invalid.
            pub(crate) fn read(head: &Header, body: Body<D>) -> Result<Self, NoContent> {
                Self::take(head, body).map_err(NoContent::Invalid)?.ok_or(NoContent::UnknownKind)
            }

            /// The content; None if the kind is unknown.
            fn take(head: &Header, body: Body<D>) -> Result<Option<Self>, &'static str> {
                match head.kind {
                    $(MessageKind::$whole => {
                        let of = <$fields as Payload<D>>::take(head, Some(body))?;
                        $($(if ($bad)(&of) { return Err($reason); })*)?
                        Ok(Some(Self::$whole(of)))
                    })+
                    $(MessageKind::$kind => {
                        $kind::read(head, body).map(|of| Some(Self::$kind(of)))
                    })+
                    MessageKind::Unknown(_) => Ok(None),
                }
            }
        }
    };
}

messages! {
    whole {
    /// A process asks to join, or a member introduces itself to a new scheduler.
    Hello = Hello [
        |it: &Hello| it.address.is_empty() => "it introduces a process without an address",
        |it: &Hello| it.passed > it.arrived => "its sender has passed more barriers than it arrived at",
    ];
    /// All members with their state.
    Book = Book;
    /// Query of the job's state, by an observer or a member.
    Look = Look [
        |it: &Look| it.address.is_empty() => "it has no address for the answer",
    ];
    /// Answer to a Look.
    Seen = Box<JobView>;
    /// A launcher has seen the end of processes that it started.
    ExitNotice = ExitNotice [
        |it: &ExitNotice| it.launch == 0 => "it names no process",
        |it: &ExitNotice| !it.is_line() => "its text is no short line",
    ];
    }

    /// Acknowledgement and heartbeat, outside of the stream.
    Alive {}
    /// The scheduler refuses the process.
    Refused { => failure: Failure }
    /// The receiver was declared lost.
    Evicted { => failure: Failure }
    /// A scheduler asks an unknown member to introduce itself.
    Who {}
    /// A worker has arrived at a barrier.
    Barrier { number: u64 = round, } [
        number == 0 => NO_BARRIER,
    ]
    /// Barriers up to this one are open.
    Released { barrier: u64 = round, } [
        barrier == 0 => NO_BARRIER,
    ]
    /// A worker made this number of pushes of a key; without a key: the list is complete.
    Done { key: u64, generation: u32, pushes: u64 = round, } [
        generation == 0 && (key, pushes) != (0, 0) => "the end of a list of pushes is of no key",
    ]
    /// The sender leaves the job, or a group, or the scheduler ends the job. `back`: it takes no part in a group that
    /// it could not make known to all servers.
    Leave { | back: BACK, }
    /// A member and its incarnation are silent for the sender (stage 0), or are no longer (stage 1).
    Suspect { stage: u64 = round, => accused: (Peer, u64) } [
        stage > Suspect::TAKEN_BACK => "a suspicion is raised or withdrawn",
        accused.0.role == Role::Scheduler => "it suspects the scheduler that decides",
    ]
    /// Query of the members that a request, a barrier or the start waits for.
    Ask {
        key: u64, generation: u32, slice: u32, round: u64, request: u64, setting: u64,
    }
    /// Answer to an Ask.
    Awaited { request: u64, round: u64, => peers: Vec<Peer> }
    /// A worker proposes or looks up a key, or a setting; withdraws its init (`back`); or, being done, learns
    /// the first key from this one on, or a setting (`learn`).
    Declare { key: u64, setting: u64, request: u64, | learn: LEARN, | back: BACK, => proposal: Proposal } [
        setting > 0 && back => "a setting is not withdrawn",
    ]
    /// Placement of a key with the hash of its name, or the decision on a setting. `provide`: the receiver's
    /// value, or setting, counts. `differs`: it differs from the receiver's, whose request will fail.
    Place {
        key: u64, generation: u32, name: u64 = total, setting: u64, request: u64,
        | provide: PROVIDE, | differs: DIFFERS,
        => decision: Decision
    } [
        setting == 0 && generation == 0 => NO_GENERATION,
    ]
    /// The provider has sent the value, or the setting, to every server.
    Ready { key: u64, generation: u32, setting: u64, request: u64, } [
        setting == 0 && generation == 0 => NO_GENERATION,
    ]
    /// The first value of a slice.
    Init<D> {
        key: u64, generation: u32, slice: u32, offset: u64, total: u64, request: u64,
        => data: D
    } [
        generation == 0 => NO_GENERATION,
        offset.saturating_add(data.len()) > total => TOO_LONG,
    ]
    /// A setting: merge rule, its numbers, or codec, from a version on.
    Setting { version: u64 = setting, request: u64, => fields: Vec<u8> } [
        version == 0 => "versions of settings begin at 1",
        version > COLLECTIVE => "servers merge nothing by a collective call",
    ]
    /// Contribution of a worker to a round of a slice. `granted`: it costs no credit. `answer`: it asks for
    /// the value of its round. `weight` is 0 for a push without one, `part` for one that is no
    /// part of a tree, and `scale` for one whose round is not scaled.
    Push<D> {
        key: u64, generation: u32, slice: u32, round: u64, offset: u64, total: u64,
        request: u64, setting: u64, priority: i32, codec: u16, weight: u64, part: u64,
        scale: u64,
        | granted: GRANTED, | answer: ANSWER,
        => data: D
    } [
        generation == 0 => NO_GENERATION,
        round == 0 || round == ROUNDS_OVER => NO_ROUND,
        codec == 0 && offset.saturating_add(data.len()) > total => TOO_LONG,
    ]
    /// A push that its worker holds back without credit.
    Offer { key: u64, generation: u32, slice: u32, round: u64, } [
        generation == 0 => NO_GENERATION,
        round == 0 || round == ROUNDS_OVER => NO_ROUND,
    ]
    /// An offered push may be sent.
    Grant { key: u64, generation: u32, slice: u32, round: u64, } [
        generation == 0 => NO_GENERATION,
        round == 0 || round == ROUNDS_OVER => NO_ROUND,
    ]
    /// Credit that is returned to a worker.
    Credit { bytes: u64 = total, } [
        bytes == 0 => "it returns no credit",
    ]
    /// Request of a slice's value, or of other data of it.
    Pull<D> {
        key: u64, generation: u32, slice: u32, round: u64, request: u64, priority: i32,
        => wanted: Option<D>
    } [
        generation == 0 => NO_GENERATION,
    ]
    /// The value of a slice behind a closed round, or the requested data.
    Value<D> {
        key: u64, generation: u32, slice: u32, round: u64, request: u64,
        => data: D
    } [
        generation == 0 => NO_GENERATION,
    ]
    /// A worker removes a key at the directory, or at another server; or withdraws its removal (`back`).
    Remove { key: u64, generation: u32, request: u64, | at_directory: PROVIDE, | back: BACK, } [
        generation == 0 => NO_GENERATION,
        back && !at_directory => "only the directory takes a removal back",
    ]
    /// The directory has removed the key, or kept it as requested (`back`).
    Removed { key: u64, generation: u32, request: u64, | of_directory: PROVIDE, | back: BACK, } [
        generation == 0 => NO_GENERATION,
        !of_directory => "only the directory decides on a removal",
    ]
    /// A request failed.
    Failed { key: u64, generation: u32, slice: u32, request: u64, => failure: Failure }
    /// Shape, dtype and placement of a key, for a server that will hold slices of it.
    Describe { key: u64, generation: u32, => place: Arc<Placement> } [
        generation == 0 => NO_GENERATION,
    ]
    /// Value and state of a slice, from a checkpoint.
    Restore<D> { key: u64, generation: u32, slice: u32, request: u64, => data: D } [
        generation == 0 => NO_GENERATION,
    ]
    /// A worker takes part in a resume, with its counts; to a server, with those of all workers.
    Resume {
        number: u64 = round, pushes: u64 = total, barriers: u64 = request, agreements: u64 = setting,
    } [
        number == 0 => NO_RESUME,
    ]
    /// No worker is done any more: from the scheduler with the counts of all workers, or from a server.
    Resumed {
        number: u64 = round, pushes: u64 = total, barriers: u64 = request, agreements: u64 = setting,
    } [
        number == 0 => NO_RESUME,
    ]
    /// A piece of what a worker sends to another one in an exchange: of its contribution, or of a result.
    /// `answer`: the sender waits for no acknowledgement, for it has copied the piece.
    Segment<D> {
        exchange: u64 = key, what: u32 = generation, root: u64 = round, dtype: u64 = setting,
        count: u64 = request, step: u32 = slice, offset: u64, total: u64,
        | answer: ANSWER,
        => data: D
    } [
        exchange == 0 => NO_EXCHANGE,
        step > LAST_STEP => "an exchange has two steps",
        data.len() == 0 || offset.saturating_add(data.len()) > total => "the piece is not of its segment",
    ]
    /// A worker has begun an exchange: it takes segments of any size.
    Begun {
        exchange: u64 = key, what: u32 = generation, root: u64 = round, dtype: u64 = setting,
        count: u64 = request,
    } [
        exchange == 0 => NO_EXCHANGE,
    ]
    /// A worker has given an exchange up, which therefore fails for all.
    GivenUp { exchange: u64 = key, => failure: Failure } [
        exchange == 0 => NO_EXCHANGE,
    ]
    /// A worker makes a group known to a server, before its first message of the group.
    Form { request: u64, => terms: GroupTerms } [
        !terms.is_valid() => "its group has no name, or no ascending ranks",
    ]
    /// The server knows the group.
    Formed { request: u64, }
    /// Statistics of a member, or the request for them.
    Report { => facts: Option<Box<ProcessStats>> }
    /// Small messages of a stream in one frame.
    Bundle<D> { count: u64 = total, => parts: Arc<BundleParts<D>> } [
        count != parts.messages().len() as u64 => "its messages are not of the announced number",
    ]
}

impl From<ResumePoint> for Resume {
    fn from(ResumePoint { number, pushes, barriers, agreements }: ResumePoint) -> Self {
        Self { number, pushes, barriers, agreements }
    }
}

impl From<ResumePoint> for Resumed {
    fn from(ResumePoint { number, pushes, barriers, agreements }: ResumePoint) -> Self {
        Self { number, pushes, barriers, agreements }
    }
}

impl From<&Resume> for ResumePoint {
    fn from(&Resume { number, pushes, barriers, agreements }: &Resume) -> Self {
        Self { number, pushes, barriers, agreements }
    }
}

impl From<&Resumed> for ResumePoint {
    fn from(&Resumed { number, pushes, barriers, agreements }: &Resumed) -> Self {
        Self { number, pushes, barriers, agreements }
    }
}

impl Ask {
    /// Setting of a query at the scheduler for a barrier.
    pub(crate) const ARRIVING: u64 = 0;
    /// Setting of a query at the scheduler for a resume.
    pub(crate) const RESUMING: u64 = 1;
    /// Setting of a query at the scheduler for the book, with the workers that listen for others.
    pub(crate) const MEETING: u64 = 2;

    /// A query at the scheduler, or of a group at the server in its place.
    pub(crate) fn about(setting: u64, round: u64) -> Self {
        Self { key: 0, generation: 0, slice: 0, round, request: 0, setting }
    }
}

impl Suspect {
    /// Stage of a suspicion whose sender receives frames of the accused again.
    pub(crate) const TAKEN_BACK: u64 = 1;
}

macro_rules! of_a_slice {
    ($($kind:ident $(<$data:ident>)?,)+) => {$(
        impl$(<$data>)? $kind $(<$data>)? {
            /// The slice that the message is about.
            pub(crate) fn name(&self) -> SliceName {
                SliceName { key: self.key, generation: self.generation, slice: self.slice }
            }
        }
    )+};
}

of_a_slice!(Init<D>, Push<D>, Offer, Pull<D>, Value<D>, Restore<D>,);
