//! What is said over the engine: which bytes of which segment.

use super::segment::Token;

/// Bytes in a segment of the sender, as docs/wire.md has it: all numbers little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Reference {
    pub(super) pid: u32,
    pub(super) fd: u32,
    pub(super) token: Token,
    /// The size of the segment.
    pub(super) size: u64,
    /// Bytes that went through the ring before these.
    pub(super) start: u64,
    /// None: an offer, which asks the receiver to map the segment.
    pub(super) len: u64,
}

impl Reference {
    pub(super) const LEN: usize = 48;

    pub(in crate::engine) fn encode(&self) -> Vec<u8> {
        let ends = [self.pid, self.fd].map(u32::to_le_bytes);
        let [first, second] = self.token;
        let wide = [first, second, self.size, self.start, self.len].map(u64::to_le_bytes);
        ends.iter().flatten().chain(wide.iter().flatten()).copied().collect()
    }

    pub(in crate::engine) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let narrow = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let wide = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            pid: narrow(0)?,
            fd: narrow(4)?,
            token: [wide(8)?, wide(16)?],
            size: wide(24)?,
            start: wide(32)?,
            len: wide(40)?,
        })
    }
}
