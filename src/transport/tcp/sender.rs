//! The sender's side of a connection.

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use socket2::SockRef;

use super::{LENGTH, MOST_BYTES};

/// Nothing of a broken connection is to end the process.
const QUIET: i32 = libc::MSG_NOSIGNAL;
const AT_ONCE: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// A connection that only this side writes to.
pub(in crate::transport) struct TcpSender {
    /// Shared with whoever ends it.
    socket: Arc<TcpStream>,
    /// The end of a parcel that the system did not take at once, and how much of it was sent since.
    rest: Vec<u8>,
    sent: usize,
}

impl TcpSender {
    pub(super) fn new(socket: Arc<TcpStream>) -> Self {
        Self { socket, rest: Vec::new(), sent: 0 }
    }

    pub(super) fn is_on(&self, socket: &Arc<TcpStream>) -> bool {
        Arc::ptr_eq(&self.socket, socket)
    }

    /// Whether a parcel of so many bytes can go this way.
    pub(in crate::transport) fn takes(len: usize) -> bool {
        len <= MOST_BYTES
    }

    /// Whether the end of a parcel is still to be sent.
    pub(in crate::transport) fn owes(&self) -> bool {
        self.sent < self.rest.len()
    }

    /// Sends bytes, some of them lent, each of those behind so many of its own. What the system does
    /// not take at once is kept, unless this may wait. After an error the connection is of no use.
    pub(in crate::transport) fn send(
        &mut self,
        own: &[u8],
        lent: &[(usize, Bytes)],
        may_wait: bool,
    ) -> io::Result<()> {
        self.settle(may_wait)?;
        let len = own.len() + lent.iter().map(|(_, lent)| lent.len()).sum::<usize>();
        let length = u32::try_from(len).map_err(io::Error::other)?.to_le_bytes();
        let mut slices = SmallVec::<[IoSlice<'_>; 8]>::new();
        slices.push(IoSlice::new(&length));
        let mut taken = 0;
        for (at, lent) in lent {
            slices.extend([IoSlice::new(&own[taken..*at]), IoSlice::new(lent)]);
            taken = *at;
        }
        slices.push(IoSlice::new(&own[taken..]));
        if self.owes() {
            self.keep(&slices);
            return Ok(());
        }
        let (mut left, mut slices) = (LENGTH + len, &mut slices[..]);
        while left > 0 {
            let Some(count) = self.write(slices, may_wait)? else {
                self.keep(slices);
                return Ok(());
            };
            IoSlice::advance_slices(&mut slices, count);
            left -= count;
        }
        Ok(())
    }

    /// Sends what is owed, or, if this may not wait, as much of it as the system takes.
    pub(in crate::transport) fn settle(&mut self, may_wait: bool) -> io::Result<()> {
        while self.owes() {
            let Some(count) = self.write(&[IoSlice::new(&self.rest[self.sent..])], may_wait)?
            else {
                return Ok(());
            };
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

    /// How much was taken; None if nothing is now. Waiting ends with the time that the socket has.
    fn write(&self, slices: &[IoSlice<'_>], may_wait: bool) -> io::Result<Option<usize>> {
        // The system takes so many at most.
        let slices = &slices[..slices.len().min(1_024)];
        loop {
            let flags = if may_wait { QUIET } else { AT_ONCE };
            match SockRef::from(&*self.socket).send_vectored_with_flags(slices, flags) {
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
