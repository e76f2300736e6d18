//! All connections of a process, by the address of the peer.

use std::collections::HashMap;
use std::sync::Arc;

use super::connection::Connection;
use crate::sys::sync::Mutex;
use crate::transport::who_and_address;

/// The connections with each peer, oldest first: one, or one for each direction. A peer that has connected
/// anew may have others, whose end is not known yet.
type ByAddress = HashMap<String, Vec<Arc<Connection>>>;

/// Connections of a process. None after `close`.
pub(super) struct Peers(Mutex<Option<ByAddress>>);

impl Peers {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Some(ByAddress::new())))
    }

    /// Adds a connection; false after `close`.
    pub(super) fn add(&self, connection: &Arc<Connection>) -> bool {
        let mut peers = self.0.lock();
        let Some(peers) = &mut *peers else { return false };
        peers.entry(connection.address().into()).or_default().push(Arc::clone(connection));
        true
    }

    /// The newest open connection with a peer over which this process sends, or any that is open.
    pub(super) fn find(&self, address: &str) -> Option<Arc<Connection>> {
        let peers = self.0.lock();
        let connections = peers.as_ref()?.get(address)?;
        let open = || connections.iter().rev().filter(|connection| connection.is_open());
        open().find(|connection| connection.is_preferred()).or_else(|| open().next()).cloned()
    }

    /// Whether another process, as its identity tells, is connected from the address of this one. `from` is as
    /// in [`crate::transport::Inbox::arrived`].
    pub(super) fn has_other_than(&self, from: &str) -> bool {
        let peers = self.0.lock();
        let known = peers.as_ref().and_then(|peers| peers.get(who_and_address(from).1));
        known.is_some_and(|known| known.iter().any(|it| it.is_open() && it.from() != from))
    }

    /// Removes a connection; whether it was the last one with its peer. None after `close`.
    pub(super) fn remove(&self, connection: &Arc<Connection>) -> Option<bool> {
        let mut peers = self.0.lock();
        let peers = peers.as_mut()?;
        let others = peers.get_mut(connection.address())?;
        others.retain(|other| !Arc::ptr_eq(other, connection));
        let is_last = others.is_empty();
        if is_last {
            peers.remove(connection.address());
        }
        Some(is_last)
    }

    /// Whether there is an open connection with a peer over which this process sends, or the peer.
    pub(super) fn has(&self, address: &str, is_preferred: bool) -> bool {
        let peers = self.0.lock();
        let known = peers.as_ref().and_then(|peers| peers.get(address));
        known.is_some_and(|known| {
            known.iter().any(|it| it.is_open() && it.is_preferred() == is_preferred)
        })
    }

    /// Whether there is an open connection with a peer.
    pub(super) fn is_connected(&self, address: &str) -> bool {
        self.has(address, true) || self.has(address, false)
    }

    /// All connections with a peer.
    #[cfg(test)]
    pub(super) fn all(&self, address: &str) -> Vec<Arc<Connection>> {
        let peers = self.0.lock();
        peers.as_ref().and_then(|peers| peers.get(address)).cloned().unwrap_or_default()
    }

    pub(super) fn count(&self) -> usize {
        self.0.lock().as_ref().map_or(0, |peers| peers.values().map(Vec::len).sum())
    }

    /// Removes all connections; none is added any more.
    pub(super) fn close(&self) -> Vec<Arc<Connection>> {
        self.0
            .lock()
            .take()
            .into_iter()
            .flatten()
            .flat_map(|(_, connections)| connections)
            .collect()
    }
}
