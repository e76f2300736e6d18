//! Processes that dial this one, and whose last connection has ended: they may connect again within a grace
//! period.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use super::super::endpoint::Endpoint;
use super::call::{connect, is_connected};

/// Grace period of a process that listens, once its port refuses connections: a firewall may refuse them, and
/// the process may live.
const REFUSED: Duration = Duration::from_millis(100);
/// The same in round trips.
const TRIPS: u32 = 4;
/// Maximum number of probes of a port. The system ends the connections of a killed process before its port, so
/// a first probe may still be accepted.
const MOST_PROBES: u32 = 8;

/// Bit of the tokens of probes.
pub(super) const PROBES: usize = 1 << (usize::BITS - 3);

#[derive(Default)]
pub(super) struct Absences {
    /// By address, the end of the grace period.
    all: HashMap<String, Instant>,
    probes: HashMap<usize, PortProbe>,
    next: usize,
}

/// A connection to the port of an absent process, without a greeting.
struct PortProbe {
    address: String,
    socket: TcpStream,
    began: Instant,
    /// Number of probes before this one.
    before: u32,
}

impl Absences {
    /// The last connection with a process has ended.
    pub(super) fn begin(&mut self, endpoint: &Endpoint, registry: &Registry, address: String) {
        if endpoint.incoming.peers.is_connected(&address) {
            return;
        }
        let now = Instant::now();
        let grace = Duration::from_millis(endpoint.place.grace_ms);
        if let Ok(port) = address.parse() {
            self.probe(registry, &address, &port, 0);
        }
        self.all.insert(address, now + grace);
    }

    fn probe(&mut self, registry: &Registry, address: &str, port: &SocketAddr, before: u32) {
        let began = Instant::now();
        // Without a probe the grace period is the whole one.
        let Ok(socket) = connect(port) else { return };
        let token = PROBES | self.next;
        self.next += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        if registry.register(&mut SourceFd(&socket.as_raw_fd()), Token(token), interest).is_ok() {
            self.probes.insert(token, PortProbe { address: address.into(), socket, began, before });
        }
    }

    /// Something has happened on the socket of a probe.
    pub(super) fn serve(&mut self, registry: &Registry, token: usize) {
        let Some(probe) = self.probes.get(&token) else { return };
        let Err(error) = look(&probe.socket) else { return };
        let Some(PortProbe { address, began, before, .. }) = self.probes.remove(&token) else {
            return;
        };
        let Some(until) = self.all.get_mut(&address) else { return };
        if error.kind() == io::ErrorKind::ConnectionRefused {
            let grace = REFUSED.max(began.elapsed() * TRIPS);
            *until = (*until).min(Instant::now() + grace);
        } else if before + 1 < MOST_PROBES
            && let Ok(port) = address.parse()
        {
            self.probe(registry, &address, &port, before + 1);
        }
    }

    /// Reports the processes that have not come again.
    pub(super) fn tick(&mut self, endpoint: &Endpoint, now: Instant) {
        let over: Vec<String> = self
            .all
            .iter()
            .filter(|(_, until)| **until <= now)
            .map(|(address, _)| address.clone())
            .collect();
        for address in over {
            self.all.remove(&address);
            self.probes.retain(|_, probe| probe.address != address);
            if !endpoint.incoming.peers.is_connected(&address) {
                endpoint.incoming.gone(&address);
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.all.values().min().copied()
    }
}

/// Whether a probe is still open: a process that lives waits for its greeting.
fn look(mut socket: &TcpStream) -> io::Result<()> {
    if !is_connected(socket)? {
        return Ok(());
    }
    match socket.read(&mut [0]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
