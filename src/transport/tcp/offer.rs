//! The offer sent over Zenoh: the port to dial, and the token to show there.

use ring::rand::{SecureRandom, SystemRandom};

pub(super) type PortToken = [u8; 16];

/// A port of the sender, in the format of docs/wire.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) struct PortOffer {
    pub(super) port: u16,
    pub(super) token: PortToken,
}

impl PortOffer {
    const LEN: usize = 18;

    /// None if the system has no random bytes.
    pub(super) fn new(port: u16) -> Option<Self> {
        let mut token = PortToken::default();
        SystemRandom::new().fill(&mut token).ok()?;
        Some(Self { port, token })
    }

    pub(in crate::transport) fn encode(&self) -> Vec<u8> {
        [&self.port.to_le_bytes()[..], &self.token].concat()
    }

    pub(in crate::transport) fn decode(bytes: &[u8]) -> Option<Self> {
        let (port, token) = <&[u8; Self::LEN]>::try_from(bytes).ok()?.split_at(2);
        let port = u16::from_le_bytes(port.try_into().ok()?);
        Some(Self { port, token: token.try_into().ok()? })
    }
}
