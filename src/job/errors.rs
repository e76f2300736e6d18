//! Conversion of protocol failures into errors of the store.

use crate::error::{Error, ErrorKind};
use crate::key::{Key, KeyNames};
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
    Error::new(kind, with_names(names, &failure.text))
}

/// Replaces `key 0x8f...` by the key's name.
fn with_names(names: &KeyNames, text: &str) -> String {
    const MARK: &str = "key 0x";
    const DIGITS: usize = 16;
    let Some(at) = text.find(MARK) else { return text.into() };
    let (before, rest) = text.split_at(at);
    let digits = rest.get(MARK.len()..MARK.len() + DIGITS);
    match digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
        Some(id) => {
            let label = names.label(Key::from(id));
            let rest = &rest[MARK.len() + DIGITS..];
            format!("{before}{label}{}", with_names(names, rest))
        }
        None => format!("{before}{MARK}{}", with_names(names, &rest[MARK.len()..])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_names_become_names() {
        let names = KeyNames::default();
        let key = names.intern("w").unwrap();
        let text = format!("push: key {:#018x}: not key 7 or key 0x12", key.id());
        assert_eq!(with_names(&names, &text), "push: key \"w\": not key 7 or key 0x12");
    }
}
