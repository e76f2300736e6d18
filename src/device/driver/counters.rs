//! What devices have done for this process. Also called: statistics, telemetry.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Outcome;

/// A count, which orders nothing.
#[derive(Default)]
pub(in crate::device) struct Count(AtomicU64);

impl Count {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(in crate::device) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(in crate::device) fn subtract(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    pub(in crate::device) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Copies in one direction.
#[derive(Default)]
pub(in crate::device) struct CopyCount {
    copies: Count,
    bytes: Count,
}

impl CopyCount {
    /// Counts a copy that has been queued.
    pub(in crate::device) fn note(&self, outcome: Outcome, bytes: usize) -> Outcome {
        outcome.inspect(|()| {
            self.copies.add(1);
            self.bytes.add(bytes as u64);
        })
    }
}

/// The counters of a device. Work that the driver has refused is not counted.
#[derive(Default)]
pub(crate) struct DeviceCounters {
    pub(in crate::device) launches: Count,
    /// Blocks of device memory.
    pub(in crate::device) allocations: Count,
    pub(in crate::device) to_device: CopyCount,
    pub(in crate::device) to_host: CopyCount,
    /// Those with other devices, that this one's streams run.
    pub(in crate::device) between: CopyCount,
    waits: Count,
    waited_ns: Count,
}

/// Counts a wait of the host, until it is dropped.
pub(in crate::device) struct CountedWait<'a> {
    counters: &'a DeviceCounters,
    start: Instant,
}

impl Drop for CountedWait<'_> {
    fn drop(&mut self) {
        let waited = self.start.elapsed().as_nanos();
        self.counters.waited_ns.add(u64::try_from(waited).unwrap_or(u64::MAX));
    }
}

impl DeviceCounters {
    pub(in crate::device) fn wait(&self) -> CountedWait<'_> {
        self.waits.add(1);
        CountedWait { counters: self, start: Instant::now() }
    }

    /// Adds them to the members of a JSON object.
    pub(in crate::device) fn put(&self, out: &mut String) {
        let Self { launches, allocations, to_device, to_host, between, waits, waited_ns } = self;
        for (name, count) in [
            ("launches", launches),
            ("allocations", allocations),
            ("copies_to_device", &to_device.copies),
            ("bytes_to_device", &to_device.bytes),
            ("copies_to_host", &to_host.copies),
            ("bytes_to_host", &to_host.bytes),
            ("copies_between", &between.copies),
            ("bytes_between", &between.bytes),
            ("waits", waits),
        ] {
            let _ = write!(out, ",\"{name}\":{}", count.get());
        }
        let waited = Duration::from_nanos(waited_ns.get()).as_secs_f64();
        let _ = write!(out, ",\"waited_s\":{waited:.6}");
    }
}

/// Pinned host memory of this process, in bytes. All devices use it.
pub(in crate::device) static PINNED: Count = Count::new();
