//! Marks: points in streams, by which work on other streams is ordered without a wait of the host.
//! Also called: events.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::context::{Device, lock};
use super::stream::Stream;
use crate::error::Result;

/// Time for which a wait asks without sleeping, as a sleep takes at least 50 us longer than asked for: the copy
/// of 64 MiB takes some 1.2 ms, that of a piece far less.
const SPIN: Duration = Duration::from_millis(1);
/// Maximum interval of questions after that, and which part of the time waited it is until then.
const PAUSE: Duration = Duration::from_micros(500);
const PART: u32 = 16;

/// An event of a device, which marks use one after the other.
struct Event {
    device: &'static Device,
    handle: u64,
    /// Copies of its mark; the last one that is dropped frees the event.
    copies: AtomicUsize,
}

/// Events without a mark, of all devices. They live until the process ends.
static FREE: Mutex<Vec<&'static Event>> = Mutex::new(Vec::new());

impl Event {
    fn take(device: &'static Device) -> Result<&'static Self> {
        let mut free = lock(&FREE);
        let found = free.iter().rposition(|event| event.device.ordinal == device.ordinal);
        if let Some(at) = found {
            return Ok(free.swap_remove(at));
        }
        drop(free);
        let handle = device.result("cuEventCreate", device.driver.create_event())?;
        Ok(Box::leak(Box::new(Self { device, handle, copies: AtomicUsize::new(0) })))
    }
}

/// A point behind everything that a stream had queued.
pub(crate) struct Mark {
    event: &'static Event,
    stream: Stream,
}

impl Clone for Mark {
    fn clone(&self) -> Self {
        // Relaxed: the copy that is cloned keeps the event in use.
        self.event.copies.fetch_add(1, Ordering::Relaxed);
        Self { event: self.event, stream: self.stream }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // AcqRel: all uses of the other copies come before the event is used again.
        if self.event.copies.fetch_sub(1, Ordering::AcqRel) == 1 {
            lock(&FREE).push(self.event);
        }
    }
}

impl Mark {
    /// Marks the end of what a stream has; the device's context is current.
    pub(crate) fn record(device: &'static Device, stream: &Stream) -> Result<Self> {
        let event = Event::take(device)?;
        // Relaxed: other threads get the event through the list, behind its lock, or by the mark.
        event.copies.store(1, Ordering::Relaxed);
        let mark = Self { event, stream: *stream };
        let outcome = device.driver.record(event.handle, stream.handle());
        device.result("cuEventRecord", outcome)?;
        Ok(mark)
    }

    /// Whether it is of a stream, whose later work comes behind it.
    pub(super) fn is_of(&self, stream: &Stream) -> bool {
        self.stream.is(stream)
    }

    /// Whether both are copies of one mark.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.event, other.event)
    }

    /// Orders all that a stream queues from now on behind the mark.
    pub(crate) fn order(&self, stream: &Stream) -> Result<()> {
        let &Event { device, handle, .. } = self.event;
        if self.is_of(stream) {
            return Ok(());
        }
        device.result("cuStreamWaitEvent", device.driver.wait_event(stream.handle(), handle))
    }

    pub(crate) fn has_passed(&self) -> Result<bool> {
        let &Event { device, handle, .. } = self.event;
        device.result("cuEventQuery", device.driver.has_passed(handle))
    }

    /// Waits until the mark has passed; returns false if `is_over` says so before.
    pub(crate) fn wait(&self, is_over: impl Fn() -> bool) -> Result<bool> {
        let _counted = self.event.device.counters.wait();
        let start = Instant::now();
        while !self.has_passed()? {
            if is_over() {
                return Ok(false);
            }
            let waited = start.elapsed();
            if waited <= SPIN {
                thread::yield_now();
            } else {
                thread::sleep((waited / PART).min(PAUSE));
            }
        }
        Ok(true)
    }
}

/// The last uses of some memory.
#[derive(Default)]
pub(crate) struct Marks {
    writer: Option<Mark>,
    /// Those behind the writer, one for each stream.
    readers: SmallVec<[Mark; 2]>,
}

impl Marks {
    /// Orders a stream behind the last writer, so that it may read.
    pub(crate) fn order_reader(&self, stream: &Stream) -> Result<()> {
        self.writer.iter().try_for_each(|mark| mark.order(stream))
    }

    /// Orders a stream behind all uses, so that it may write.
    pub(crate) fn order_writer(&self, stream: &Stream) -> Result<()> {
        self.order_reader(stream)?;
        self.readers.iter().try_for_each(|mark| mark.order(stream))
    }

    /// Notes that the memory has been read before a mark.
    pub(crate) fn note_reader(&mut self, mark: &Mark) {
        let is_done = |it: &Mark| it.is_of(&mark.stream) || it.has_passed().unwrap_or(true);
        self.readers.retain(|it| !is_done(it));
        self.readers.push(mark.clone());
    }

    /// Notes that the memory has been written before a mark.
    pub(crate) fn note_writer(&mut self, mark: &Mark) {
        self.readers.clear();
        self.writer = Some(mark.clone());
    }
}
