//! The engine that carries bytes between processes, behind one small trait.
//!
//! An engine may lose, double, delay and reorder what it carries, and may say that an address is
//! down: everything else is the business of the protocol (`cluster`).

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

/// Buffers of sockets; the system may give less.
const SOCKET_BYTES: usize = 4 << 20;

/// What an engine tells its process, on threads of its own. Nothing here may wait for the network.
pub(crate) trait Inbox: Send + Sync {
    /// `len` bytes came in, in pieces. They are to be taken at once, up to the end of the iterator:
    /// then the sender may use their memory again. Before the address stands who that is, as `worker.3@`,
    /// if the engine knows.
    fn arrived(&self, from: &str, len: usize, pieces: &mut dyn Iterator<Item = &[u8]>);

    /// The connection to an address has ended.
    fn down(&self, address: &str);

    /// Whoever is at an address does not take this process, or is not who it should be.
    fn refused(&self, _address: &str, _reason: &str) {}
}

/// Carries bytes to other processes.
pub(crate) trait Engine: Send + Sync {
    /// How other processes reach this one, and what people call it.
    fn address(&self) -> &str;

    /// Makes a line to an address. Does not wait until it is there.
    fn line(&self, to: &str) -> Box<dyn Sender>;

    /// Ends all lines; nothing arrives any more when it returns.
    fn close(&self);
}

/// How a line takes bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// It may have to wait for the other side.
    Unknown,
    /// The system takes what it has room for, which is more work than to copy it; the line owes the rest.
    System,
    /// Into memory that the other side reads: nobody waits.
    Memory,
}

/// The way to one other process. Used by one thread at a time.
pub(crate) trait Sender: Send {
    /// Whether `send` does not have to make a connection first.
    fn is_ready(&self) -> bool;

    /// How it takes so many bytes now, whatever is on its way already.
    fn room_for(&mut self, _len: usize) -> Room {
        Room::Unknown
    }

    /// Room for so many bytes that are to be sent next. If the parcel borrows, `lent` of them need none.
    fn parcel(&mut self, room: usize, lent: usize) -> SendBuffer;

    /// Sends bytes, or drops them if the way is not there. If it may, it waits while the other side
    /// takes no more, and bounds that wait itself; else it may owe some of them afterwards.
    fn send(&mut self, parcel: SendBuffer, may_wait: bool);

    /// Whether bytes of earlier parcels are still to be sent.
    fn owes(&self) -> bool {
        false
    }

    /// Sends what it owes; waits as `send` does.
    fn settle(&mut self) {}
}

/// Where a process is to be reached, and whom it calls.
#[derive(Debug, Clone)]
pub(crate) struct TransportConfig {
    /// Listens here; a port of 0 is any free one. None is reached over the lines that it makes.
    pub(crate) listen: Option<String>,
    /// What others use instead, when it listens on every address of the machine.
    pub(crate) advertised: Option<IpAddr>,
    pub(crate) calls: Calls,
    /// The address of the scheduler, as this process knows it. Others may write it otherwise.
    pub(crate) root: Arc<str>,
    pub(crate) is_scheduler: bool,
    /// A link on which nothing is heard for this long is closed, in milliseconds.
    pub(crate) lease_ms: u64,
    /// Whether processes of one machine exchange bytes through memory that they share.
    pub(crate) shm: bool,
    /// So many may be connected at a time.
    pub(crate) most_sessions: u64,
    /// What this process shows and asks for, if anything.
    pub(crate) credentials: Option<Arc<Credentials>>,
}

/// Which addresses a process makes connections to. The others must come to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    Nobody,
    Scheduler,
    Everybody,
}

impl TransportConfig {
    fn calls(&self, address: &str) -> bool {
        match self.calls {
            Calls::Nobody => false,
            Calls::Scheduler => *self.root == *address,
            Calls::Everybody => has_port(address),
        }
    }

    fn protocol(&self) -> &'static str {
        let tls = self.credentials.as_ref().is_some_and(|credentials| credentials.tls.is_some());
        if tls { "tls" } else { "tcp" }
    }
}

/// The name of a process that does not listen: its host, its number there, and chance.
fn name_of_this_process() -> String {
    let host = crate::sys::host_name();
    // Keyed by chance, for every map.
    let chance = RandomState::new().build_hasher().finish() >> 32;
    format!("{host}.{}.{chance:08x}", std::process::id())
}

/// Opens the engine of the distributed stores.
pub(crate) fn open(place: &TransportConfig, inbox: &Arc<dyn Inbox>) -> Result<Arc<dyn Engine>> {
    Ok(Arc::new(Zenoh::open(place, inbox)?))
}
