//! The engine: Eclipse Zenoh, over TCP or TLS.
//!
//! A process that listens has one session for all who come to it; whoever calls has sessions of its own
//! for each address: one for each direction, if values go there, because a socket that sends does not
//! receive meanwhile. A message is one put to `kvstore/<to>/<who>/<from>` (see `names`); while a
//! process lives, each session on which it hears has the token `kvstore-alive/<who>/<name>`. A message may
//! instead be an attachment that says where its bytes are in the memory of this machine.

mod connection;
mod line;
mod settings;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::{Engine, Inbox, Line, Parcels, Place, name_of_this_process};
use crate::error::{Result, fail};
use crate::log::{Level, log};
use crate::sync::Mutex;
use connection::{Connection, Made};
use line::{ToOne, Way};
use settings::listen_at;

/// How long the end of all sessions may take. What waits for a process that takes nothing any more
/// ends later, on a thread of its own.
const CLOSE: Duration = Duration::from_secs(1);

pub(crate) struct Zenoh {
    address: Arc<str>,
    place: Place,
    inbox: Arc<dyn Inbox>,
    /// For those who come to us.
    hall: Option<Arc<Connection>>,
    /// Those that we made, to be closed.
    made: Arc<Mutex<Made>>,
    parcels: Arc<Parcels>,
}

impl Zenoh {
    pub(super) fn open(place: &Place, inbox: Arc<dyn Inbox>) -> Result<Self> {
        let made = Arc::default();
        let Some(listen) = &place.listen else {
            let name = name_of_this_process();
            let address = match &place.credentials {
                Some(credentials) => format!("{}@{name}", credentials.identity).into(),
                None => name.into(),
            };
            let parcels = Arc::default();
            return Ok(Self { address, place: place.clone(), inbox, hall: None, made, parcels });
        };
        let (address, session) = listen_at(listen, place)?;
        let hall = Connection::to_hear(session, &address, place, &inbox)
            .map_err(|error| fail!(Network, "cannot listen at {address}: {error}"))?;
        let (hall, parcels) = (Some(Arc::new(hall)), Arc::default());
        Ok(Self { address, place: place.clone(), inbox, hall, made, parcels })
    }
}

impl Engine for Zenoh {
    fn address(&self) -> &str {
        &self.address
    }

    fn line(&self, to: &str) -> Box<dyn Line> {
        let way = if self.place.calls(to) {
            Way::call(&self.place, &self.inbox, &self.made)
        } else {
            Way::Hall(self.hall.clone())
        };
        Box::new(ToOne::new(to, &self.address, way, &self.place, &self.parcels))
    }

    fn close(&self) {
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
