//! TCP connections between processes, also inside TLS. Also called: sockets, network transport.
//!
//! A process has a connection with the scheduler, and with each other peer one for each direction. Workers dial
//! the scheduler and the servers, servers dial the scheduler; the scheduler and the servers listen on one port
//! each. A connection
//! begins with a greeting ([`admission`]), and carries messages behind it ([`framing`]). Sending threads write
//! to it, and a few threads read from all of them ([`io_threads`]). Its end is the end of the peer.

mod accept;
mod admission;
mod connection;
mod dial;
mod endpoint;
mod framing;
mod greeting;
mod io_threads;
mod layer;
mod peers;
mod pending;
mod sender;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use super::names::{name_of_this_process, with_identity};
use super::{Inbox, PeerChoice, SendBuffers, Sender, Transport, TransportConfig};
use crate::config::address::has_port;
use crate::error::{Result, fail};
use crate::sys::sync::Mutex;
use accept::{Acceptor, Port};
use endpoint::Endpoint;
use sender::PeerSender;

pub(super) struct TcpTransport {
    endpoint: Arc<Endpoint>,
    acceptor: Mutex<Option<Acceptor>>,
    buffers: Arc<SendBuffers>,
}

impl TcpTransport {
    pub(super) fn open(place: &TransportConfig, inbox: &Arc<dyn Inbox>) -> Result<Self> {
        let Some(listen) = &place.listen else {
            let name = name_of_this_process();
            let who = place.credentials.as_ref().map(|credentials| credentials.identity);
            let address = with_identity(who, &name).into();
            let endpoint = Arc::new(Endpoint::new(place, address, name, inbox));
            return Ok(Self { endpoint, acceptor: Mutex::new(None), buffers: Arc::default() });
        };
        let Port { socket, at } = bind(listen)?;
        let address: Arc<str> = match place.advertised {
            _ if place.is_scheduler => Arc::clone(&place.root),
            Some(ip) => SocketAddr::new(ip, at.port()).to_string().into(),
            None => at.to_string().into(),
        };
        let name = String::from(&*address);
        let endpoint = Arc::new(Endpoint::new(place, address, name, inbox));
        let acceptor = Acceptor::start(socket, &endpoint)?;
        Ok(Self { endpoint, acceptor: Mutex::new(Some(acceptor)), buffers: Arc::default() })
    }
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

    fn line(&self, to: &str) -> Box<dyn Sender> {
        Box::new(PeerSender::new(to, &self.endpoint, &self.buffers))
    }

    fn choices(&self) -> BTreeMap<Arc<str>, PeerChoice> {
        self.endpoint.incoming.transports.choices()
    }

    fn close(&self) {
        if let Some(mut acceptor) = self.acceptor.lock().take() {
            acceptor.close();
        }
        self.endpoint.close();
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.close();
    }
}
