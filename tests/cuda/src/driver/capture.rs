//! Captures of streams into graphs. Only what a library needs that captures nothing itself: the status
//! of a stream, and which calls a capture forbids.

use super::{Driver, Thread};
use crate::error::{Code, Result};
use crate::streams::{Capture, Kind};

/// Modes of captures and of threads.
const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

/// Statuses of `cuStreamIsCapturing`.
const NONE: u32 = 0;
const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

/// The handle of every graph.
const GRAPH: u64 = 0x6000;

impl Driver {
    /// A call that may wait for devices, such as an allocation: a capture may forbid it.
    pub(crate) fn check_unsafe_call(&mut self) -> Result<()> {
        let (mode, thread) = (Thread::capture_mode(), Thread::number());
        let forbids = |capture: &Capture| match mode {
            GLOBAL => capture.mode == GLOBAL || capture.thread == thread,
            THREAD_LOCAL => capture.thread == thread,
            _ => false,
        };
        let forbids = |capture: &Capture| capture.mode != RELAXED && forbids(capture);
        let is_forbidden = self.streams.iter().any(|it| it.capture.as_ref().is_some_and(forbids));
        if is_forbidden { Err(Code::CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Whether a blocking stream of the device is being captured, on which the legacy stream would have
    /// to wait.
    fn forbids_legacy(&self, device: usize) -> bool {
        let is_blocking = |kind| matches!(kind, Kind::Blocking | Kind::PerThread(_));
        let forbids = |mode: u32| mode != RELAXED;
        self.streams.iter().any(|it| {
            it.device == device
                && is_blocking(it.kind)
                && it.capture.is_some_and(|capture| forbids(capture.mode))
        })
    }

    /// Work on a stream, unless a capture forbids it.
    pub(super) fn check_legacy(&mut self, id: u64) -> Result<()> {
        let stream = self.streams.get(id)?;
        let (device, kind) = (stream.device, stream.kind);
        if kind == Kind::Legacy && self.forbids_legacy(device) {
            return Err(Code::CAPTURE_IMPLICIT);
        }
        Ok(())
    }

    /// A wait or query of a stream that is being captured ends the capture.
    pub(crate) fn check_not_captured(&mut self, id: u64) -> Result<()> {
        self.check_legacy(id)?;
        match &mut self.streams.get_mut(id)?.capture {
            None => Ok(()),
            Some(capture) => {
                capture.is_valid = false;
                Err(Code::CAPTURE_UNSUPPORTED)
            }
        }
    }

    pub(crate) fn begin_capture(&mut self, id: u64, mode: u32) -> Result<()> {
        let thread = Thread::number();
        let stream = self.streams.get_mut(id)?;
        if stream.kind == Kind::Legacy || stream.capture.is_some() {
            return Err(Code::CAPTURE_UNSUPPORTED);
        }
        if mode > RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        stream.capture = Some(Capture { mode, thread, is_valid: true });
        Ok(())
    }

    /// The handle of the graph.
    pub(crate) fn end_capture(&mut self, id: u64) -> Result<u64> {
        let capture = self.streams.get_mut(id)?.capture.take().ok_or(Code::INVALID_VALUE)?;
        capture.is_valid.then_some(GRAPH).ok_or(Code::CAPTURE_INVALIDATED)
    }

    pub(crate) fn capture_status(&mut self, id: u64) -> Result<u32> {
        self.check_legacy(id)?;
        Ok(match self.streams.get(id)?.capture {
            None => NONE,
            Some(Capture { is_valid: true, .. }) => ACTIVE,
            Some(_) => INVALIDATED,
        })
    }
}
