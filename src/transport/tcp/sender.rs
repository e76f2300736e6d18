//! Sender side of a connection.

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use socket2::SockRef;

use super::{LENGTH, MOST_BYTES};

/// A write to a broken connection must not end the process by SIGPIPE.
const QUIET: i32 = libc::MSG_NOSIGNAL;
const AT_ONCE: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// A connection that only this side writes to.
pub(in crate::transport) struct TcpSender {
    /// Shared with `Streams`, which ends the connection.
    socket: Arc<TcpStream>,
    /// The end of a buffer that the socket did not take at once, and how much of it was sent since.
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

    /// Whether a buffer of this length is small enough for the connection.
    pub(in crate::transport) fn takes(len: usize) -> bool {
        len <= MOST_BYTES
    }

    /// Whether the end of a buffer is still unsent.
    pub(in crate::transport) fn owes(&self) -> bool {
        self.sent < self.rest.len()
    }

    /// Sends bytes with scatter/gather: each lent slice follows its number of own bytes. Without `may_wait`,
    /// bytes that the socket does not take at once are kept. After an error the connection is unusable.
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

    /// Sends the owed bytes; without `may_wait`, only as many as the socket takes.
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

    /// Number of bytes taken; None if the socket is full now. A wait ends with the socket's write timeout.
    fn write(&self, slices: &[IoSlice<'_>], may_wait: bool) -> io::Result<Option<usize>> {
        // Maximum number of slices of one call (IOV_MAX).
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
