//! Processes that dial this one, and whose last connection has ended: they may come again within a grace period.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use super::super::endpoint::Endpoint;
use super::call::{connect, is_connected};

/// Grace period of a process that listens, once its port refuses connections: its connections end in any order,
/// and may be made again before the new ones are known here.
const REFUSED: Duration = Duration::from_millis(100);
/// The same in round trips.
const TRIPS: u32 = 4;

/// Bit of the tokens of probes.
pub(super) const PROBES: usize = 1 << (usize::BITS - 3);

#[derive(Default)]
pub(super) struct Absences {
    all: HashMap<String, Absence>,
    probes: HashMap<usize, Probe>,
    next: usize,
}

struct Absence {
    until: Instant,
}

/// A connection to the port of an absent process, without a greeting.
struct Probe {
    address: String,
    socket: TcpStream,
    began: Instant,
}

impl Absences {
    /// The last connection with a process has ended.
    pub(super) fn begin(&mut self, endpoint: &Endpoint, registry: &Registry, address: String) {
        let now = Instant::now();
        let grace = Duration::from_millis(endpoint.place.grace_ms);
        if let Ok(port) = address.parse() {
            self.probe(registry, &address, &port, now);
        }
        self.all.insert(address, Absence { until: now + grace });
    }

    fn probe(&mut self, registry: &Registry, address: &str, port: &SocketAddr, began: Instant) {
        // Without a probe the grace period is the whole one.
        let Ok(socket) = connect(port) else { return };
        let token = PROBES | self.next;
        self.next += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        if registry.register(&mut SourceFd(&socket.as_raw_fd()), Token(token), interest).is_ok() {
            self.probes.insert(token, Probe { address: address.into(), socket, began });
        }
    }

    /// Something has happened on the socket of a probe.
    pub(super) fn serve(&mut self, token: usize) {
        let Some(Probe { address, socket, began }) = self.probes.get(&token) else { return };
        let connected = is_connected(socket);
        if matches!(connected, Ok(false)) {
            return;
        }
        let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if let (Err(error), Some(absence)) = (connected, self.all.get_mut(address))
            && is_refused(&error)
        {
            let grace = REFUSED.max(began.elapsed() * TRIPS);
            absence.until = absence.until.min(Instant::now() + grace);
        }
        self.probes.remove(&token);
    }

    /// Reports the processes that have not come again.
    pub(super) fn tick(&mut self, endpoint: &Endpoint, now: Instant) {
        let over: Vec<String> = self
            .all
            .iter()
            .filter(|(_, absence)| absence.until <= now)
            .map(|(address, _)| address.clone())
            .collect();
        for address in over {
            self.all.remove(&address);
            self.probes.retain(|_, probe| probe.address != address);
            let peers = &endpoint.incoming.peers;
            if !peers.has(&address, true) && !peers.has(&address, false) {
                endpoint.incoming.gone(&address);
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.all.values().map(|absence| absence.until).min()
    }
}
