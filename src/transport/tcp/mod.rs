//! TCP connections between processes, also inside TLS. Also called: sockets, network transport.
//!
//! A process has a connection with the scheduler, and with each other peer one for each direction, or more over
//! a long link. Workers dial the scheduler and the servers, servers dial the scheduler; the scheduler and the
//! servers listen on one port each. A connection begins with a greeting ([`admission`]), which one thread makes for both sides
//! ([`greeter`]), and carries messages behind it ([`framing`]). A few threads read from all connections
//! ([`readers`]). One that is lost is made again by its caller; a peer has ended when it says so, when its
//! port refuses connections, or when it does not connect again in time.

mod admission;
mod call_backs;
mod connection;
mod dials;
mod endpoint;
mod framing;
mod greeter;
mod greeting;
mod layer;
mod peers;
mod readers;
mod sender;
#[cfg(test)]
mod tests;

#[cfg(any(fuzzing, test))]
pub(crate) use admission::fuzz::greeting;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Weak};

use mio::{Poll, Waker};

use super::names::{name_of_this_process, with_identity};
use super::{
    Inbox, PeerChoice, PolledCall, Polling, SendBuffers, SendQueue, Sender, Transport,
    TransportConfig,
};
use crate::config::address::has_port;
use crate::error::{Result, fail};
use crate::sys::sync::Mutex;
use call_backs::CallBacks;
use dials::Dials;
use endpoint::Endpoint;
use greeter::{Greeter, Port, WAKE};
#[cfg(test)]
use peers::Lanes;
use sender::PeerSender;

pub(super) struct TcpTransport {
    endpoint: Arc<Endpoint>,
    greeter: Mutex<Option<Greeter>>,
    buffers: Arc<SendBuffers>,
}

impl TcpTransport {
    pub(super) fn open(place: &TransportConfig, inbox: &Arc<dyn Inbox>) -> Result<Self> {
        let port = place.listen.as_deref().map(bind).transpose()?;
        let name = match &port {
            None => name_of_this_process(),
            Some(_) if place.is_scheduler => place.root.to_string(),
            Some(Port { at, .. }) => {
                let advertised = place.advertised.map(|ip| SocketAddr::new(ip, at.port()));
                advertised.unwrap_or(*at).to_string()
            }
        };
        let who = place.credentials.as_ref().map(|credentials| credentials.identity);
        let address = if port.is_some() { name.clone() } else { with_identity(who, &name) };
        let (poll, dials) =
            dials().map_err(|error| fail!(Network, "cannot make connections: {error}"))?;
        let endpoint = Arc::new(Endpoint::new(place, address.into(), name, inbox, dials));
        let greeter = Greeter::start(poll, port, &endpoint)?;
        Ok(Self { endpoint, greeter: Mutex::new(Some(greeter)), buffers: Arc::default() })
    }
}

/// Where the greeter waits, and what wakes it.
fn dials() -> io::Result<(Poll, Arc<Dials>)> {
    let poll = Poll::new()?;
    let waker = Waker::new(poll.registry(), WAKE)?;
    Ok((poll, Arc::new(Dials::new(Arc::new(CallBacks::new(waker))))))
}

fn bind(listen: &str) -> Result<Port> {
    let name = |error: &dyn std::fmt::Display| fail!(Network, "cannot listen at {listen}: {error}");
    if !has_port(listen) {
        return Err(name(&"an address is a host and a port, such as 127.0.0.1:9091"));
    }
    let addresses: Vec<_> = listen.to_socket_addrs().map_err(|error| name(&error))?.collect();
    Port::bind(listen, &addresses)
}

impl Transport for TcpTransport {
    fn address(&self) -> &str {
        &self.endpoint.address
    }

    fn line(&self, to: &str, queue: Weak<dyn SendQueue>) -> Box<dyn Sender> {
        Box::new(PeerSender::new(to, &self.endpoint, &self.buffers, queue))
    }

    fn polling(&self, call: PolledCall) -> Polling {
        let mut polling = Polling::of(call);
        if polling.is_admitted() {
            self.endpoint.add_to(&mut polling);
        }
        polling.started()
    }

    fn choices(&self, known: &mut u64) -> Option<BTreeMap<Arc<str>, PeerChoice>> {
        self.endpoint.incoming.transports.choices(known)
    }

    fn close(&self) {
        let greeter = self.greeter.lock().take();
        if let Some(mut greeter) = greeter {
            greeter.close();
        }
        self.endpoint.close();
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.close();
    }
}
