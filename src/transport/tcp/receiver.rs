//! Receiver side of a connection, and its thread.

use std::cell::Cell;
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};

use super::{LENGTH, MOST_BYTES};
use crate::log::{Level, log};
use crate::transport::Inbox;
use crate::transport::adaptive_wait::AdaptiveWait;
use crate::transport::reader_end::{EndMode, ReaderEnd};

/// Size of a read while the number of expected bytes is unknown.
const SOME: usize = 64 << 10;

/// A connection that only the peer writes to.
pub(super) struct TcpReceiver {
    socket: TcpStream,
    /// Address of the sender, as Zenoh reports it.
    from: String,
    pub(super) ending: ReaderEnd,
}

impl TcpReceiver {
    pub(super) fn new(socket: TcpStream, from: &str) -> Self {
        Self { socket, from: from.into(), ending: ReaderEnd::default() }
    }

    /// Stops receiving; bytes that have arrived are still read.
    pub(super) fn shut(&self) {
        // The socket may be closed already.
        let _ = self.socket.shutdown(Shutdown::Read);
    }

    /// Delivers buffers to the inbox, until the end.
    pub(super) fn serve(&self, inbox: &dyn Inbox, address: &str) {
        if let Err(error) = self.read_all(inbox) {
            let from = &self.from;
            log(Level::Debug, || format!("a connection from {from} ended: {error}"));
        }
        // Makes the peer's next write fail.
        let _ = self.socket.shutdown(Shutdown::Both);
        if self.ending.end() {
            inbox.down(address);
        }
    }

    fn read_all(&self, inbox: &dyn Inbox) -> io::Result<()> {
        self.socket.set_read_timeout(None)?;
        self.socket.set_nonblocking(true)?;
        let (mut bytes, mut lookout) = (Vec::new(), AdaptiveWait::new());
        // Range of the bytes that have arrived and were not delivered.
        let (mut start, mut end) = (0, 0);
        loop {
            let missing = match first(&bytes[start..end])? {
                _ if self.ending.is_to(EndMode::Closed) => return Ok(()),
                Delivery::Whole(parcel) => {
                    inbox.arrived(&self.from, parcel.len(), &mut std::iter::once(parcel));
                    start += LENGTH + parcel.len();
                    continue;
                }
                Delivery::Missing(count) => count,
            };
            // Moves the bytes to the front, so that the used part of the memory stays in the caches.
            bytes.copy_within(start..end, 0);
            (start, end) = (0, end - start);
            // Not beyond a large buffer, or the start of the next one would have to be moved.
            let limit = end + missing.max(SOME);
            if limit > bytes.len() {
                bytes.resize(limit, 0);
            }
            match self.read(&mut bytes[end..limit], &mut lookout) {
                Ok(0) => return Ok(()),
                Ok(count) => end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for bytes, and reads those that have arrived.
    fn read(&self, room: &mut [u8], lookout: &mut AdaptiveWait) -> io::Result<usize> {
        let first = (&self.socket).read(room);
        let is_nothing = |result: &io::Result<usize>| {
            result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        if !is_nothing(&first) {
            return first;
        }
        let room = Cell::new(room);
        let read = || {
            let taken = room.take();
            let result = (&self.socket).read(taken);
            room.set(taken);
            result
        };
        let sleep = || {
            self.socket.set_nonblocking(false)?;
            let result = read();
            self.socket.set_nonblocking(true)?;
            result
        };
        let look = || Some(read()).filter(|result| !is_nothing(result));
        lookout.wait(look, sleep)
    }
}

/// The first buffer of the received bytes.
enum Delivery<'a> {
    Whole(&'a [u8]),
    /// At least this many bytes are missing.
    Missing(usize),
}

fn first(bytes: &[u8]) -> io::Result<Delivery<'_>> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else {
        return Ok(Delivery::Missing(LENGTH - bytes.len()));
    };
    let length = usize::try_from(u32::from_le_bytes(*length)).map_err(io::Error::other)?;
    if length > MOST_BYTES {
        return Err(io::Error::other("a length that no sender sends"));
    }
    Ok(rest.get(..length).map_or_else(|| Delivery::Missing(length - rest.len()), Delivery::Whole))
}
