//! The transports of this library in order of preference, and the choice among them for each peer.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[cfg(test)]
use super::memory;
use super::peer_transport::{
    AUTO, Carrier, PathState, PeerPath, PeerTransport, TransportChoice, TransportRow,
};
use super::{Inbox, Polling, SendBuffer, TransportConfig, shm, ucx};
use crate::log::{Level, log};
use crate::sys::sync::Mutex;

/// Every transport, the preferred ones first. The connection is the last one, and always there.
const TABLE: &[TransportRow] = &[
    #[cfg(test)]
    memory::ROW,
    shm::ROW,
    ucx::ROW,
    TransportRow { name: "tcp", carrier: Carrier::Connection },
];

/// Whether messages of this kind carry offers.
pub(super) fn is_offer(kind: u16) -> bool {
    TABLE.iter().any(|row| offers(row) == Some(kind))
}

/// What a transport would use in a process, or why the process does not use it.
fn probe(row: &TransportRow, choice: &TransportChoice<'_>) -> Result<String, String> {
    match row.carrier {
        Carrier::Connection => Ok("the connection that every pair has".into()),
        Carrier::Offered { .. } if ![AUTO, row.name].contains(&choice.transport) => {
            Err(format!("transport={}", choice.transport))
        }
        Carrier::Offered { .. } if choice.is_scheduler => Err(FEW_BYTES.into()),
        Carrier::Offered { probe, .. } => probe(choice),
    }
}

/// Why connections with the scheduler carry everything.
pub(super) const FEW_BYTES: &str = "few bytes go to and from the scheduler";

/// Each transport by name: what it would use here, or why this process does not use it.
pub(super) fn examine(
    choice: &TransportChoice<'_>,
) -> impl Iterator<Item = (&'static str, Result<String, String>)> {
    TABLE.iter().map(|row| (row.name, probe(row, choice)))
}

fn offers(row: &TransportRow) -> Option<u16> {
    match row.carrier {
        Carrier::Connection => None,
        Carrier::Offered { kind, .. } => Some(kind),
    }
}

/// The transport that carries frames to a peer, and why preferred ones do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerChoice {
    pub(crate) transport: &'static str,
    pub(crate) others: Vec<(&'static str, String)>,
    /// Whether that is the connection, although many bytes go to the peer.
    is_on_connection: bool,
}

/// The transports of one process, and what it uses for each peer.
pub(super) struct Transports {
    opened: Vec<Result<Arc<dyn PeerTransport>, String>>,
    choices: Mutex<BTreeMap<Arc<str>, PeerChoice>>,
    /// Number of peers with many bytes for which connections were chosen.
    on_connections: AtomicUsize,
    /// Grows with each change of the choices.
    version: AtomicU64,
}

impl Transports {
    /// Opens the transports that the configuration allows.
    pub(super) fn open(place: &TransportConfig, inbox: &Arc<dyn Inbox>) -> Self {
        let choice = TransportChoice::of(place);
        let open = |row: &TransportRow| match row.carrier {
            Carrier::Connection => Err("it is the last one".into()),
            Carrier::Offered { open, .. } => probe(row, &choice).and_then(|_| open(place, inbox)),
        };
        Self {
            opened: TABLE.iter().map(open).collect(),
            choices: Mutex::default(),
            on_connections: AtomicUsize::new(0),
            version: AtomicU64::new(0),
        }
    }

    fn used(&self) -> impl Iterator<Item = &Arc<dyn PeerTransport>> {
        self.opened.iter().flatten()
    }

    /// Takes an offer of a peer, which has arrived over a connection that is sealed or not. `from` is as in
    /// [`Inbox::arrived`].
    pub(super) fn accept(&self, kind: u16, from: &str, offer: &[u8], is_sealed: bool) {
        let row = TABLE.iter().position(|row| offers(row) == Some(kind));
        if let Some(Ok(transport)) = row.and_then(|row| self.opened.get(row))
            && (is_sealed || !transport.has_secrets())
        {
            transport.accept(from, offer);
        }
    }

    /// Whether a transport needs sealed connections for its offers.
    pub(super) fn have_secrets(&self) -> bool {
        self.used().any(|transport| transport.has_secrets())
    }

    /// The last connection with a process has ended. False if no transport reports that.
    pub(super) fn end(&self, address: &str) -> bool {
        self.change(|choices| _ = choices.remove(address));
        let mut reports = false;
        for transport in self.used() {
            // One report is enough.
            reports |= transport.end(address, !reports);
        }
        reports
    }

    /// Has a thread of the program read what arrives, where it can.
    pub(super) fn add_to(&self, polling: &mut Polling) {
        self.used().for_each(|transport| transport.add_to(polling));
    }

    /// Number of peers, but for those with few bytes, whose frames come over connections: as many as get theirs so.
    pub(super) fn on_connections(&self) -> usize {
        // Relaxed: only who reads depends on it.
        self.on_connections.load(Ordering::Relaxed)
    }

    pub(super) fn finish(&self) {
        self.used().for_each(|transport| transport.finish());
    }

    pub(super) fn close(&self) {
        self.used().for_each(|transport| transport.close());
    }

    /// What this process uses for each peer with which it has a connection, if that has changed since the
    /// version `known`.
    pub(super) fn choices(&self, known: &mut u64) -> Option<BTreeMap<Arc<str>, PeerChoice>> {
        // Acquire: the choices of this version were made before.
        let version = self.version.load(Ordering::Acquire);
        (std::mem::replace(known, version) != version).then(|| self.choices.lock().clone())
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<Arc<str>, PeerChoice>)) {
        let mut choices = self.choices.lock();
        change(&mut choices);
        let on_connections = choices.values().filter(|it| it.is_on_connection).count();
        self.on_connections.store(on_connections, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// The paths of one sender, in the order of the table. Without one that is open, the connection is used.
pub(super) struct PeerPaths {
    transports: Arc<Transports>,
    to: Arc<str>,
    paths: Vec<RowPath>,
    /// Rows without a path, and why.
    refused: Vec<(usize, String)>,
    used: Option<usize>,
    /// Whether the peer exchanges few bytes.
    has_few_bytes: bool,
}

struct RowPath {
    row: usize,
    path: Box<dyn PeerPath>,
}

impl PeerPaths {
    pub(super) fn new(transports: &Arc<Transports>, to: &Arc<str>) -> Self {
        let (transports, to) = (Arc::clone(transports), Arc::clone(to));
        let (paths, refused) = (Vec::new(), Vec::new());
        Self { transports, to, paths, refused, used: None, has_few_bytes: false }
    }

    /// Makes the paths for a new connection, sealed or not; none if the peer exchanges few bytes, for this reason.
    pub(super) fn open(&mut self, few_bytes: Option<&str>, is_sealed: bool) {
        self.clear();
        self.has_few_bytes = few_bytes.is_some();
        let transports = Arc::clone(&self.transports);
        for (row, opened) in transports.opened.iter().enumerate() {
            if matches!(TABLE[row].carrier, Carrier::Connection) {
                continue;
            }
            let path = match (opened, few_bytes) {
                (Err(reason), _) => Err(reason.clone()),
                (Ok(_), Some(reason)) => Err(reason.to_owned()),
                (Ok(transport), None) if transport.has_secrets() && !is_sealed => {
                    Err("the connection is not sealed: the peer has not asked for that".into())
                }
                (Ok(transport), None) => transport.path(&self.to),
            };
            match path {
                Ok(path) => self.paths.push(RowPath { row, path }),
                Err(reason) => self.refused.push((row, reason)),
            }
        }
        self.report();
    }

    /// Drops all paths, with the connection to which they belong.
    pub(super) fn clear(&mut self) {
        if !self.paths.is_empty() || !self.refused.is_empty() {
            (self.paths, self.refused, self.used) = (Vec::new(), Vec::new(), None);
        }
    }

    /// Gives the offers that are due, with their kinds, to `send`.
    pub(super) fn offer(
        &mut self,
        mut send: impl FnMut(u16, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        for RowPath { row, path } in &mut self.paths {
            if let (Some(kind), Some(offer)) = (offers(&TABLE[*row]), path.offer()) {
                send(kind, &offer)?;
            }
        }
        Ok(())
    }

    /// Finds the path to use: the first one that is open.
    fn look(&mut self) -> Option<&mut RowPath> {
        let (mut used, mut at, mut is_changed) = (None, 0, false);
        while used.is_none() && at < self.paths.len() {
            match self.paths[at].path.state() {
                PathState::Open => used = Some(at),
                PathState::Pending => at += 1,
                PathState::Broken(reason) => {
                    let row = self.paths.remove(at).row;
                    log(Level::Debug, || format!("{}: no {}: {reason}", self.to, TABLE[row].name));
                    self.refused.push((row, reason.into()));
                    is_changed = true;
                }
            }
        }
        let row = used.map(|used| self.paths[used].row);
        if is_changed || row != self.used {
            self.used = row;
            self.report();
        }
        self.paths.get_mut(used?)
    }

    /// Tells what is used for this peer, and why not what is preferred.
    fn report(&self) {
        let used = self.used.unwrap_or(TABLE.len() - 1);
        let name = |row: usize| TABLE[row].name;
        let preferred = |row: usize| row < used;
        let refused = self.refused.iter().filter(|(row, _)| preferred(*row));
        let mut others: Vec<_> = refused.map(|(row, why)| (*row, why.clone())).collect();
        let pending = self.paths.iter().filter(|path| preferred(path.row));
        others.extend(pending.map(|path| (path.row, "the peer has not accepted it".into())));
        others.sort_unstable();
        let others = others.into_iter().map(|(row, why)| (name(row), why)).collect();
        let is_on_connection = self.used.is_none() && !self.has_few_bytes;
        let choice = PeerChoice { transport: name(used), others, is_on_connection };
        self.transports.change(|choices| _ = choices.insert(Arc::clone(&self.to), choice));
    }

    /// Whether a path would take this many bytes now.
    pub(super) fn has_room(&mut self, len: usize) -> bool {
        self.look().is_some_and(|it| it.path.has_room(len))
    }

    /// A buffer of the path that is used, if there is one, and it has room.
    pub(super) fn parcel(&mut self, room: usize, lent: usize) -> Option<SendBuffer> {
        let RowPath { row, path } = self.look()?;
        let mut parcel = path.parcel(room, lent)?;
        parcel.row = Some(*row);
        Some(parcel)
    }

    /// Sends a buffer of the path of a row.
    pub(super) fn send(&mut self, row: usize, parcel: SendBuffer) {
        if let Some(it) = self.paths.iter_mut().find(|it| it.row == row) {
            it.path.send(parcel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn the_connection_is_the_last_transport_and_the_option_names_all_of_them() {
        let is_connection = |row: &TransportRow| matches!(row.carrier, Carrier::Connection);
        assert_eq!(TABLE.iter().position(is_connection), Some(TABLE.len() - 1));
        let mut kinds: Vec<_> = TABLE.iter().filter_map(offers).collect();
        kinds.sort_unstable();
        kinds.dedup();
        assert_eq!(kinds.len(), TABLE.len() - 1, "each has a kind of its own");
        assert!(!is_offer(0), "frames");
        let mut config = Config::new();
        for name in TABLE.iter().map(|row| row.name).filter(|name| *name != memory::ROW.name) {
            config.set("transport", name).unwrap();
        }
    }
}
