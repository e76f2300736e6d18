//! Carries bytes between processes, behind the traits `Transport` and `Sender`. Also called: network layer,
//! transport layer, fabric.
//!
//! An engine may lose, duplicate, delay and reorder messages, and may report that an address is down.
//! Acknowledgement, retransmission and ordering are the job of `kvstore_protocol`.
//!
//! Zenoh carries the messages that no direct path takes. Direct paths are shared memory (`shm`), between
//! processes of one machine, and TCP connections of our own (`tcp`).

mod adaptive_wait;
#[cfg(test)]
mod mail;
#[cfg(test)]
mod memory;
mod reader_end;
mod resource_limits;
mod send_buffer;
mod shm;
mod tcp;
#[cfg(test)]
mod tests;
mod zenoh;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

#[cfg(test)]
pub(crate) use memory::Exchange;
pub(crate) use resource_limits::check as check_room;
pub(crate) use send_buffer::SendBuffer;
use send_buffer::{SendBuffers, SendMemory};
pub(crate) use zenoh::Zenoh;
pub(crate) use zenoh::who_and_address;

use crate::config::address::has_port;
use crate::credentials::Credentials;
use crate::error::Result;

/// Size of a socket's send and receive buffers, in bytes; the system may grant less.
const SOCKET_BYTES: usize = 4 << 20;

/// Receives the events of an engine, on the engine's threads. No method may wait for the network.
pub(crate) trait Inbox: Send + Sync {
    /// `len` bytes arrived, in pieces. The callee reads them at once, up to the end of the iterator: then the
    /// sender may reuse their memory. If the engine knows the sender's identity, it precedes the address in
    /// `from`, as in `worker.3@`.
    fn arrived(&self, from: &str, len: usize, pieces: &mut dyn Iterator<Item = &[u8]>);

    /// The connection to an address has ended.
    fn down(&self, address: &str);

    /// The peer rejected our credentials, or we rejected its.
    fn refused(&self, _address: &str, _reason: &str) {}
}

/// Carries bytes to other processes.
pub(crate) trait Transport: Send + Sync {
    /// The address at which peers reach this process, and its name in logs and errors.
    fn address(&self) -> &str;

    /// Creates a sender to an address. Does not wait for its connection.
    fn line(&self, to: &str) -> Box<dyn Sender>;

    /// Closes all senders; no bytes arrive after it returns.
    fn close(&self);
}

/// Where a sender puts bytes, and whether it blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendMode {
    /// The send may block until the receiver reads.
    Unknown,
    /// The socket takes what fits, which costs more than a copy; the sender owes the rest.
    System,
    /// Shared memory that the receiver reads: the send does not block.
    Memory,
}

/// Sends to one peer. Used by one thread at a time.
pub(crate) trait Sender: Send {
    /// Whether `send` need not connect first.
    fn is_ready(&self) -> bool;

    /// Where a send of this many bytes would put them now, whatever is in flight already.
    fn room_for(&mut self, _len: usize) -> SendMode {
        SendMode::Unknown
    }

    /// A buffer for `room` bytes that are sent next. If it borrows (zero copy), `lent` of them take no space
    /// in it.
    fn parcel(&mut self, room: usize, lent: usize) -> SendBuffer;

    /// Sends bytes, or drops them without a connection. With `may_wait` it blocks while the receiver takes no
    /// more (backpressure), with a timeout of its own. Without, the sender may owe some of the bytes
    /// afterwards.
    fn send(&mut self, parcel: SendBuffer, may_wait: bool);

    /// Whether bytes of earlier buffers are still unsent.
    fn owes(&self) -> bool {
        false
    }

    /// Sends the owed bytes; blocks with the timeout of `send`.
    fn settle(&mut self) {}
}

/// Configuration of a process's transport: where it listens, and which peers it dials.
#[derive(Debug, Clone)]
pub(crate) struct TransportConfig {
    /// Listening address; port 0 is any free port. Without one, peers reply over the connections that this
    /// process dials.
    pub(crate) listen: Option<String>,
    /// The IP address that peers dial, when the process listens on every address of its machine.
    pub(crate) advertised: Option<IpAddr>,
    pub(crate) calls: DialPolicy,
    /// The address of the scheduler, as this process knows it. Other processes may write it differently.
    pub(crate) root: Arc<str>,
    pub(crate) is_scheduler: bool,
    /// Lease of a link in milliseconds: a link that receives nothing for this long is closed.
    pub(crate) lease_ms: u64,
    /// Whether processes of one machine exchange bytes through shared memory.
    pub(crate) shm: bool,
    /// Maximum number of sessions at a time.
    pub(crate) most_sessions: u64,
    /// Credentials that this process presents, and by which it checks its peers, if any.
    pub(crate) credentials: Option<Arc<Credentials>>,
}

/// Which addresses a process dials. Peers at other addresses must dial this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DialPolicy {
    Nobody,
    Scheduler,
    Everybody,
}

impl TransportConfig {
    fn calls(&self, address: &str) -> bool {
        match self.calls {
            DialPolicy::Nobody => false,
            DialPolicy::Scheduler => *self.root == *address,
            DialPolicy::Everybody => has_port(address),
        }
    }

    fn protocol(&self) -> &'static str {
        let tls = self.credentials.as_ref().is_some_and(|credentials| credentials.tls.is_some());
        if tls { "tls" } else { "tcp" }
    }
}

/// Name of a process that does not listen: its host, its process id, and a random number.
fn name_of_this_process() -> String {
    let host = crate::sys::host_name();
    // Each `RandomState` has new random keys.
    let chance = RandomState::new().build_hasher().finish() >> 32;
    format!("{host}.{}.{chance:08x}", std::process::id())
}

/// Opens the engine of the distributed stores.
pub(crate) fn open(place: &TransportConfig, inbox: &Arc<dyn Inbox>) -> Result<Arc<dyn Transport>> {
    Ok(Arc::new(Zenoh::open(place, inbox)?))
}
