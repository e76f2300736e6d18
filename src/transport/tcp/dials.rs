//! The connections that this process is to make, and the queues that wait for them. Senders ask here, and the
//! greeter (`greeter`) makes them.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::call_backs::CallBacks;
use super::greeting::Lane;
use crate::sys::sync::Mutex;
use crate::transport::SendQueue;

/// What the greeter is to do.
pub(super) enum Order {
    /// Make the connections with an address that are missing.
    Dial(Arc<str>),
    /// A connection with an address that this process dials has ended.
    Redial(Arc<str>),
    /// The last connection with a process that dials this one has ended.
    Await(String),
    /// The addresses of a host are known.
    Resolved(Arc<str>, Lane, io::Result<Vec<SocketAddr>>),
}

pub(super) struct Dials {
    table: Mutex<DialTable>,
    call_backs: Arc<CallBacks>,
}

#[derive(Default)]
struct DialTable {
    peers: HashMap<Arc<str>, DialedPeer>,
    orders: Vec<Order>,
}

#[derive(Default)]
struct DialedPeer {
    /// An attempt is made, or was asked for.
    is_pending: bool,
    /// When the next attempt may begin, after a failure.
    next: Option<Instant>,
    waiting: Vec<Weak<dyn SendQueue>>,
}

impl Dials {
    /// `call_backs` are those of the greeter.
    pub(super) fn new(call_backs: Arc<CallBacks>) -> Self {
        Self { table: Mutex::default(), call_backs }
    }

    pub(super) fn call_backs(&self) -> &Arc<CallBacks> {
        &self.call_backs
    }

    /// Asks for a connection. False after a failure, until the next attempt may begin.
    pub(super) fn ask(&self, to: &Arc<str>) -> bool {
        let mut table = self.table.lock();
        let peer = table.peers.entry(Arc::clone(to)).or_default();
        if peer.is_pending {
            return true;
        }
        if peer.next.is_some_and(|next| next > Instant::now()) {
            return false;
        }
        peer.is_pending = true;
        table.orders.push(Order::Dial(Arc::clone(to)));
        drop(table);
        self.call_backs.wake();
        true
    }

    /// Has the queue called once the attempt has ended, or now if there is none.
    pub(super) fn call_back(&self, to: &Arc<str>, queue: Weak<dyn SendQueue>) {
        let mut table = self.table.lock();
        match table.peers.get_mut(to) {
            Some(peer) if peer.is_pending => peer.waiting.push(queue),
            _ => {
                drop(table);
                self.call_backs.post(queue);
            }
        }
    }

    pub(super) fn order(&self, order: Order) {
        self.table.lock().orders.push(order);
        self.call_backs.wake();
    }

    pub(super) fn orders(&self) -> Vec<Order> {
        std::mem::take(&mut self.table.lock().orders)
    }

    /// The greeter begins an attempt by itself.
    pub(super) fn begin(&self, to: &Arc<str>) {
        self.table.lock().peers.entry(Arc::clone(to)).or_default().is_pending = true;
    }

    /// An attempt has ended; after a failure with the time of the next one. Gives the queues that wait.
    pub(super) fn settle(&self, to: &Arc<str>, next: Option<Instant>) -> Vec<Weak<dyn SendQueue>> {
        let mut table = self.table.lock();
        let Some(peer) = table.peers.get_mut(to) else { return Vec::new() };
        (peer.is_pending, peer.next) = (false, next);
        std::mem::take(&mut peer.waiting)
    }
}
