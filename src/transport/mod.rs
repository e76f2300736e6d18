//! Carries bytes between processes, behind the traits `Transport` and `Sender`. Also called: network layer,
//! transport layer, fabric.
//!
//! A transport may lose, duplicate, delay and reorder messages, and may report that an address is down.
//! Acknowledgement, retransmission and ordering are the job of `kvstore_protocol`.
//!
//! Processes are connected by TCP (`tcp`), also inside TLS (`tls`). A transport of the table (`table`) may carry
//! the bytes instead, and the connection only its offers, and its end: shared memory (`shm`) between processes
//! of one machine, UCX (`ucx`) over fabrics.

#[cfg(test)]
mod mail;
#[cfg(test)]
mod memory;
mod names;
mod peer_transport;
mod piece;
mod polling;
mod random;
mod reader_end;
mod receive_room;
mod resource_limits;
mod send_buffer;
mod send_queue;
mod shm;
mod table;
mod tcp;
#[cfg(test)]
mod tests;
mod tls;
mod ucx;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

#[cfg(test)]
pub(crate) use memory::Exchange;
pub(crate) use names::who_and_address;
pub(crate) use peer_transport::AUTO;
use peer_transport::TransportChoice;
pub(crate) use piece::{Piece, Unwritten};
pub(crate) use polling::{POLLED, PolledCall, Polling};
pub(crate) use receive_room::{ReceiveGate, ReceivePlace, ReceiveRoom, ReceiveTarget, Receiver};
pub(crate) use resource_limits::check as check_room;
pub(crate) use send_buffer::{LentPart, SendBuffer};
use send_buffer::{SendBuffers, SendMemory};
pub(crate) use send_queue::{BlockingSender, SendQueue};
pub(crate) use table::PeerChoice;
use table::examine;
use tcp::TcpTransport;
#[cfg(any(fuzzing, test))]
pub(crate) use {shm::offers, tcp::greeting, tls::records, ucx::fabric};

use crate::config::Config;
use crate::config::address::has_port;
use crate::credentials::Credentials;
use crate::error::Result;

/// Receives the events of a transport, on the transport's threads. No method may wait for the network.
pub(crate) trait Inbox: Send + Sync {
    /// `len` bytes arrived, in pieces. The callee copies them at once, up to the end of the iterator: then the
    /// sender may reuse their memory. If the transport knows the sender's identity, it precedes the address in
    /// `from`, as in `worker.3@`.
    fn arrived(&self, from: &str, len: usize, pieces: &mut dyn Iterator<Item = Piece<'_>>);

    /// Like `arrived`, for bytes of records that were opened: their tags have protected the bytes, so frames have
    /// no checksums of their payloads.
    fn opened(&self, from: &str, len: usize, pieces: &mut dyn Iterator<Item = Piece<'_>>) {
        self.arrived(from, len, pieces);
    }

    /// `len` bytes begin to arrive, without TLS, of which `front` is there. If they are one frame with a large payload,
    /// the callee may give memory for it, and tell how long the frame is in front of it; then the bytes are handed on
    /// by `received`.
    fn room(&self, _from: &str, _len: usize, _front: &[u8]) -> Option<(ReceiveRoom, usize)> {
        None
    }

    /// What gives memory for payloads that a transport writes for as long as the peer takes. Dropped soon.
    fn blocks(&self) -> Option<Arc<dyn PayloadBlocks>> {
        None
    }

    /// A whole frame has arrived: its front, and its payload in the memory that the callee has given.
    fn received(&self, _from: &str, _front: &[u8], _payload: ReceiveRoom) {}

    /// The process at an address has ended.
    fn down(&self, address: &str);

    /// A connection with an address was lost and is made again: what was sent over it may not have arrived.
    fn reconnected(&self, _address: &str) {}

    /// The peer rejected our credentials, or we rejected its.
    fn refused(&self, _address: &str, _reason: &str) {}

    /// The process `who` at an IP address was not admitted.
    fn rejected(&self, _address: &str, _who: &str, _reason: &str) {}
}

/// Gives memory for payloads, none of which is that of a caller.
pub(crate) trait PayloadBlocks: Send + Sync {
    /// Memory for the payload of the only frame of a message of `len` bytes, `front` of which precede the payload; None
    /// if it is to be received as others. Waits for no lock under which bytes are sent.
    fn block(&self, len: usize, front: &[u8]) -> Option<ReceiveRoom>;
}

/// Carries bytes to other processes.
pub(crate) trait Transport: Send + Sync {
    /// The address at which peers reach this process, and its name in logs and errors.
    fn address(&self) -> &str;

    /// Creates a sender to an address, for the messages of a queue. Does not wait for its connection.
    fn line(&self, to: &str, queue: Weak<dyn SendQueue>) -> Box<dyn Sender>;

    /// Begins to poll on the calling thread, whose call waits for messages: they are delivered on it where the
    /// transport can do that, so that no other thread is woken for them.
    fn polling(&self, call: PolledCall) -> Polling {
        Polling::begin(call)
    }

    /// What carries the frames to each peer, by its address, if that has changed since the version `known`.
    fn choices(&self, _known: &mut u64) -> Option<BTreeMap<Arc<str>, PeerChoice>> {
        None
    }

    /// Closes all senders; no bytes arrive after it returns.
    fn close(&self);
}

/// Where a sender puts bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendMode {
    /// Not known.
    Unknown,
    /// The socket takes what fits, which costs more than a copy; the sender owes the rest.
    System,
    /// Shared memory that the receiver reads.
    Memory,
}

/// Sends to one peer. Used by one thread at a time. No method waits for the peer.
pub(crate) trait Sender: Send {
    /// Whether the sender takes bytes now: not while it owes bytes of earlier buffers, or a connection is
    /// being made. Without a connection that can be made, bytes are taken and dropped.
    fn is_ready(&mut self) -> bool;

    /// Whether there is a connection.
    fn is_connected(&self) -> bool;

    /// Where a send of this many bytes would put them now, whatever is in flight already.
    fn room_for(&mut self, _len: usize) -> SendMode {
        SendMode::Unknown
    }

    /// A buffer for `room` bytes that are sent next. If it borrows (zero copy), `lent` of them take no space
    /// in it.
    fn parcel(&mut self, room: usize, lent: usize) -> SendBuffer;

    /// Sends bytes, or drops them without a connection. The sender may owe some of the bytes afterwards, and
    /// sends them by itself.
    fn send(&mut self, parcel: SendBuffer);

    /// Whether a frame with a payload of `len` bytes may be sent by `send_from_place` now.
    fn sends_from_place(&mut self, _len: usize) -> bool {
        false
    }

    /// Sends a frame whose payload is not copied before. What the sender owes afterwards it has copied: the payload
    /// is not read behind the call.
    fn send_from_place(&mut self, _front: &[u8], _payload: &[u8]) {}

    /// Has a thread of the transport call the queue, once the sender is ready.
    fn call_back(&mut self);

    /// Whether bytes of earlier buffers are still unsent.
    fn owes(&self) -> bool {
        false
    }
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
    /// Maximum time in milliseconds for which a peer takes no bytes; then its connection ends.
    pub(crate) lease_ms: u64,
    /// Time in milliseconds within which a process that dials this one comes again after its last connection
    /// was lost. Later it counts as ended.
    pub(crate) grace_ms: u64,
    /// Whether processes of one machine exchange bytes through shared memory.
    pub(crate) shm: bool,
    /// [`AUTO`], or the one transport that this process uses beside its connections.
    pub(crate) transport: Arc<str>,
    /// Number of connections that a worker makes with a server; None leaves it to the length of the link.
    pub(crate) connections: Option<u8>,
    /// Maximum number of connections at a time.
    pub(crate) most_connections: u64,
    /// Maximum number of threads that read from connections.
    pub(crate) most_threads: usize,
    /// Credentials that this process presents, and by which it checks its peers, if any.
    pub(crate) credentials: Option<Arc<Credentials>>,
}

/// Which addresses a process dials. Peers at other addresses must dial this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DialPolicy {
    Nobody,
    Scheduler,
    Everybody,
    /// Of processes that all listen, those whose address is smaller than its own.
    Smaller,
}

impl TransportConfig {
    /// Whether the process at `own` dials an address.
    fn calls(&self, own: &str, address: &str) -> bool {
        match self.calls {
            DialPolicy::Nobody => false,
            DialPolicy::Scheduler => *self.root == *address,
            DialPolicy::Everybody => has_port(address),
            DialPolicy::Smaller => address < own,
        }
    }
}

/// Each transport in order of preference, by name: what a process with these options would use, or why it does
/// not use it. For `kvstore doctor`.
///
/// # Errors
/// `Option` for a value in the environment that does not fit.
pub fn examine_transports(config: &Config) -> Result<Vec<(&'static str, TransportState)>> {
    let is = |name: &str, value: &str| Ok(config.get(name)?.as_deref() == Some(value));
    let credentials = ["token", "token_file", "tls_ca_file", "tls_cert_file", "tls_key_file"];
    let mut has_credentials = false;
    for name in credentials {
        has_credentials |= config.get(name)?.is_some();
    }
    let choice = TransportChoice {
        transport: &config.get("transport")?.unwrap_or_else(|| AUTO.into()),
        shm: !is("shm", "no")?,
        has_credentials,
        is_scheduler: is("role", "scheduler")?,
    };
    Ok(examine(&choice).collect())
}

/// What a transport would use, or why it is not used.
pub type TransportState = std::result::Result<String, String>;

/// Opens the transport of the distributed stores.
pub(crate) fn open(place: &TransportConfig, inbox: &Arc<dyn Inbox>) -> Result<Arc<dyn Transport>> {
    Ok(Arc::new(TcpTransport::open(place, inbox)?))
}
