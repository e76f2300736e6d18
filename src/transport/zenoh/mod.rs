//! Eclipse Zenoh as the engine, over TCP or TLS. Also called: messaging middleware, publish/subscribe
//! transport.
//!
//! A process that listens has one session for all peers that dial it. A dialing process has sessions of its
//! own for each address. There is one for each direction if values are exchanged, because a socket that sends
//! does not receive meanwhile.
//!
//! A message is one put to `kvstore/<to>/<who>/<from>` (see `names`). While a process lives, each session on
//! which it receives has the liveliness token `kvstore-alive/<who>/<name>`. A message may instead be an
//! attachment that offers a direct path (`shm`, `tcp`).

mod access;
mod connection;
mod names;
mod probe;
mod select;
mod settings;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::tcp::TcpTransport;
use super::{Inbox, SendBuffers, Sender, Transport, TransportConfig, name_of_this_process};
use crate::error::{Result, fail};
use crate::log::{Level, log};
use crate::sys::sync::Mutex;
use connection::{SessionOwner, ZenohConnection, ZenohSession};
pub(crate) use names::who_and_address;
use select::{SelectingSender, SendPath};
use settings::listen_at;

/// Timeout to close all sessions. A session blocked by an unresponsive peer is closed later, on a thread of
/// its own.
const CLOSE: Duration = Duration::from_secs(1);

pub(crate) struct Zenoh {
    party: Arc<SessionOwner>,
    /// Session of the peers that dial this process.
    hall: Option<Arc<ZenohConnection>>,
    /// Sessions that this process dialed, to be closed.
    made: Arc<Mutex<ZenohSession>>,
    parcels: Arc<SendBuffers>,
}

impl Zenoh {
    pub(super) fn open(place: &TransportConfig, inbox: &Arc<dyn Inbox>) -> Result<Self> {
        let party = |address, streams| {
            let (place, inbox) = (place.clone(), Arc::clone(inbox));
            Arc::new(SessionOwner { address, place, inbox, streams })
        };
        let Some(listen) = &place.listen else {
            let name = name_of_this_process();
            let address = match &place.credentials {
                Some(credentials) => format!("{}@{name}", credentials.identity).into(),
                None => name.into(),
            };
            let party = party(address, TcpTransport::open(place, None, inbox));
            return Ok(Self { party, hall: None, made: Arc::default(), parcels: Arc::default() });
        };
        let (address, at, session) = listen_at(listen, place)?;
        let party = party(address, TcpTransport::open(place, Some(at.ip()), inbox));
        let hall = ZenohConnection::to_hear(session, &party)
            .map_err(|error| fail!(Network, "cannot listen at {}: {error}", party.address))?;
        let hall = Some(Arc::new(hall));
        Ok(Self { party, hall, made: Arc::default(), parcels: Arc::default() })
    }
}

impl Transport for Zenoh {
    fn address(&self) -> &str {
        &self.party.address
    }

    fn line(&self, to: &str) -> Box<dyn Sender> {
        let way = if self.party.place.calls(to) {
            SendPath::call(&self.made)
        } else {
            SendPath::Hall(self.hall.clone())
        };
        Box::new(SelectingSender::new(to, &self.party, way, &self.parcels))
    }

    fn close(&self) {
        if let Some(streams) = &self.party.streams {
            streams.close();
        }
        let made = {
            let mut made = self.made.lock();
            made.closed = true;
            std::mem::take(&mut made.connections)
        };
        let (done, all) = mpsc::channel();
        let mut open = 0;
        for connection in made.into_iter().chain(self.hall.clone()) {
            open += usize::from(connection.close_apart(done.clone()));
        }
        let end = Instant::now() + CLOSE;
        for _ in 0..open {
            if all.recv_timeout(end.saturating_duration_since(Instant::now())).is_err() {
                log(Level::Debug, || "a session takes long to close".into());
                return;
            }
        }
    }
}

impl Drop for Zenoh {
    fn drop(&mut self) {
        self.close();
    }
}
