//! Memory to which a transport receives the payload of a frame by itself (zero copy): that of a caller, or a buffer.
#![allow(unsafe_code, reason = "memory that callers lend, and memory without a value")]

use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::AtomicU8;

use super::Unwritten;
use crate::sys::sync::RwLock;
use crate::tensor::Buffer;
use kvstore_checksum::append;

/// Size in bytes of the memory for what is not wanted any more.
const UNWANTED: usize = 64 << 10;

/// Whether values may still be written to the memory of a call.
#[derive(Default)]
pub(crate) struct ReceiveGate(RwLock<bool>);

impl ReceiveGate {
    /// Opens it for a call in the memory of one that has ended.
    pub(crate) fn open(&mut self) {
        *self.0.write() = false;
    }

    /// From now on no value is written.
    pub(crate) fn close(&self) {
        *self.0.write() = true;
    }
}

/// A call that waits for values.
pub(crate) trait Receiver: Send + Sync {
    /// It is closed before the memory of the call ends.
    fn gate(&self) -> &ReceiveGate;
}

/// Destination of a value that is about to be received: a part of a caller's output.
pub(crate) struct ReceiveTarget {
    start: *mut u8,
    len: usize,
    call: Arc<dyn Receiver>,
}

// SAFETY: the memory is lent to all threads of the library.
unsafe impl Send for ReceiveTarget {}

impl ReceiveTarget {
    /// # Safety
    /// `len` bytes from `start` are valid, and have no other writer, until the call closes its gate.
    pub(crate) unsafe fn new(start: *mut u8, len: usize, call: Arc<dyn Receiver>) -> Self {
        Self { start, len, call }
    }

    /// A destination that tests can look at.
    #[cfg(test)]
    pub(super) fn to_shared(out: &'static [AtomicU8], call: Arc<dyn Receiver>) -> Self {
        // SAFETY: memory that may be written while it is shared, for ever.
        unsafe { Self::new(out.as_ptr().cast_mut().cast(), out.len(), call) }
    }

    /// Has `write` write the memory, whose content is undefined; None once the call is closed.
    pub(crate) fn write<T>(&self, write: impl FnOnce(&mut [MaybeUninit<u8>]) -> T) -> Option<T> {
        let is_closed = self.call.gate().0.read();
        if *is_closed {
            return None;
        }
        // SAFETY: the promise of `new`; the lock keeps the gate open.
        let memory = unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len) };
        Some(write(memory))
    }
}

/// Where the payload of one frame goes.
pub(crate) struct ReceiveRoom {
    place: ReceivePlace,
    len: usize,
    /// Number of bytes received.
    received: usize,
    /// Their CRC32C.
    sum: u32,
    /// Memory in place of that of a call that has ended.
    unwanted: Vec<u8>,
}

/// The memory of a [`ReceiveRoom`].
pub(crate) enum ReceivePlace {
    /// At least as many bytes.
    Own(Buffer),
    Lent(ReceiveTarget),
}

impl ReceiveRoom {
    /// `len` bytes of a buffer, or None if it has less.
    pub(crate) fn own(buffer: Buffer, len: usize) -> Option<Self> {
        (len <= buffer.len()).then(|| Self::new(ReceivePlace::Own(buffer), len))
    }

    pub(crate) fn lent(target: ReceiveTarget) -> Self {
        let len = target.len;
        Self::new(ReceivePlace::Lent(target), len)
    }

    fn new(place: ReceivePlace, len: usize) -> Self {
        Self { place, len, received: 0, sum: 0, unwanted: Vec::new() }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first bytes of a buffer, which were received.
    #[cfg(test)]
    pub(super) fn bytes_of(buffer: &Buffer, len: usize) -> &[u8] {
        assert!(len <= buffer.len());
        // SAFETY: so many bytes are there, and were written.
        unsafe { std::slice::from_raw_parts(buffer.as_ptr(), len) }
    }

    /// Number of bytes that are missing.
    pub(super) fn missing(&self) -> usize {
        self.len - self.received
    }

    /// Copies the first bytes.
    pub(crate) fn begin(&mut self, bytes: &[u8]) {
        let mut left = bytes;
        while !left.is_empty() && self.missing() > 0 {
            let copied = self.receive(|room| {
                let (now, later) = left.split_at(left.len().min(room.len()));
                Unwritten::new(room).put(now.into());
                left = later;
                Ok(now.len())
            });
            debug_assert!(copied.is_ok(), "a copy does not fail");
        }
    }

    /// Where a library writes all bytes by itself, for as long as it takes: its own buffer. None for memory of a
    /// caller, whose call may end meanwhile.
    pub(super) fn own_memory(&mut self) -> Option<*mut u8> {
        match &self.place {
            ReceivePlace::Own(buffer) => Some(buffer.as_ptr()),
            ReceivePlace::Lent(_) => None,
        }
    }

    /// A library has written all bytes.
    ///
    /// # Safety
    /// It has, to `own_memory`, and writes them no more.
    pub(super) unsafe fn filled(&mut self) {
        let filled = self.receive(|memory| Ok(memory.len()));
        debug_assert!(filled.is_ok() && self.missing() == 0, "a buffer takes all bytes");
    }

    /// Has `receive` write the next bytes, and tell how many it has written.
    pub(super) fn receive(
        &mut self,
        mut receive: impl FnMut(&mut [MaybeUninit<u8>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let (at, len, sum) = (self.received, self.len, self.sum);
        let mut to = |memory: &mut [MaybeUninit<u8>]| -> io::Result<(usize, u32)> {
            let count = receive(memory)?;
            let written = &memory[..count];
            // SAFETY: `receive` has written so many bytes.
            let written = unsafe { std::slice::from_raw_parts(written.as_ptr().cast(), count) };
            Ok((count, append(sum, written)))
        };
        let result = match &self.place {
            ReceivePlace::Own(buffer) => {
                let start = buffer.as_ptr().cast::<MaybeUninit<u8>>();
                // SAFETY: the buffer has at least `len` bytes, and no other owner.
                let memory = unsafe { std::slice::from_raw_parts_mut(start, len) };
                Some(to(&mut memory[at..]))
            }
            ReceivePlace::Lent(target) => target.write(|memory| to(&mut memory[at..len])),
        };
        let result = result.unwrap_or_else(|| {
            self.unwanted.resize(UNWANTED.min(len - at), 0);
            let (start, len) = (self.unwanted.as_mut_ptr().cast(), self.unwanted.len());
            // SAFETY: the same memory, which stays a vector of bytes with values.
            to(unsafe { std::slice::from_raw_parts_mut(start, len) })
        });
        let (count, sum) = result?;
        (self.received, self.sum) = (at + count, sum);
        Ok(count)
    }

    /// The memory, once no byte is missing, and the CRC32C of the bytes.
    pub(crate) fn finish(self) -> (ReceivePlace, u32) {
        debug_assert!(self.missing() == 0, "a whole payload");
        (self.place, self.sum)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[derive(Default)]
    struct Call(ReceiveGate);

    impl Receiver for Call {
        fn gate(&self) -> &ReceiveGate {
            &self.0
        }
    }

    fn put(room: &mut ReceiveRoom, byte: u8, most: usize) -> usize {
        room.receive(|memory| {
            let count = most.min(memory.len());
            memory[..count].fill(MaybeUninit::new(byte));
            Ok(count)
        })
        .unwrap()
    }

    #[test]
    fn bytes_arrive_in_parts_with_their_checksum() {
        let mut room = ReceiveRoom::own(Buffer::new(100).unwrap(), 90).unwrap();
        room.begin(&[1; 20]);
        assert_eq!((put(&mut room, 2, 30), room.missing()), (30, 40));
        let failed = room.receive(|_| Err(io::ErrorKind::WouldBlock.into()));
        assert_eq!((failed.unwrap_err().kind(), room.missing()), (io::ErrorKind::WouldBlock, 40));
        assert_eq!((put(&mut room, 3, 1_000), room.missing()), (40, 0));
        let (place, sum) = room.finish();
        let expected = [vec![1; 20], vec![2; 30], vec![3; 40]].concat();
        let ReceivePlace::Own(buffer) = place else { panic!("its own buffer") };
        assert!(
            *ReceiveRoom::bytes_of(&buffer, 90) == expected
                && sum == kvstore_checksum::crc32c(&expected)
        );
        assert!(ReceiveRoom::own(buffer, 101).is_none());
    }

    #[test]
    fn a_call_that_has_ended_is_not_written_and_what_comes_is_still_summed() {
        let out: Vec<_> = (0..300_000).map(|_| AtomicU8::new(0)).collect();
        let (out, call) = (out.leak(), Arc::new(Call::default()));
        let target = ReceiveTarget::to_shared(out, Arc::clone(&call) as Arc<_>);
        let mut room = ReceiveRoom::lent(target);
        assert_eq!(put(&mut room, 7, 1_000), 1_000);
        call.0.close();
        room.begin(&vec![8; 100_000]);
        while room.missing() > 0 {
            put(&mut room, 9, usize::MAX);
        }
        let expected = [vec![7; 1_000], vec![8; 100_000], vec![9; 199_000]].concat();
        assert_eq!(room.finish().1, kvstore_checksum::crc32c(&expected));
        let is = |byte: u8| move |it: &AtomicU8| it.load(Ordering::SeqCst) == byte;
        assert!(out[..1_000].iter().all(is(7)) && out[1_000..].iter().all(is(0)));
    }
}
