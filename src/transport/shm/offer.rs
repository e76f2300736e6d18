//! The offer of a segment: where the receiver gets its descriptor.

/// Random part of the name of the socket that gives a descriptor.
pub(super) type SocketName = [u8; 16];

/// Random secret of a segment: a process that shows it gets the descriptor.
pub(super) type SegmentToken = [u8; 16];

/// A segment of the sender, in the format of docs/internals/wire.md: all numbers little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) struct SegmentOffer {
    /// The socket that gives the descriptor.
    pub(super) socket: SocketName,
    pub(super) token: SegmentToken,
    /// Size of the ring in bytes.
    pub(super) size: u64,
}

impl SegmentOffer {
    pub(in crate::transport) fn encode(&self) -> Vec<u8> {
        [&self.socket[..], &self.token, &self.size.to_le_bytes()].concat()
    }

    pub(in crate::transport) fn decode(bytes: &[u8]) -> Option<Self> {
        let (socket, rest) = bytes.split_first_chunk()?;
        let (token, size) = rest.split_first_chunk()?;
        let size = u64::from_le_bytes(size.try_into().ok()?);
        Some(Self { socket: *socket, token: *token, size })
    }
}
