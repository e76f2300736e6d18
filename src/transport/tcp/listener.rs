//! The port to which peers connect, and its thread.

use std::io;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use socket2::SockRef;

use super::spawn;
use crate::log::{Level, log};

/// Maximum number of connections in the handshake; further ones are closed.
const STRANGERS: usize = 64;
/// Pause after a failed accept, for example when the system has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Listener {
    socket: Arc<TcpListener>,
    port: u16,
    closed: Arc<AtomicBool>,
}

/// Counts a connection in the handshake, until it is dropped.
pub(super) struct HandshakeGuard(Arc<AtomicUsize>);

impl HandshakeGuard {
    /// None if there are too many.
    fn new(all: &Arc<AtomicUsize>) -> Option<Self> {
        let this = Self(Arc::clone(all));
        (all.fetch_add(1, Ordering::SeqCst) < STRANGERS).then_some(this)
    }
}

impl Drop for HandshakeGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Listener {
    /// Listens at a port that the system chooses.
    pub(super) fn open(ip: IpAddr) -> io::Result<Self> {
        let socket = TcpListener::bind((ip, 0))?;
        let port = socket.local_addr()?.port();
        Ok(Self { socket: Arc::new(socket), port, closed: Arc::default() })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Starts the thread that accepts connections and passes each to a thread of its own.
    pub(super) fn serve(
        &self,
        meet: impl Fn(TcpStream, HandshakeGuard) + Send + Sync + 'static,
    ) -> bool {
        let (listener, closed) = (Arc::clone(&self.socket), Arc::clone(&self.closed));
        let (strangers, meet) = (Arc::default(), Arc::new(meet));
        spawn(move || {
            while !closed.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((socket, _)) => {
                        if let Some(stranger) = HandshakeGuard::new(&strangers) {
                            let meet = Arc::clone(&meet);
                            spawn(move || meet(socket, stranger));
                        }
                    }
                    Err(_) if closed.load(Ordering::SeqCst) => {}
                    Err(error) => {
                        log(Level::Debug, || format!("no process can connect now: {error}"));
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        })
    }

    /// Ends the thread, and frees the port.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Wakes the accepting thread; fails if the socket was shut down before.
        let _ = SockRef::from(&*self.socket).shutdown(Shutdown::Both);
    }
}
