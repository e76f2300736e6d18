//! Bytes between machines past the engine: over sockets of our own, one for each direction. The engine
//! carries only the offer of a port, and says who is there and who is gone.
//!
//! A process that listens offers its port to those who have come to it, with a token that is for one
//! of them alone. Whoever takes the offer makes two connections and shows the token on each; the threads
//! that send write there, and a thread for each other process reads. What cannot be had goes through
//! the engine.

mod handshake;
mod listener;
mod offer;
mod peers;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub(super) use offer::PortOffer;
pub(super) use peers::Streams;
pub(super) use sender::TcpSender;

use crate::log::{Level, log};

/// A parcel is preceded by its length, and none is longer: larger ones are the engine's.
const MOST_BYTES: usize = 8 << 20;
const LENGTH: usize = 4;

/// More processes than this use the engine: each has a thread here.
const MOST_PEERS: usize = 1_024;

/// Starts a thread; without one the engine does it all.
fn spawn(work: impl FnOnce() + Send + 'static) -> bool {
    let thread = std::thread::Builder::new().name("kvstore-stream".into());
    let started = crate::pool::without_signals(|| thread.spawn(work));
    if let Err(error) = &started {
        log(Level::Warn, || format!("cannot start a thread for a connection: {error}"));
    }
    started.is_ok()
}
