//! All connections of a process, by the address of the peer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::connection::Connection;
use super::greeting::Lane;
use crate::sys::sync::Mutex;
use crate::transport::who_and_address;

/// The connections with each peer, oldest first: one, or one for each direction, and more over a long link. A
/// peer that has connected anew may have others, whose end is not known yet.
type ByAddress = HashMap<String, Vec<Arc<Connection>>>;

/// Connections over which a process sends to one peer: mostly one.
pub(super) type Lanes = SmallVec<[Arc<Connection>; 1]>;

/// Connections of a process.
pub(super) struct Peers {
    /// None after `close`.
    all: Mutex<Option<ByAddress>>,
    /// Number of connections that were added and removed so far.
    version: AtomicU64,
}

impl Peers {
    pub(super) fn new() -> Self {
        Self { all: Mutex::new(Some(ByAddress::new())), version: AtomicU64::new(0) }
    }

    /// Another number after each change.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Called with the connections locked.
    fn change(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Adds a connection; false after `close`.
    pub(super) fn add(&self, connection: &Arc<Connection>) -> bool {
        let mut peers = self.all.lock();
        let Some(peers) = &mut *peers else { return false };
        peers.entry(connection.address().into()).or_default().push(Arc::clone(connection));
        self.change();
        true
    }

    /// The open connections with a peer over which this process sends, the newest of each lane, or one that is
    /// open if there is none of these.
    pub(super) fn lanes(&self, address: &str) -> Lanes {
        let mut lanes = Lanes::new();
        let peers = self.all.lock();
        let Some(all) = peers.as_ref().and_then(|peers| peers.get(address)) else { return lanes };
        let open = || all.iter().rev().filter(|connection| connection.is_open());
        for connection in open().filter(|connection| connection.is_preferred()) {
            if !lanes.iter().any(|known| known.lane() == connection.lane()) {
                lanes.push(Arc::clone(connection));
            }
        }
        if lanes.is_empty() {
            lanes.extend(open().next().cloned());
        }
        lanes
    }

    /// An open connection of the first lanes with a peer.
    pub(super) fn first(&self, address: &str) -> Option<Arc<Connection>> {
        let peers = self.all.lock();
        let mut all = peers.as_ref()?.get(address)?.iter();
        all.find(|it| it.lane().number == 0 && it.is_open()).cloned()
    }

    /// Whether another process, as its identity tells, is connected from the address of this one. `from` is as
    /// in [`crate::transport::Inbox::arrived`].
    pub(super) fn has_other_than(&self, from: &str) -> bool {
        let peers = self.all.lock();
        let known = peers.as_ref().and_then(|peers| peers.get(who_and_address(from).1));
        known.is_some_and(|known| known.iter().any(|it| it.is_open() && it.from() != from))
    }

    /// Removes a connection; whether it was the last one with its peer. None after `close`.
    pub(super) fn remove(&self, connection: &Arc<Connection>) -> Option<bool> {
        let mut peers = self.all.lock();
        let peers = peers.as_mut()?;
        self.change();
        let others = peers.get_mut(connection.address())?;
        others.retain(|other| !Arc::ptr_eq(other, connection));
        let is_last = others.is_empty();
        if is_last {
            peers.remove(connection.address());
        }
        Some(is_last)
    }

    fn has(&self, address: &str, is_one: impl Fn(&Connection) -> bool) -> bool {
        let peers = self.all.lock();
        let known = peers.as_ref().and_then(|peers| peers.get(address));
        known.is_some_and(|known| known.iter().any(|it| it.is_open() && is_one(it)))
    }

    /// Whether there is an open connection with a peer on a lane.
    pub(super) fn has_lane(&self, address: &str, lane: Lane) -> bool {
        self.has(address, |connection| connection.lane() == lane)
    }

    /// Whether there is an open connection with a peer over which this process sends.
    pub(super) fn sends_to(&self, address: &str) -> bool {
        self.has(address, Connection::is_preferred)
    }

    /// Whether there is an open connection with a peer.
    pub(super) fn is_connected(&self, address: &str) -> bool {
        self.has(address, |_| true)
    }

    /// All connections with a peer.
    #[cfg(test)]
    pub(super) fn all(&self, address: &str) -> Vec<Arc<Connection>> {
        let peers = self.all.lock();
        peers.as_ref().and_then(|peers| peers.get(address)).cloned().unwrap_or_default()
    }

    pub(super) fn count(&self) -> usize {
        self.all.lock().as_ref().map_or(0, |peers| peers.values().map(Vec::len).sum())
    }

    /// Removes all connections; none is added any more.
    pub(super) fn close(&self) -> Vec<Arc<Connection>> {
        self.all
            .lock()
            .take()
            .into_iter()
            .flatten()
            .flat_map(|(_, connections)| connections)
            .collect()
    }
}
