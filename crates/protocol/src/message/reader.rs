//! Little-endian fields (also: deserialisation); every length is checked before memory is allocated.

/// Takes fields off the front of a message. After the first `None` nothing more may be read.
pub(super) struct FieldReader<'a> {
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

    pub(super) fn text(&mut self) -> Option<String> {
        let len = usize::from(self.u16()?);
        String::from_utf8(self.bytes(len)?.to_vec()).ok()
    }

    /// A count, and as many items of at least `least` bytes; a count beyond the rest of the message is
    /// refused before memory is allocated for it.
    pub(super) fn list<T>(
        &mut self,
        least: usize,
        mut item: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = usize::try_from(self.u32()?).ok()?;
        if count.checked_mul(least)? > self.rest.len() {
            return None;
        }
        (0..count).map(|_| item(self)).collect()
    }

    /// The end of the message: a longer one is refused.
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

/// Writes the count of a list.
pub(super) fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}
