//! TCP transport between machines, which bypasses Zenoh: connections of our own, one for each direction.
//! Zenoh carries only the offer of a port, and reports which peers live and which have ended. Also called:
//! direct connections, data plane over TCP.
//!
//! A process that listens offers its port to the peers that have dialed it, with a token for one of them
//! alone. A peer that takes the offer makes two connections and shows the token on each. The sending threads
//! write there, and one thread for each peer reads. Without such a connection Zenoh carries the bytes.

mod handshake;
mod listener;
mod offer;
mod peers;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub(super) use offer::PortOffer;
pub(super) use peers::TcpTransport;
pub(super) use sender::TcpSender;

use crate::log::{Level, log};

/// Maximum length of a buffer, in bytes; each is preceded by its length, and Zenoh carries larger ones.
const MOST_BYTES: usize = 8 << 20;
const LENGTH: usize = 4;

/// Maximum number of peers, each of which has a thread; Zenoh carries the bytes of further ones.
const MOST_PEERS: usize = 1_024;

/// Starts a thread; without one, Zenoh carries the bytes.
fn spawn(work: impl FnOnce() + Send + 'static) -> bool {
    let thread = std::thread::Builder::new().name("kvstore-stream".into());
    let started = crate::pool::without_signals(|| thread.spawn(work));
    if let Err(error) = &started {
        log(Level::Warn, || format!("cannot start a thread for a connection: {error}"));
    }
    started.is_ok()
}
