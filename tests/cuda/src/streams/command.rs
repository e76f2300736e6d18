//! What streams do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Code;
use crate::host::HostSpan;
use crate::ptx::{Launch, Module};

/// An event: how often it was recorded, and which of its records have not run. A wait is for one
/// record: a later one, on another stream, may run before it.
#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) device: usize,
    recorded: AtomicU64,
    pending: Mutex<Vec<u64>>,
}

impl Event {
    pub(crate) fn new(device: usize) -> Self {
        Self { device, ..Self::default() }
    }

    fn pending(&self) -> MutexGuard<'_, Vec<u64>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new record; its number.
    pub(crate) fn record(&self) -> u64 {
        let number = self.recorded.fetch_add(1, Ordering::SeqCst) + 1;
        self.pending().push(number);
        number
    }

    /// The number of the last record, 0 if there is none.
    pub(crate) fn last(&self) -> u64 {
        self.recorded.load(Ordering::SeqCst)
    }

    pub(super) fn pass(&self, number: u64) {
        self.pending().retain(|it| *it != number);
    }

    pub(crate) fn has_passed(&self, number: u64) -> bool {
        !self.pending().contains(&number)
    }
}

/// Where the bytes of a copy from the host are.
#[derive(Debug)]
pub(crate) enum Source {
    /// Pageable memory was read when the copy was queued.
    Read(Vec<u8>),
    /// Pinned memory is read when the copy runs.
    Pinned(HostSpan),
}

#[derive(Debug)]
pub(crate) enum Command {
    Launch {
        module: Arc<Module>,
        kernel: usize,
        launch: Launch,
        arguments: Vec<u64>,
    },
    FromHost {
        to: u64,
        from: Source,
    },
    ToHost {
        to: HostSpan,
        is_pinned: bool,
        from: u64,
    },
    /// Pairs of device and address.
    Copy {
        to: (usize, u64),
        from: (usize, u64),
        bytes: usize,
    },
    Fill {
        to: u64,
        byte: u8,
        bytes: usize,
    },
    Record(Arc<Event>, u64),
    Wait(Arc<Event>, u64),
    /// Memory becomes usable, or free, in stream order.
    Allocate(u64),
    Free(u64),
    /// A planned fault that the device reports late.
    Fail(Code),
    /// A planned command that never ends.
    Hang,
}

impl Command {
    pub(super) fn is_ready(&self) -> bool {
        match self {
            Self::Wait(event, number) => event.has_passed(*number),
            Self::Hang => false,
            _ => true,
        }
    }

    /// Lets the event pass whose record this is.
    pub(super) fn pass(&self) {
        if let Self::Record(event, number) = self {
            event.pass(*number);
        }
    }

    pub(super) fn is_copy(&self) -> bool {
        matches!(self, Self::FromHost { .. } | Self::ToHost { .. } | Self::Copy { .. })
    }
}
