//! What a transport beside the admitted connection does: it offers a path to a peer over the connection, takes
//! the offers of peers, sends, and says whether it is broken. Also called: channel, byte transfer layer.
//!
//! The connection itself carries everything that no such transport carries, and its end is their end.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Inbox, Polling, SendBuffer, TransportConfig};

/// A row of the table of transports.
pub(super) struct TransportRow {
    /// Name in the option `transport`, and in reports.
    pub(super) name: &'static str,
    pub(super) carrier: Carrier,
}

/// What carries the frames of a transport.
pub(super) enum Carrier {
    /// The admitted connection.
    Connection,
    /// A path that this process offers over the connection, in messages of this kind.
    Offered { kind: u16, probe: TransportProbe, open: TransportOpener },
}

/// What decides whether a process uses a transport.
pub(crate) struct TransportChoice<'a> {
    /// The option `transport`.
    pub(crate) transport: &'a str,
    /// The option `shm`.
    pub(crate) shm: bool,
    pub(crate) has_credentials: bool,
    pub(crate) is_scheduler: bool,
}

impl TransportChoice<'_> {
    pub(super) fn is_auto(&self) -> bool {
        self.transport == AUTO
    }
}

impl<'a> TransportChoice<'a> {
    pub(super) fn of(place: &'a TransportConfig) -> Self {
        Self {
            transport: &place.transport,
            shm: place.shm,
            has_credentials: place.credentials.is_some(),
            is_scheduler: place.is_scheduler,
        }
    }
}

/// The value of the option `transport` that leaves the choice to the table.
pub(crate) const AUTO: &str = "auto";

/// What the transport would use, or why this process does not use it.
pub(super) type TransportProbe = fn(&TransportChoice<'_>) -> Result<String, String>;

/// Opens a transport that can be used.
pub(super) type TransportOpener =
    fn(&TransportConfig, &Arc<dyn Inbox>) -> Result<Arc<dyn PeerTransport>, String>;

/// A transport in one process. What arrives goes to the inbox with which it was opened.
pub(super) trait PeerTransport: Send + Sync {
    /// A path to the peer at this address, with whom this process has a connection; or why there is none.
    fn path(&self, to: &str) -> Result<Box<dyn PeerPath>, String>;

    /// Whether offers have secrets: they travel over sealed connections alone.
    fn has_secrets(&self) -> bool {
        false
    }

    /// Takes an offer of a peer, which has arrived over the connection. `from` is as in [`Inbox::arrived`].
    fn accept(&self, from: &str, offer: &[u8]);

    /// Has a thread of the program read what arrives, where it can.
    fn add_to(&self, _polling: &mut Polling) {}

    /// The last connection with the process at this address has ended: it sends no more. With `reports`, the
    /// transport calls [`Inbox::down`] after all that has arrived before; false if it does not.
    fn end(&self, address: &str, reports: bool) -> bool;

    /// Sends what was accepted for sending, with a timeout of its own. Connections are still open.
    fn finish(&self) {}

    /// Stops: nothing is sent, and nothing arrives after it returns.
    fn close(&self);
}

/// Whether a path carries frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathState {
    /// Not yet: the peer has not accepted the offer.
    Pending,
    Open,
    /// Not any more, for this reason.
    Broken(Cow<'static, str>),
}

/// A path to one peer. Used by one thread at a time, for as long as the connection lasts.
pub(super) trait PeerPath: Send {
    /// An offer that is to be sent over the connection now, at first the first one.
    fn offer(&mut self) -> Option<Vec<u8>>;

    fn state(&mut self) -> PathState;

    /// Whether `parcel` would give a buffer for this many bytes now.
    fn has_room(&mut self, len: usize) -> bool;

    /// A buffer as of [`super::Sender::parcel`]; None while there is no room, and the connection is to carry
    /// the bytes.
    fn parcel(&mut self, room: usize, lent: usize) -> Option<SendBuffer>;

    /// Sends the buffer of the last `parcel`, without waiting for the peer.
    fn send(&mut self, parcel: SendBuffer);
}
