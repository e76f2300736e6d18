//! The port to which others connect, and its thread.

use std::io;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use socket2::SockRef;

use super::greeting::{Greeting, Writer, prepare, welcome};
use super::inlet::Inlet;
use super::peers::{Streams, spawn};
use crate::engine::{Inbox, who_and_address};
use crate::log::{Level, log};

/// So many may be about to say who they are; more are sent away.
const STRANGERS: usize = 64;
/// When the system has no descriptor left, for example.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Listener {
    socket: Arc<TcpListener>,
    port: u16,
    closed: Arc<AtomicBool>,
}

impl Listener {
    /// At a port that the system chooses.
    pub(super) fn open(ip: IpAddr) -> io::Result<Self> {
        let socket = TcpListener::bind((ip, 0))?;
        let port = socket.local_addr()?.port();
        Ok(Self { socket: Arc::new(socket), port, closed: Arc::default() })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Starts the thread that lets others in.
    pub(super) fn serve(&self, streams: Weak<Streams>) -> bool {
        let (listener, closed) = (Arc::clone(&self.socket), Arc::clone(&self.closed));
        let strangers = Arc::new(AtomicUsize::new(0));
        spawn(move || {
            while !closed.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((socket, _)) => meet(socket, &strangers, &streams),
                    Err(_) if closed.load(Ordering::SeqCst) => {}
                    Err(error) => {
                        log(Level::Debug, || format!("nobody can connect now: {error}"));
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        })
    }

    /// Ends the thread, and frees the port.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // That wakes the thread; it fails if it has been done.
        let _ = SockRef::from(&*self.socket).shutdown(Shutdown::Both);
    }
}

/// Finds out who has connected, on a thread that then reads what it sends.
fn meet(socket: TcpStream, strangers: &Arc<AtomicUsize>, streams: &Weak<Streams>) {
    if strangers.fetch_add(1, Ordering::SeqCst) >= STRANGERS {
        strangers.fetch_sub(1, Ordering::SeqCst);
        return;
    }
    let (counted, streams) = (Arc::clone(strangers), Weak::clone(streams));
    let started = spawn(move || {
        let known = let_in(socket, &streams);
        counted.fetch_sub(1, Ordering::SeqCst);
        match known {
            Ok(Some((inbox, inlet, address))) => inlet.serve(&*inbox, &address),
            Ok(None) => {}
            Err(error) => log(Level::Debug, || format!("a stranger was sent away: {error}")),
        }
    });
    if !started {
        strangers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whom to tell what is read from a connection, if it is to be read here, and the address of its peer.
type Known = (Arc<dyn Inbox>, Arc<Inlet>, String);

fn let_in(socket: TcpStream, streams: &Weak<Streams>) -> io::Result<Option<Known>> {
    prepare(&socket)?;
    let greeting = Greeting::hear(&socket)?;
    let streams = streams.upgrade().ok_or(io::ErrorKind::NotConnected)?;
    let from = streams.admit(&greeting).ok_or(io::ErrorKind::PermissionDenied)?;
    welcome(&socket)?;
    let address = who_and_address(&from).1;
    if greeting.writer == Writer::Listener {
        streams.write_to(address, socket)?;
        return Ok(None);
    }
    let inlet = streams.read_from(&from, socket);
    Ok(inlet.map(|inlet| (Arc::clone(streams.inbox()), inlet, address.into())))
}
