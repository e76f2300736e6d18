//! Extension fields (also: type-length-value, TLV, header extensions): fields behind the fixed header of a frame,
//! or behind the table of a bundle, which a receiver that does not know their numbers skips and counts.
//!
//! A field is its number (1 byte), the length of its value (1 byte), and the value. A field of value 0 is left
//! out, so a message that uses none has no bytes of fields.

use super::{BadFrame, Header};
use crate::message::fields::FieldReader;
#[cfg(feature = "wire-next")]
use crate::message::next;

/// Maximum bytes of the extension fields of one message: receivers read them to their stack.
pub const MOST_EXTENSIONS: usize = 256;

/// Bytes of number and length in front of a value, and bytes of a field of this release.
const FRONT: usize = 2;
const FIELD: usize = FRONT + 8;

/// Number of the weight of a push.
const WEIGHT: u8 = 2;
/// Number of the part of a push in the tree of its round.
const PART: u8 = 5;
/// Number of what the sum of the round of a push is multiplied by.
const SCALE: u8 = 10;
/// Number of the group of a message.
const GROUP: u8 = 12;

/// The fields of this release, and the one of builds for tests: numbers and values.
fn known(head: &Header) -> impl Iterator<Item = (u8, u64)> + use<> {
    #[cfg(feature = "wire-next")]
    let next = [(next::FIELD, head.next)];
    #[cfg(not(feature = "wire-next"))]
    let next = [];
    let all = [(WEIGHT, head.weight), (PART, head.part), (SCALE, head.scale), (GROUP, head.group)];
    all.into_iter().chain(next).filter(|(_, value)| *value != 0)
}

/// Sets a field that this release knows; false if it does not.
fn set(head: &mut Header, number: u8, value: &[u8]) -> bool {
    #[cfg(feature = "wire-next")]
    if let (next::FIELD, Ok(value)) = (number, value.try_into()) {
        head.next = u64::from_le_bytes(value);
        return true;
    }
    let field = match number {
        WEIGHT => &mut head.weight,
        PART => &mut head.part,
        SCALE => &mut head.scale,
        GROUP => &mut head.group,
        _ => return false,
    };
    let Ok(value) = value.try_into() else { return false };
    *field = u64::from_le_bytes(value);
    true
}

/// Bytes of the extension fields of a message.
pub(in crate::message) fn len(head: &Header) -> usize {
    known(head).count() * FIELD
}

/// Writes the extension fields of a message to `out`, of the length that [`len`] gives.
pub(in crate::message) fn write(head: &Header, out: &mut [u8]) {
    for ((number, value), place) in known(head).zip(out.chunks_exact_mut(FIELD)) {
        place[..FRONT].copy_from_slice(&[number, 8]);
        place[FRONT..].copy_from_slice(&value.to_le_bytes());
    }
}

/// Removes the extension fields of a header, which are those of its bundle.
pub(in crate::message) fn clear(head: &mut Header) {
    head.skipped = 0;
    head.weight = 0;
    head.part = 0;
    head.scale = 0;
    head.group = 0;
    #[cfg(feature = "wire-next")]
    {
        head.next = 0;
    }
}

/// Reads extension fields into a header that has none; those of later releases are counted there.
///
/// # Errors
/// A field ends behind the last byte.
pub(in crate::message) fn read(head: &mut Header, bytes: &[u8]) -> Result<(), BadFrame> {
    let cut = BadFrame::Extensions(u16::try_from(bytes.len()).unwrap_or(u16::MAX));
    let (mut from, mut left) = (FieldReader::new(bytes), bytes.len());
    while left > 0 {
        let (number, len) = from.u8().zip(from.u8()).ok_or(cut)?;
        let value = from.bytes(len.into()).ok_or(cut)?;
        if !set(head, number, value) {
            head.skipped += 1;
        }
        left -= FRONT + value.len();
    }
    Ok(())
}
