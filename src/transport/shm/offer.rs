//! The offer of a segment: which one the receiver is to read.

use super::segment::SegmentToken;

/// A segment of the sender, in the format of docs/wire.md: all numbers little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) struct SegmentOffer {
    pub(super) pid: u32,
    pub(super) fd: u32,
    pub(super) token: SegmentToken,
    /// Size of the ring in bytes.
    pub(super) size: u64,
}

impl SegmentOffer {
    const LEN: usize = 32;

    pub(in crate::transport) fn encode(&self) -> Vec<u8> {
        let ends = [self.pid, self.fd].map(u32::to_le_bytes);
        let [first, second] = self.token;
        let wide = [first, second, self.size].map(u64::to_le_bytes);
        ends.iter().flatten().chain(wide.iter().flatten()).copied().collect()
    }

    pub(in crate::transport) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let narrow = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let wide = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            pid: narrow(0)?,
            fd: narrow(4)?,
            token: [wide(8)?, wide(16)?],
            size: wide(24)?,
        })
    }
}
