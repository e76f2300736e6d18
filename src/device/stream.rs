//! Streams: those of callers, which each thread names, and those of the library.

use std::cell::RefCell;

use smallvec::SmallVec;

use super::driver::Driver;

/// Handles of the legacy default stream, and of the default stream of a thread.
const LEGACY: [u64; 2] = [0, 1];
const PER_THREAD: u64 = 2;

/// Streams of the library behind callers' streams other than the legacy one, at most.
const LANES: u64 = 7;

/// What tells streams apart: handles are used again when a stream has been destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamIdentity {
    Legacy,
    /// By `cuStreamGetId`.
    Number(u64),
    /// On drivers before CUDA 12.0; equal to none, itself included.
    Unknown,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    device: u16,
    handle: u64,
    identity: StreamIdentity,
}

thread_local! {
    /// The streams that this thread has named, by device; others are legacy.
    static NAMED: RefCell<SmallVec<[(u16, u64); 1]>> = RefCell::default();
}

impl Stream {
    /// A stream of the device whose context is current.
    pub(super) fn of(driver: &Driver, device: u16, handle: u64) -> Self {
        if LEGACY.contains(&handle) {
            return Self { device, handle: LEGACY[1], identity: StreamIdentity::Legacy };
        }
        let number = driver.stream_id(handle);
        let identity = number.map_or(StreamIdentity::Unknown, StreamIdentity::Number);
        Self { device, handle, identity }
    }

    pub(super) fn handle(&self) -> u64 {
        self.handle
    }

    /// Which of the library's streams follow it: one of a few, equal for equal streams.
    pub(super) fn lane(&self) -> u64 {
        match self.identity {
            StreamIdentity::Legacy => 0,
            StreamIdentity::Number(number) => 1 + number % LANES,
            // The lowest bits of an address are zero.
            StreamIdentity::Unknown => 1 + (self.handle >> 4) % LANES,
        }
    }

    /// Whether both are known to be one stream.
    pub(super) fn is(&self, other: &Self) -> bool {
        let is_known = self.identity != StreamIdentity::Unknown;
        is_known && (self.device, self.identity) == (other.device, other.identity)
    }
}

/// The handle that this thread has named for a device.
pub(super) fn named(ordinal: u16) -> u64 {
    let named = |streams: &RefCell<SmallVec<[(u16, u64); 1]>>| {
        streams.borrow().iter().find(|(device, _)| *device == ordinal).map(|(_, stream)| *stream)
    };
    NAMED.try_with(named).ok().flatten().unwrap_or(LEGACY[0])
}

/// Names a stream again when it is dropped.
pub(crate) struct NamedStream {
    ordinal: u16,
    before: u64,
}

impl Stream {
    /// Names it for this thread until the value is dropped.
    pub(crate) fn name_for_scope(&self) -> NamedStream {
        let before = named(self.device);
        name(self.device, self.handle);
        NamedStream { ordinal: self.device, before }
    }
}

impl Drop for NamedStream {
    fn drop(&mut self) {
        name(self.ordinal, self.before);
    }
}

/// Whether a handle may be that of a stream of another device.
pub(super) fn may_be_foreign(handle: u64) -> bool {
    handle > PER_THREAD
}

/// Names the stream of this thread's calls for a device.
pub(super) fn name(ordinal: u16, handle: u64) {
    NAMED.with_borrow_mut(|streams| {
        streams.retain(|(device, _)| *device != ordinal);
        streams.push((ordinal, handle));
    });
}
