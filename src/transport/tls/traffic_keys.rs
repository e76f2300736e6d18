//! State that both directions of a connection share: the traffic secrets, from which key updates derive
//! new keys (RFC 8446, sections 4.6.3 and 7.2), and the peer's request to update the sending key.

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;

use super::error::TlsError;
use super::record::RecordKey;
use super::secret::Secret;
use crate::sys::sync::{AtomicBool, Mutex, Ordering};

/// Derives the next key of each direction. Locked at key updates only.
pub(super) struct TrafficKeys {
    schedule: Mutex<KeySchedule>,
    is_update_requested: AtomicBool,
}

/// The secrets of a connection, as rustls keeps them after the handshake, or those of a greeting with a token.
pub(super) enum KeySchedule {
    Caller(KernelConnection<ClientConnectionData>),
    Listener(KernelConnection<ServerConnectionData>),
    Token { sending: Secret, receiving: Secret },
}

impl TrafficKeys {
    pub(super) fn new(schedule: KeySchedule) -> Self {
        Self { schedule: Mutex::new(schedule), is_update_requested: AtomicBool::new(false) }
    }

    pub(super) fn next_to_send(&self) -> Result<RecordKey, TlsError> {
        let (sequence, secrets) = match &mut *self.schedule.lock() {
            KeySchedule::Caller(kernel) => kernel.update_tx_secret()?,
            KeySchedule::Listener(kernel) => kernel.update_tx_secret()?,
            KeySchedule::Token { sending, .. } => return next(sending),
        };
        RecordKey::new(&secrets, sequence)
    }

    pub(super) fn next_to_receive(&self) -> Result<RecordKey, TlsError> {
        let (sequence, secrets) = match &mut *self.schedule.lock() {
            KeySchedule::Caller(kernel) => kernel.update_rx_secret()?,
            KeySchedule::Listener(kernel) => kernel.update_rx_secret()?,
            KeySchedule::Token { receiving, .. } => return next(receiving),
        };
        RecordKey::new(&secrets, sequence)
    }

    /// The peer requests a key update, which must precede the next record with data (section 4.6.3).
    pub(super) fn request_update(&self) {
        // Relaxed: the flag guards no other memory. A thread that replies to later data of the peer
        // received that data through a lock, and so sees the flag.
        self.is_update_requested.store(true, Ordering::Relaxed);
    }

    /// Whether the peer has requested an update. Clears the request: the caller sends the update.
    pub(super) fn take_request(&self) -> bool {
        // Relaxed for the reason at the store. The load comes first as it leaves the cache line shared.
        self.is_update_requested.load(Ordering::Relaxed)
            && self.is_update_requested.swap(false, Ordering::Relaxed)
    }
}

/// Replaces a secret by the next one; gives the key of that.
fn next(secret: &mut Secret) -> Result<RecordKey, TlsError> {
    *secret = secret.next()?;
    secret.record_key()
}
