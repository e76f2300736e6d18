//! Shadow memory: one bit a byte tells whether the byte was initialized.

#[derive(Debug)]
pub(super) struct Shadow(Vec<u64>);

impl Shadow {
    pub(super) fn new(bytes: usize) -> Self {
        Self(vec![0; bytes.div_ceil(64)])
    }

    /// Words and the bits in them, for a range.
    fn parts(offset: usize, bytes: usize) -> impl Iterator<Item = (usize, u64)> {
        let end = offset + bytes;
        (offset / 64..end.div_ceil(64)).map(move |word| {
            let first = offset.saturating_sub(64 * word);
            let count = (end - 64 * word).min(64) - first;
            (word, u64::MAX >> (64 - count) << first)
        })
    }

    /// Whether all bytes of a range were written.
    pub(super) fn has(&self, offset: usize, bytes: usize) -> bool {
        bytes == 0 || Self::parts(offset, bytes).all(|(word, bits)| self.0[word] & bits == bits)
    }

    pub(super) fn set(&mut self, offset: usize, bytes: usize) {
        if bytes > 0 {
            Self::parts(offset, bytes).for_each(|(word, bits)| self.0[word] |= bits);
        }
    }

    /// For at most 8 bytes at a multiple of their number, which lie in one word.
    #[inline]
    pub(super) fn has_few(&self, offset: usize, bytes: usize) -> bool {
        let bits = u64::MAX >> (64 - bytes);
        self.0[offset / 64] >> (offset % 64) & bits == bits
    }

    #[inline]
    pub(super) fn set_few(&mut self, offset: usize, bytes: usize) {
        self.0[offset / 64] |= (u64::MAX >> (64 - bytes)) << (offset % 64);
    }

    /// 64 bits from an offset on; behind the end they are zeros.
    fn from(words: &[u64], offset: usize) -> u64 {
        let word = |index: usize| words.get(index).copied().unwrap_or(0);
        let (index, shift) = (offset / 64, offset % 64);
        let high = if shift == 0 { 0 } else { word(index + 1) << (64 - shift) };
        word(index) >> shift | high
    }

    /// The bits of a range, the first one at the beginning of a word.
    pub(super) fn copy(&self, offset: usize, bytes: usize) -> Vec<u64> {
        (offset..offset + bytes).step_by(64).map(|offset| Self::from(&self.0, offset)).collect()
    }

    /// Replaces the bits of a range by those of a copy.
    pub(super) fn replace(&mut self, offset: usize, bytes: usize, copy: &[u64]) {
        if bytes == 0 {
            return;
        }
        for (word, bits) in Self::parts(offset, bytes) {
            let first = bits.trailing_zeros() as usize;
            let written = Self::from(copy, 64 * word + first - offset) << first;
            self.0[word] = (self.0[word] & !bits) | (written & bits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Shadow;

    #[test]
    fn bytes_are_written_one_by_one() {
        let mut shadow = Shadow::new(300);
        shadow.set(60, 140);
        for offset in 0..300 {
            assert_eq!(shadow.has(offset, 1), (60..200).contains(&offset), "{offset}");
        }
        assert!(shadow.has(60, 140) && !shadow.has(59, 2) && !shadow.has(199, 2));
        assert!(shadow.has_few(64, 8) && !shadow.has_few(200, 4));
        shadow.set_few(248, 8);
        assert!(shadow.has(248, 8) && !shadow.has(247, 1) && !shadow.has(256, 1));
        let copy = shadow.copy(55, 10);
        shadow.replace(100, 10, &copy);
        assert!(!shadow.has(104, 1) && shadow.has(105, 5) && shadow.has(110, 90));
        let copy = shadow.copy(3, 290);
        for offset in 0..10 {
            let mut other = Shadow::new(300);
            other.set(0, 300);
            other.replace(offset, 290, &copy);
            for at in 0..300 {
                let is_copied = (offset..offset + 290).contains(&at);
                assert_eq!(other.has(at, 1), !is_copied || shadow.has(3 + at - offset, 1), "{at}");
            }
        }
        assert!(shadow.has(0, 0));
    }
}
