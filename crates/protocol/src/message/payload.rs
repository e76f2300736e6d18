//! Payloads of messages as types (also: serialisation).

use std::sync::Arc;

use super::Body;
use super::body::{Book, Decision, ExitNotice, Hello, Placement, Proposal, failed};
use super::bundle::BundleParts;
use super::facts::{JobView, Look, MOST_REPORT};
use super::fields::Field;
use super::groups::GroupTerms;
use super::header::{Header, flags};
use crate::job::{Data, Failure, Peer};
use crate::telemetry::ProcessStats;

/// A type of payload.
pub(super) trait Payload<D>: Sized {
    /// Reads the payload of a message, or says why it is invalid.
    fn take(head: &Header, body: Option<Body<D>>) -> Result<Self, &'static str>;

    /// The payload of a message.
    fn put(self) -> Body<D>;
}

const NO_FIELDS: &str = "its payload is data where its kind has fields";
const NO_DATA: &str = "its payload is not data";

/// The fields of a control message.
fn fields<D>(body: Option<Body<D>>) -> Result<Vec<u8>, &'static str> {
    match body {
        Some(Body::Fields(fields)) => Ok(fields),
        Some(Body::Data(_) | Body::Parts(_)) => Err(NO_FIELDS),
        None => Ok(Vec::new()),
    }
}

impl<D> Payload<D> for () {
    fn take(_: &Header, body: Option<Body<D>>) -> Result<Self, &'static str> {
        let has_none = fields(body)?.is_empty();
        has_none.then_some(()).ok_or("its kind has no payload")
    }

    fn put(self) -> Body<D> {
        Body::Fields(Vec::new())
    }
}

impl<D> Payload<D> for Vec<u8> {
    fn take(_: &Header, body: Option<Body<D>>) -> Result<Self, &'static str> {
        fields(body)
    }

    fn put(self) -> Body<D> {
        Body::Fields(self)
    }
}

impl<D: Data> Payload<D> for D {
    fn take(_: &Header, body: Option<Body<D>>) -> Result<Self, &'static str> {
        match body {
            Some(Body::Data(data)) => Ok(data),
            _ => Err(NO_DATA),
        }
    }

    fn put(self) -> Body<D> {
        Body::Data(self)
    }
}

/// A query, or none.
impl<D: Data> Payload<D> for Option<D> {
    fn take(_: &Header, body: Option<Body<D>>) -> Result<Self, &'static str> {
        match body {
            Some(Body::Data(query)) => Ok(Some(query).filter(|query| query.len() > 0)),
            body => fields(body)?.is_empty().then_some(None).ok_or(NO_DATA),
        }
    }

    fn put(self) -> Body<D> {
        self.map_or_else(|| Body::Fields(Vec::new()), Body::Data)
    }
}

impl<D> Payload<D> for Arc<BundleParts<D>> {
    fn take(_: &Header, body: Option<Body<D>>) -> Result<Self, &'static str> {
        match body {
            Some(Body::Parts(parts)) => Ok(parts),
            _ => Err("its payload is not messages"),
        }
    }

    fn put(self) -> Body<D> {
        Body::Parts(self)
    }
}

macro_rules! fields {
    ($($type:ty: $why:literal, $decode:expr, $encode:expr;)+) => {$(
        impl<D> Payload<D> for $type {
            fn take(_: &Header, body: Option<Body<D>>) -> Result<Self, &'static str> {
                ($decode)(&fields(body)?).ok_or($why)
            }

            fn put(self) -> Body<D> {
                Body::Fields(($encode)(&self))
            }
        }
    )+};
}

fields! {
    Hello: "its introduction cannot be read", Hello::decode, Hello::encode;
    Book: "its address book cannot be read", Book::decode, Book::encode;
    Look: "its query cannot be read", Look::decode, |look: &Look| look.encode(0);
    Box<JobView>: "its state of the job cannot be read", Field::decode, Field::encode;
    Arc<Placement>: "its placement cannot be read, or does not make up the key",
        |fields: &[u8]| Placement::decode(fields).map(Arc::new), |place: &Self| place.encode();
    ExitNotice: "its word on an end cannot be read", Field::decode, ExitNotice::encode;
    GroupTerms: "its group cannot be read", Field::decode, Field::encode;
    (Peer, u64): "the accused member cannot be read", Field::decode, Field::encode;
    Vec<Peer>: "its list of members cannot be read", Field::decode, Field::encode;
}

impl<D> Payload<D> for Failure {
    fn take(head: &Header, body: Option<Body<D>>) -> Result<Self, &'static str> {
        failed::decode(&fields(body)?, head.key).ok_or("its failure cannot be read")
    }

    fn put(self) -> Body<D> {
        Body::Fields(failed::encode(&self))
    }
}

/// A report, or the request for one, which has no fields.
impl<D> Payload<D> for Option<Box<ProcessStats>> {
    fn take(_: &Header, body: Option<Body<D>>) -> Result<Self, &'static str> {
        let fields = fields(body)?;
        if fields.is_empty() {
            return Ok(None);
        }
        let facts = Some(fields).filter(|fields| fields.len() <= MOST_REPORT);
        let facts = facts.and_then(|fields| ProcessStats::decode(&fields));
        facts.map(Box::new).map(Some).ok_or("its statistics cannot be read, or are too long")
    }

    fn put(self) -> Body<D> {
        Body::Fields(self.map_or_else(Vec::new, |facts| facts.encode()))
    }
}

impl<D> Payload<D> for Proposal {
    fn take(head: &Header, body: Option<Body<D>>) -> Result<Self, &'static str> {
        let fields = fields(body)?;
        if head.setting > 0 || head.flags & flags::LEARN != 0 {
            return Ok(Self::Setting(fields));
        }
        Self::decode_key(&fields).ok_or("its proposal of a key cannot be read")
    }

    fn put(self) -> Body<D> {
        Body::Fields(self.encode())
    }
}

impl<D> Payload<D> for Decision {
    fn take(head: &Header, body: Option<Body<D>>) -> Result<Self, &'static str> {
        let fields = fields(body)?;
        if head.setting > 0 {
            return Ok(Self::Setting(fields));
        }
        let place = Placement::decode(&fields);
        place
            .map(|place| Self::Key(Arc::new(place)))
            .ok_or("its placement cannot be read, or does not make up the key")
    }

    fn put(self) -> Body<D> {
        Body::Fields(match self {
            Self::Key(place) => place.encode(),
            Self::Setting(fields) => fields,
        })
    }
}
