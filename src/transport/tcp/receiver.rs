//! The receiver's side of a connection, and its thread.

use std::cell::Cell;
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};

use super::{LENGTH, MOST_BYTES};
use crate::log::{Level, log};
use crate::transport::Inbox;
use crate::transport::adaptive_wait::Lookout;
use crate::transport::reader_end::{End, ReaderEnd};

/// Bytes that are asked for when it is not known how many will come.
const SOME: usize = 64 << 10;

/// A connection that only the other side writes to.
pub(super) struct Inlet {
    socket: TcpStream,
    /// Who sends, as the engine says.
    from: String,
    pub(super) ending: ReaderEnd,
}

impl Inlet {
    pub(super) fn new(socket: TcpStream, from: &str) -> Self {
        Self { socket, from: from.into(), ending: ReaderEnd::default() }
    }

    /// Nothing more is received; what has come is still read.
    pub(super) fn shut(&self) {
        // It may have ended already.
        let _ = self.socket.shutdown(Shutdown::Read);
    }

    /// Hands on what comes, until the end.
    pub(super) fn serve(&self, inbox: &dyn Inbox, address: &str) {
        if let Err(error) = self.read_all(inbox) {
            let from = &self.from;
            log(Level::Debug, || format!("a connection from {from} ended: {error}"));
        }
        // Whoever writes there hears of that.
        let _ = self.socket.shutdown(Shutdown::Both);
        if self.ending.end() {
            inbox.down(address);
        }
    }

    fn read_all(&self, inbox: &dyn Inbox) -> io::Result<()> {
        self.socket.set_read_timeout(None)?;
        self.socket.set_nonblocking(true)?;
        let (mut bytes, mut lookout) = (Vec::new(), Lookout::new());
        // What has come and was not handed on.
        let (mut start, mut end) = (0, 0);
        loop {
            let missing = match first(&bytes[start..end])? {
                _ if self.ending.is_to(End::Closed) => return Ok(()),
                Delivery::Whole(parcel) => {
                    inbox.arrived(&self.from, parcel.len(), &mut std::iter::once(parcel));
                    start += LENGTH + parcel.len();
                    continue;
                }
                Delivery::Missing(count) => count,
            };
            // The same few bytes stay in the caches.
            bytes.copy_within(start..end, 0);
            (start, end) = (0, end - start);
            // Not beyond a large parcel, or the start of the next one would have to be moved.
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

    /// Waits for bytes, and reads what has come.
    fn read(&self, room: &mut [u8], lookout: &mut Lookout) -> io::Result<usize> {
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

/// What bytes begin with.
enum Delivery<'a> {
    Whole(&'a [u8]),
    /// So many bytes are missing, or more.
    Missing(usize),
}

fn first(bytes: &[u8]) -> io::Result<Delivery<'_>> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else {
        return Ok(Delivery::Missing(LENGTH - bytes.len()));
    };
    let length = usize::try_from(u32::from_le_bytes(*length)).map_err(io::Error::other)?;
    if length > MOST_BYTES {
        return Err(io::Error::other("a length that nobody sends"));
    }
    Ok(rest.get(..length).map_or_else(|| Delivery::Missing(length - rest.len()), Delivery::Whole))
}
