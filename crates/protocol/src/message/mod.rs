//! Messages between processes (also: wire format, codec), byte for byte as in docs/internals/wire.md.

mod body;
mod bundle;
mod digests;
mod facts;
mod fields;
mod groups;
mod header;
pub(crate) mod kinds;
#[cfg(feature = "wire-next")]
pub(crate) mod next;
mod payload;
#[cfg(test)]
mod releases;
mod terms;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::job::Data;

pub(crate) use body::{
    Book, Decision, FEATURES, Hello, Proposal, ResumePoint, SUMS_BY_TREE, Standing, failed, range,
};
pub use body::{
    EXCHANGES, ExchangeAddress, ExitNotice, GROUPS, KeySpec, MemberState, Placement, RESUMES,
    SCALES, SliceName, WEIGHTS,
};
pub use bundle::{BundleEntry, BundleParts, read_table, write_parts};
pub(crate) use bundle::{MOST_BYTES, MOST_PARTS, SpareBundles};
pub use digests::{DigestScope, MOST_DIGESTS, SeenDigests, SliceDigest};
pub(crate) use facts::echo_of;
pub use facts::{JobView, Look, MemberReport, is_echo};
pub(crate) use fields::Field;
pub use groups::GroupTerms;
#[cfg(test)]
pub(crate) use header::decode;
#[cfg(any(fuzzing, test, feature = "testing"))]
pub use header::encode;
pub use header::extensions::MOST_EXTENSIONS;
pub use header::{
    BadFrame, HEADER, Header, MessageKind, PartialFrame, VERSION, VerifiedFrame, copy, write,
    write_front,
};
pub(crate) use header::{COLLECTIVE, ROUNDS_OVER, flags};
pub(crate) use kinds::Content;
pub(crate) use terms::Terms;

/// Payload of a message.
#[derive(Debug, Clone)]
pub enum Body<D> {
    /// The fields of a control message.
    Fields(Vec<u8>),
    /// A slice of a value, or a query of one.
    Data(D),
    /// The messages of a bundle.
    Parts(Arc<BundleParts<D>>),
}

impl<D: Data> Body<D> {
    /// Length of the payload in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Fields(fields) => fields.len() as u64,
            Self::Data(data) => data.len(),
            Self::Parts(parts) => parts.len(),
        }
    }
}

impl<D> Body<D> {
    /// Fields of a control message; empty for values, queries and bundles.
    pub fn fields(&self) -> &[u8] {
        match self {
            Self::Fields(fields) => fields,
            Self::Data(_) | Self::Parts(_) => &[],
        }
    }
}

/// A message: a header and a payload. Its link adds the fields of the stream when it is sent.
#[derive(Debug, Clone)]
pub struct Message<D> {
    /// Fields of the header.
    pub head: Header,
    /// Payload.
    pub body: Body<D>,
}

impl<D: Data> Message<D> {
    /// Length of the frame in bytes.
    pub fn frame_len(&self) -> u64 {
        self.head.len() as u64 + self.body.len()
    }
}

impl<D> Message<D> {
    /// A control message.
    #[must_use]
    pub fn new(kind: MessageKind, fields: Vec<u8>) -> Self {
        Self { head: Header { kind, ..Header::default() }, body: Body::Fields(fields) }
    }

    /// A control message about a key.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn of_key(kind: MessageKind, key: u64, generation: u32, fields: Vec<u8>) -> Self {
        Self {
            head: Header { kind, key, generation, ..Header::default() },
            body: Body::Fields(fields),
        }
    }

    /// Fields of a control message; empty for values, queries and bundles.
    pub fn fields(&self) -> &[u8] {
        self.body.fields()
    }
}

/// A message of the kind that builds with `wire-next` have, which has no effect.
#[cfg(feature = "wire-next")]
pub(crate) fn next_message<D>() -> Message<D> {
    Message::new(MessageKind::Unknown(next::KIND), b"next".to_vec())
}
