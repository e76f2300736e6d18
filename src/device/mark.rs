//! Marks: points in streams, by which work on other streams is ordered without a wait of the host.
//! Also called: events.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::context::Device;
use super::stream::Stream;
use crate::error::Result;

/// Time for which a wait asks without a pause: most work that a caller waits for is short.
const SPIN: Duration = Duration::from_micros(20);
/// Interval of questions after that, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));

/// A point behind everything that a stream had queued.
#[derive(Clone)]
pub(crate) struct Mark(Arc<Recorded>);

/// The event of a mark, which is used again when the last copy of the mark is dropped.
struct Recorded {
    device: &'static Device,
    event: u64,
    stream: Stream,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.device.give_event(self.event);
    }
}

impl Mark {
    /// Marks the end of what a stream has; the device's context is current.
    pub(crate) fn record(device: &'static Device, stream: &Stream) -> Result<Self> {
        let recorded = Recorded { device, event: device.take_event()?, stream: *stream };
        let outcome = device.driver.record(recorded.event, stream.handle());
        device.result("cuEventRecord", outcome)?;
        Ok(Self(Arc::new(recorded)))
    }

    /// Orders all that a stream queues from now on behind the mark.
    pub(crate) fn order(&self, stream: &Stream) -> Result<()> {
        let Recorded { device, event, stream: own } = &*self.0;
        if own.is(stream) {
            return Ok(());
        }
        device.result("cuStreamWaitEvent", device.driver.wait_event(stream.handle(), *event))
    }

    pub(crate) fn has_passed(&self) -> Result<bool> {
        let Recorded { device, event, .. } = &*self.0;
        device.result("cuEventQuery", device.driver.has_passed(*event))
    }

    /// Waits until the mark has passed; returns false if `is_over` says so before.
    pub(crate) fn wait(&self, is_over: impl Fn() -> bool) -> Result<bool> {
        let _counted = self.0.device.counters.wait();
        let start = Instant::now();
        let mut pause = PAUSE.0;
        while !self.has_passed()? {
            if is_over() {
                return Ok(false);
            }
            if start.elapsed() > SPIN {
                thread::sleep(pause);
                pause = (2 * pause).min(PAUSE.1);
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
        let is_done = |it: &Mark| it.0.stream.is(&mark.0.stream) || it.has_passed().unwrap_or(true);
        self.readers.retain(|it| !is_done(it));
        self.readers.push(mark.clone());
    }

    /// Notes that the memory has been written before a mark.
    pub(crate) fn note_writer(&mut self, mark: &Mark) {
        self.readers.clear();
        self.writer = Some(mark.clone());
    }
}
