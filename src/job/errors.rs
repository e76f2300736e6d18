//! Conversion of protocol failures into errors of the store.

use crate::error::{Error, ErrorKind};
use crate::key::KeyNames;
use kvstore_protocol::{Failure, Reason};

/// Converts a failure, with names of keys instead of their numbers.
pub(crate) fn error_of(names: &KeyNames, failure: &Failure) -> Error {
    let kind = match failure.reason {
        Reason::Timeout => ErrorKind::Timeout,
        Reason::PeerLost => ErrorKind::PeerLost,
        Reason::Evicted => ErrorKind::Evicted,
        Reason::KeyNotFound => ErrorKind::KeyNotFound,
        Reason::KeyExists => ErrorKind::KeyExists,
        Reason::ShapeMismatch => ErrorKind::ShapeMismatch,
        Reason::DtypeMismatch => ErrorKind::DtypeMismatch,
        Reason::Differs => ErrorKind::Differs,
        Reason::Refused => ErrorKind::Refused,
        Reason::Invalid => ErrorKind::InvalidArgument,
        Reason::Closed => ErrorKind::Closed,
        Reason::Callback => ErrorKind::Callback,
        Reason::NameCollision => ErrorKind::NameCollision,
    };
    Error::new(kind, failure.text(|key| names.label(key.into())))
}
