//! Where a call queues its work: the stream of its caller, or one of the library.

use smallvec::SmallVec;

use super::context::{ContextScope, Device};
use super::mark::Mark;
use super::stream::Stream;
use crate::error::Result;

/// Where a call queues its work, by device.
pub(crate) type CallQueues = SmallVec<[CallQueue; 1]>;

/// Marks behind the work of a call, by device.
pub(crate) type CallMarks = SmallVec<[Mark; 1]>;

/// A stream of a device, for the work of one call.
pub(crate) struct CallQueue {
    pub(crate) device: &'static Device,
    pub(crate) stream: Stream,
    /// The point in the caller's stream behind which the work runs, if that is another stream.
    start: Option<Mark>,
}

impl CallQueue {
    /// The stream that this thread has named, which no capture may use.
    pub(crate) fn of_caller(device: &'static Device) -> Result<Self> {
        let _scope = device.enter()?;
        Ok(Self { device, stream: device.callers_stream()?, start: None })
    }

    /// A stream of the library, behind nothing of a caller's.
    pub(crate) fn own(device: &'static Device) -> Result<Self> {
        let _scope = device.enter()?;
        Ok(Self { device, stream: device.own_stream()?, start: None })
    }

    /// A stream of the library for an operation with a ticket, behind what the caller has queued.
    pub(crate) fn for_ticket(&self, priority: i32) -> Result<Self> {
        let _scope = self.device.enter()?;
        let start = Some(Mark::record(self.device, &self.stream)?);
        Ok(Self {
            device: self.device,
            stream: self.device.stream_behind(&self.stream, priority)?,
            start,
        })
    }

    /// Whether it is of an operation with a ticket.
    pub(crate) fn has_ticket(&self) -> bool {
        self.start.is_some()
    }

    /// Makes the device's context current, and orders the work behind the caller's.
    pub(crate) fn begin(&self) -> Result<ContextScope> {
        let scope = self.device.enter()?;
        self.start.iter().try_for_each(|mark| mark.order(&self.stream))?;
        Ok(scope)
    }

    /// Marks the end of what its stream has.
    pub(crate) fn mark(&self) -> Result<Mark> {
        let _scope = self.device.enter()?;
        Mark::record(self.device, &self.stream)
    }

    /// Orders what its stream gets from now on behind a mark of any device.
    pub(crate) fn follow(&self, mark: &Mark) -> Result<()> {
        let _scope = self.device.enter()?;
        mark.order(&self.stream)
    }
}
