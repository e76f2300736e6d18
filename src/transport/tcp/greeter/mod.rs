//! The thread that makes connections: it greets callers, and dials. Also called: connection manager,
//! handshake thread.
//!
//! One thread serves all connections until they are admitted: none of them can make it wait. It also keeps
//! the times of reconnection: the pauses between attempts, and the grace period of processes that dial this
//! one.

mod absences;
mod accept;
mod call;
mod calls;
mod pending;

use std::io;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use mio::{Events, Poll, Token};

use super::call_backs::CallBacks;
use super::dials::Order;
use super::endpoint::Endpoint;
use crate::error::{Result, fail};
use crate::log::{Level, log};
use crate::transport::send_queue::go_on;
use absences::{Absences, PROBES};
use accept::Accepting;
pub(super) use accept::Port;
use calls::{CALLS, Calls};

pub(super) const WAKE: Token = Token(usize::MAX);
const LISTENER: Token = Token(usize::MAX - 1);

/// The thread.
pub(super) struct Greeter {
    handle: Option<JoinHandle<()>>,
    call_backs: Arc<CallBacks>,
}

impl Greeter {
    /// `poll` is where `call_backs` wake the thread. Without a port, this process only dials.
    pub(super) fn start(poll: Poll, port: Option<Port>, endpoint: &Arc<Endpoint>) -> Result<Self> {
        let accepting = port.map(|port| Accepting::new(port.socket, endpoint)).transpose()?;
        Self::run(poll, accepting, endpoint)
            .map_err(|error| fail!(Network, "cannot make connections: {error}"))
    }

    fn run(poll: Poll, accepting: Option<Accepting>, endpoint: &Arc<Endpoint>) -> io::Result<Self> {
        if let Some(accepting) = &accepting {
            accepting.register(poll.registry(), LISTENER)?;
        }
        let call_backs = Arc::clone(endpoint.incoming.dials.call_backs());
        let mut greeting = GreeterLoop {
            poll,
            endpoint: Arc::downgrade(endpoint),
            call_backs: Arc::clone(&call_backs),
            accepting,
            calls: Calls::default(),
            absences: Absences::default(),
        };
        let thread = std::thread::Builder::new().name("kvstore-greet".into());
        let handle = crate::pool::without_signals(|| thread.spawn(move || greeting.run()))?;
        Ok(Self { handle: Some(handle), call_backs })
    }

    /// Ends the thread, and frees the port.
    pub(super) fn close(&mut self) {
        self.call_backs.close();
        let Some(handle) = self.handle.take() else { return };
        if handle.thread().id() != std::thread::current().id() {
            // It does not panic.
            let _ = handle.join();
        }
    }
}

/// What the thread has.
struct GreeterLoop {
    poll: Poll,
    endpoint: Weak<Endpoint>,
    call_backs: Arc<CallBacks>,
    accepting: Option<Accepting>,
    calls: Calls,
    absences: Absences,
}

impl GreeterLoop {
    fn run(&mut self) {
        let mut events = Events::with_capacity(256);
        loop {
            let pause =
                self.next_deadline().map(|due| due.saturating_duration_since(Instant::now()));
            let result = self.poll.poll(&mut events, pause);
            let Some(endpoint) = self.endpoint.upgrade() else { return };
            if self.call_backs.is_closed() {
                return;
            }
            if let Err(error) = result
                && error.kind() != io::ErrorKind::Interrupted
            {
                return log(Level::Error, || format!("no process can connect any more: {error}"));
            }
            let knocks = events.iter().any(|event| event.token() == LISTENER);
            for event in events.iter().filter(|event| ![LISTENER, WAKE].contains(&event.token())) {
                self.serve(&endpoint, event.token().0);
            }
            for order in endpoint.incoming.dials.orders() {
                self.obey(&endpoint, order);
            }
            let mut queues = Vec::new();
            self.call_backs.take(&mut queues);
            queues.iter().for_each(go_on);
            let (registry, now) = (self.poll.registry(), Instant::now());
            if let Some(accepting) = &mut self.accepting {
                if knocks {
                    accepting.accept(&endpoint, registry);
                }
                accepting.tick(&endpoint, registry, now);
            }
            self.calls.tick(&endpoint, registry, now);
            self.absences.tick(&endpoint, now);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let accepting = self.accepting.as_ref().and_then(Accepting::next_deadline);
        let others = [self.calls.next_deadline(), self.absences.next_deadline()];
        others.into_iter().flatten().chain(accepting).min()
    }

    fn serve(&mut self, endpoint: &Arc<Endpoint>, token: usize) {
        let registry = self.poll.registry();
        if token & CALLS != 0 {
            self.calls.serve(endpoint, registry, token);
        } else if token & PROBES != 0 {
            self.absences.serve(registry, token);
        } else if let Some(accepting) = &mut self.accepting {
            accepting.serve(endpoint, registry, token);
        }
    }

    fn obey(&mut self, endpoint: &Arc<Endpoint>, order: Order) {
        let registry = self.poll.registry();
        match order {
            Order::Dial(to) => self.calls.dial(endpoint, registry, &to),
            Order::Redial(to) => self.calls.redial(endpoint, registry, &to),
            Order::Await(address) => self.absences.begin(endpoint, registry, address),
            Order::Resolved(to, lane, addresses) => {
                self.calls.resolved(endpoint, registry, &to, lane, addresses);
            }
        }
    }
}
