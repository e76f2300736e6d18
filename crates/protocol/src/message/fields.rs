//! Little-endian fields (also: serialisation): a type is written and read in one place, and every length is
//! checked before memory is allocated.

use crate::job::{Peer, Role};

/// Bytes of the payload of most control messages, at most: they are written without moving.
const MOST_USUAL: usize = 64;

/// A type of a field, or of a whole payload.
pub(crate) trait Field: Sized {
    /// Minimum bytes of a value, by which a list is bounded.
    const LEAST: usize;

    fn put(&self, out: &mut Vec<u8>);

    fn take(from: &mut FieldReader) -> Option<Self>;

    /// The bytes of a payload that is this value.
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MOST_USUAL);
        self.put(&mut out);
        out
    }

    /// Decodes a payload that begins with this value. Bytes behind it are fields of a later release.
    fn decode(bytes: &[u8]) -> Option<Self> {
        Self::take(&mut FieldReader::new(bytes))
    }
}

/// Takes fields off the front of a message. After the first `None` nothing more may be read.
pub(crate) struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }

    pub(super) fn text(&mut self) -> Option<String> {
        let len = usize::from(self.u16()?);
        String::from_utf8(self.bytes(len)?.to_vec()).ok()
    }

    /// A count, and as many items; a count beyond the rest of the message is refused before memory is
    /// allocated for it.
    fn list<T: Field>(&mut self) -> Option<Vec<T>> {
        let count = usize::try_from(self.u32()?).ok()?;
        if count.checked_mul(T::LEAST)? > self.rest.len() {
            return None;
        }
        (0..count).map(|_| T::take(self)).collect()
    }

    /// Reader of the fields behind their length, by [`put_sized`]. What is left of them at its end was added by a
    /// later release.
    pub(super) fn sized(&mut self) -> Option<Self> {
        let len = usize::try_from(self.u32()?).ok()?;
        self.bytes(len).map(Self::new)
    }

    /// Whether nothing is left.
    pub(super) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// The end of the bytes: more of them are refused.
    pub(super) fn end(self) -> Option<()> {
        self.rest.is_empty().then_some(())
    }
}

/// Writes a text behind its length, cut at 65,535 bytes.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_cut_text(out, text, usize::from(u16::MAX));
}

/// Writes a text behind its length, cut at `most` bytes, 65,535 or fewer.
pub(super) fn put_cut_text(out: &mut Vec<u8>, text: &str, most: usize) {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let len = u16::try_from(end).unwrap_or(u16::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&text.as_bytes()[..end]);
}

/// Writes fields behind their length, so that receivers skip those that later releases append.
pub(super) fn put_sized(out: &mut Vec<u8>, fields: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    0u32.put(out);
    fields(out);
    let len = u32::try_from(out.len() - at - size_of::<u32>()).unwrap_or(u32::MAX);
    out[at..at + size_of::<u32>()].copy_from_slice(&len.to_le_bytes());
}

/// Writes a list: a count, and the items.
pub(super) fn put_list<T: Field>(out: &mut Vec<u8>, items: &[T]) {
    u32::try_from(items.len()).unwrap_or(u32::MAX).put(out);
    items.iter().for_each(|item| item.put(out));
}

macro_rules! numbers {
    ($($type:ident)+) => {$(
        impl Field for $type {
            const LEAST: usize = size_of::<$type>();

            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn take(from: &mut FieldReader) -> Option<Self> {
                from.$type()
            }
        }
    )+};
}

numbers!(u8 u16 u32 u64 u128);

impl Field for bool {
    const LEAST: usize = 1;

    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        from.u8().map(|byte| byte != 0)
    }
}

impl Field for String {
    const LEAST: usize = 2;

    fn put(&self, out: &mut Vec<u8>) {
        put_text(out, self);
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        from.text()
    }
}

impl<T: Field> Field for Vec<T> {
    const LEAST: usize = 4;

    fn put(&self, out: &mut Vec<u8>) {
        put_list(out, self);
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        from.list()
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    const LEAST: usize = A::LEAST + B::LEAST;

    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        Some((A::take(from)?, B::take(from)?))
    }
}

impl<T: Field> Field for Box<T> {
    const LEAST: usize = T::LEAST;

    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }

    fn take(from: &mut FieldReader) -> Option<Self> {
        T::take(from).map(Box::new)
    }
}

/// Types that are a byte: their code.
macro_rules! codes {
    ($($type:ty)+) => {$(
        impl Field for $type {
            const LEAST: usize = 1;

            fn put(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }

            fn take(from: &mut FieldReader) -> Option<Self> {
                Self::from_code(from.u8()?)
            }
        }
    )+};
}

/// A struct as its fields, in the order of the wire.
macro_rules! record {
    ($type:ident: $least:literal { $($field:ident),+ }) => {
        impl Field for $type {
            const LEAST: usize = $least;

            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)+
            }

            fn take(from: &mut FieldReader) -> Option<Self> {
                Some(Self { $($field: Field::take(from)?),+ })
            }
        }
    };
}

pub(super) use {codes, record};

codes!(Role);
record!(Peer: 5 { role, rank });
