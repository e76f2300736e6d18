//! A connection with one peer, and its sending side. Reading is the part of `io_threads`.

use std::io::{self, IoSlice};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use socket2::{SockRef, TcpKeepalive};

use super::framing::{HEAD, MessageKind, head};
use crate::sys;
use crate::sys::sync::Mutex;
use crate::transport::tls::{Sealer, TlsError};
use crate::transport::who_and_address;

/// Idle time before the first TCP keepalive probe. A connection may be idle for long between rounds; probes
/// keep its state in firewalls and NAT, and end it when the other machine is gone.
const QUIET: Duration = Duration::from_secs(60);

/// A write to a broken connection must not end the process by SIGPIPE.
const WAITING: i32 = libc::MSG_NOSIGNAL;
const AT_ONCE: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Maximum number of slices of one call (`IOV_MAX`).
const MOST_SLICES: usize = 1_024;

/// An admitted connection.
pub(super) struct Connection {
    socket: TcpStream,
    /// The peer, as in [`crate::transport::Inbox::arrived`].
    from: String,
    /// Whether this process sends over it, if it has another one with the peer.
    is_preferred: bool,
    write: Mutex<WriteHalf>,
    ended: AtomicBool,
}

struct WriteHalf {
    sealer: Option<Sealer>,
    /// Bytes that the socket did not take at once, and how many of them were sent since.
    rest: Vec<u8>,
    sent: usize,
}

/// Sets the options of a socket, before its first byte.
pub(super) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    SockRef::from(socket).set_tcp_keepalive(&TcpKeepalive::new().with_time(QUIET))
}

impl Connection {
    /// The socket blocks a send that may wait, for `patience` at most: a thread that waited for readiness
    /// would go on only when a third of the buffer is free. What is read never waits.
    pub(super) fn new(
        socket: TcpStream,
        from: String,
        is_preferred: bool,
        patience: Duration,
        sealer: Option<Sealer>,
    ) -> io::Result<Arc<Self>> {
        socket.set_nonblocking(false)?;
        socket.set_write_timeout(Some(patience))?;
        let write = Mutex::new(WriteHalf { sealer, rest: Vec::new(), sent: 0 });
        let ended = AtomicBool::new(false);
        Ok(Arc::new(Self { socket, from, is_preferred, write, ended }))
    }

    pub(super) fn from(&self) -> &str {
        &self.from
    }

    /// The address at which the peer is reached.
    pub(super) fn address(&self) -> &str {
        who_and_address(&self.from).1
    }

    pub(super) fn is_preferred(&self) -> bool {
        self.is_preferred
    }

    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(super) fn is_open(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }

    /// Ends the connection in both directions: its reader notices, and each write fails.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        // The socket may be closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Tells the peer by an alert of TLS why the connection ends.
    pub(super) fn alert(&self, error: &TlsError) {
        self.seal_end(|sealer, rest| sealer.alert(error, rest));
    }

    fn seal_end(&self, seal: impl FnOnce(&mut Sealer, &mut Vec<u8>)) {
        if let Some(mut write) = self.write.try_lock() {
            let WriteHalf { sealer, rest, .. } = &mut *write;
            if let Some(sealer) = sealer {
                seal(sealer, rest);
            }
            // Without waiting: a peer that takes no bytes gets no end either.
            let _ = write.flush(self, false);
        }
    }

    /// Ends the connection behind what was sent; bytes of the peer are still read.
    pub(super) fn finish(&self) {
        self.seal_end(Sealer::close);
        self.ended.store(true, Ordering::Release);
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Whether bytes of earlier messages are still unsent.
    pub(super) fn owes(&self) -> bool {
        self.write.lock().owes()
    }

    /// Sends a message with scatter/gather: each lent slice follows its number of own bytes. Without
    /// `may_wait`, bytes that the socket does not take at once are kept. After an error the connection is
    /// unusable.
    pub(super) fn send(
        &self,
        kind: MessageKind,
        own: &[u8],
        lent: &[(usize, Bytes)],
        may_wait: bool,
    ) -> io::Result<()> {
        let len = own.len() + lent.iter().map(|(_, lent)| lent.len()).sum::<usize>();
        let head = head(kind, len)?;
        let mut slices = SmallVec::<[IoSlice<'_>; 8]>::new();
        slices.push(IoSlice::new(&head));
        let mut taken = 0;
        for (at, lent) in lent {
            slices.extend([IoSlice::new(&own[taken..*at]), IoSlice::new(lent)]);
            taken = *at;
        }
        slices.push(IoSlice::new(&own[taken..]));
        self.write.lock().send(self, &mut slices, HEAD + len, may_wait)
    }

    /// Sends the owed bytes; without `may_wait`, only as many as the socket takes.
    pub(super) fn settle(&self, may_wait: bool) -> io::Result<()> {
        self.write.lock().flush(self, may_wait)
    }

    /// Reads what has arrived.
    pub(super) fn receive(&self, room: &mut [u8]) -> io::Result<usize> {
        sys::receive_now(self.fd(), room)
    }

    /// Number of bytes taken; None if the socket takes none now. A wait ends with the socket's timeout.
    fn write(&self, slices: &[IoSlice<'_>], may_wait: bool) -> io::Result<Option<usize>> {
        let slices = &slices[..slices.len().min(MOST_SLICES)];
        let flags = if may_wait { WAITING } else { AT_ONCE };
        loop {
            match SockRef::from(&self.socket).send_vectored_with_flags(slices, flags) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => return Ok(Some(count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !may_wait => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl WriteHalf {
    fn owes(&self) -> bool {
        self.sent < self.rest.len()
    }

    fn send(
        &mut self,
        connection: &Connection,
        slices: &mut [IoSlice<'_>],
        len: usize,
        may_wait: bool,
    ) -> io::Result<()> {
        self.flush(connection, may_wait)?;
        if let Some(sealer) = &mut self.sealer {
            sealer.seal(slices, &mut self.rest).map_err(io::Error::other)?;
            return self.flush(connection, may_wait);
        }
        if self.owes() {
            self.keep(slices);
            return Ok(());
        }
        let (mut left, mut slices) = (len, slices);
        while left > 0 {
            let Some(count) = connection.write(slices, may_wait)? else {
                self.keep(slices);
                return Ok(());
            };
            IoSlice::advance_slices(&mut slices, count);
            left -= count;
        }
        Ok(())
    }

    fn flush(&mut self, connection: &Connection, may_wait: bool) -> io::Result<()> {
        while self.owes() {
            let rest = [IoSlice::new(&self.rest[self.sent..])];
            let Some(count) = connection.write(&rest, may_wait)? else { return Ok(()) };
            self.sent += count;
        }
        self.rest.clear();
        self.sent = 0;
        Ok(())
    }

    fn keep(&mut self, slices: &[IoSlice<'_>]) {
        self.rest.drain(..self.sent);
        self.sent = 0;
        slices.iter().for_each(|slice| self.rest.extend_from_slice(slice));
    }
}
