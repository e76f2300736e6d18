//! Bytes of one connection that were received and not handed on: data, and behind it records of TLS that are not
//! whole. Records are opened in the buffer, so that their data lies in one piece.

use crate::transport::tls::{Opener, TlsError};

/// Size of a read while the number of expected bytes is unknown.
pub(super) const SOME: usize = 64 << 10;
/// Maximum size of a buffer that is kept for other connections.
const MOST_KEPT: usize = 4 << 20;
/// Number of buffers that a thread keeps.
const BUFFERS: usize = 4;
/// Maximum number of bytes between data and records: more than the headers and tags of 32 MiB.
const MOST_GAP: usize = 64 << 10;

pub(super) struct ReceiveBuffer {
    bytes: Vec<u8>,
    /// Where the data begins and ends.
    start: usize,
    data: usize,
    /// Where the records begin and end; without TLS there are none, and all bytes are data.
    sealed: usize,
    end: usize,
}

impl ReceiveBuffer {
    /// With data, and records behind it.
    pub(super) fn of(mut data: Vec<u8>, sealed: &[u8]) -> Self {
        let len = data.len();
        data.extend_from_slice(sealed);
        Self { start: 0, data: len, sealed: len, end: data.len(), bytes: data }
    }

    /// What was not handed on.
    pub(super) fn data(&self) -> &[u8] {
        &self.bytes[self.start..self.data]
    }

    /// So many bytes of data were handed on.
    pub(super) fn consume(&mut self, len: usize) {
        self.start += len;
    }

    /// So many bytes were received into the room.
    pub(super) fn receive(&mut self, len: usize) {
        self.end += len;
    }

    /// Opens the whole records; without TLS, all bytes are data. True behind the last record.
    pub(super) fn open(&mut self, opener: Option<&mut Opener>) -> Result<bool, TlsError> {
        let Some(opener) = opener else {
            (self.data, self.sealed) = (self.end, self.end);
            return Ok(false);
        };
        opener.open_in_place(&mut self.bytes[..self.end], &mut self.data, &mut self.sealed)
    }

    /// Room for so many further bytes. They lie behind those that are left, which move to the front, so that
    /// the used part of the memory stays in the caches. Not more, or the start of the message behind a large
    /// one would have to be moved.
    pub(super) fn room(&mut self, count: usize, buffers: &mut Vec<Vec<u8>>) -> &mut [u8] {
        if self.bytes.capacity() == 0
            && let Some(spare) = buffers.pop()
        {
            self.bytes = spare;
        }
        // The gap between data and records is small, and then the records need not move.
        if self.sealed - self.data > MOST_GAP {
            self.bytes.copy_within(self.sealed..self.end, self.data);
            self.end -= self.sealed - self.data;
            self.sealed = self.data;
        }
        let front = if self.start < self.data { self.start } else { self.sealed };
        self.bytes.copy_within(front..self.end, 0);
        for place in [&mut self.start, &mut self.data, &mut self.sealed, &mut self.end] {
            *place = place.saturating_sub(front);
        }
        // A length that was announced takes no memory before its bytes arrive.
        let limit = self.end + count.min(self.end.max(SOME * 4));
        if limit > self.bytes.len() {
            self.bytes.resize(limit, 0);
        }
        &mut self.bytes[self.end..limit]
    }

    /// Gives the memory to other connections if no byte is left.
    pub(super) fn give_back(&mut self, buffers: &mut Vec<Vec<u8>>) {
        let is_empty = self.start == self.data && self.sealed == self.end;
        if !is_empty || self.bytes.capacity() == 0 {
            return;
        }
        let spare = std::mem::take(&mut self.bytes);
        (self.start, self.data, self.sealed, self.end) = (0, 0, 0, 0);
        if buffers.len() < BUFFERS && spare.capacity() <= MOST_KEPT {
            buffers.push(spare);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_stays_in_order_while_it_is_received_handed_on_and_moved() {
        let sent: Vec<u8> = (0..=250).cycle().take(3_000_000).collect();
        let (mut buffer, mut buffers, mut taken) =
            (ReceiveBuffer::of(Vec::new(), &[]), Vec::new(), 0);
        let mut arrived = 0;
        for step in (1..).map(|number| number * 7_919 % 90_000) {
            let len = buffer.room(step, &mut buffers).len().min(sent.len() - arrived);
            buffer.room(step, &mut buffers)[..len].copy_from_slice(&sent[arrived..arrived + len]);
            buffer.receive(len);
            arrived += len;
            assert!(!buffer.open(None).unwrap());
            let data = buffer.data();
            assert!(sent[taken..arrived] == *data);
            let some = data.len() * (step % 5) / 4;
            let some = some.min(data.len());
            buffer.consume(some);
            taken += some;
            buffer.give_back(&mut buffers);
            if arrived == sent.len() {
                return;
            }
        }
    }
}
