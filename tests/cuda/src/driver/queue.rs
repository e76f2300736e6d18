//! Work that callers queue, and their waits for it.

use std::sync::Arc;

use super::{Driver, Thread};
use crate::error::{Code, Result};
use crate::host::HostSpan;
use crate::memory::Origin;
use crate::ptx::Launch;
use crate::streams::{Command, Event, Source, Streams};

impl Driver {
    /// Queues a command on a stream.
    pub(crate) fn queue(&mut self, stream: u64, command: Command) -> Result<()> {
        self.check_legacy(stream)?;
        let late = self.late.take();
        for command in std::iter::once(command).chain(late) {
            self.streams.queue(stream, command, &mut self.machine)?;
        }
        Ok(())
    }

    /// The device of a stream that is not the legacy one of the current device.
    fn device_of_stream(&self, stream: u64) -> Result<usize> {
        Ok(self.streams.get(stream)?.device)
    }

    /// A kernel runs on streams of the context that is current and that loaded it.
    pub(crate) fn launch(
        &mut self,
        function: u64,
        launch: Launch,
        stream: u64,
        arguments: Vec<u64>,
    ) -> Result<()> {
        let device = self.current()?;
        let function = self.function(function)?.clone();
        let stream = self.stream(stream, device)?;
        if function.device != device || self.device_of_stream(stream)? != device {
            return Err(Code::INVALID_HANDLE);
        }
        let threads: u64 = launch.block.iter().map(|side| u64::from(*side)).product();
        let blocks: u64 = launch.grid.iter().map(|side| u64::from(*side)).product();
        if threads == 0 || blocks == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let most = function.module.kernels()[function.kernel].max_threads().unwrap_or(1024);
        if threads > most.into() {
            return Err(Code::LAUNCH_RESOURCES);
        }
        let (module, kernel) = (function.module, function.kernel);
        self.queue(stream, Command::Launch { module, kernel, launch, arguments })
    }

    /// Copies memory of the host: pinned memory when the copy runs, other memory now.
    pub(crate) fn copy_from_host(&mut self, to: u64, from: HostSpan, stream: u64) -> Result<()> {
        let device = self.current()?;
        let stream = self.stream(stream, device)?;
        let is_pinned = self.check_host(&from)?;
        let from = if is_pinned { Source::Pinned(from) } else { Source::Read(from.read()) };
        self.queue(stream, Command::FromHost { to, from })
    }

    /// Copies to memory of the host. If it is not pinned, the call returns when the copy has run.
    pub(crate) fn copy_to_host(&mut self, to: HostSpan, from: u64, stream: u64) -> Result<()> {
        let device = self.current()?;
        let stream = self.stream(stream, device)?;
        let is_pinned = self.check_host(&to)?;
        self.queue(stream, Command::ToHost { to, is_pinned, from })?;
        if is_pinned || self.streams.get(stream)?.capture.is_some() {
            return Ok(());
        }
        *self.calls.entry("wait for a pageable copy").or_default() += 1;
        self.synchronize(stream)
    }

    /// Whether host memory is pinned. Memory of a device is none.
    fn check_host(&self, span: &HostSpan) -> Result<bool> {
        let found = self.machine.memories.find(span.address());
        if found.is_some_and(|(_, allocation)| allocation.origin != Origin::Pinned) {
            return Err(Code::INVALID_VALUE);
        }
        Ok(self.machine.memories.is_pinned(span.address(), span.bytes()))
    }

    /// Copies between devices.
    pub(crate) fn copy_peer(
        &mut self,
        to: (usize, u64),
        from: (usize, u64),
        bytes: usize,
        stream: u64,
    ) -> Result<()> {
        let device = self.current()?;
        let stream = self.stream(stream, device)?;
        self.queue(stream, Command::Copy { to, from, bytes })
    }

    /// Copies on one device, or between devices with peer access.
    pub(crate) fn copy(&mut self, to: u64, from: u64, bytes: usize, stream: u64) -> Result<()> {
        let device = self.current()?;
        let stream = self.stream(stream, device)?;
        let user = self.device_of_stream(stream)?;
        self.queue(stream, Command::Copy { to: (user, to), from: (user, from), bytes })
    }

    pub(crate) fn fill(&mut self, to: u64, byte: u8, bytes: usize, stream: u64) -> Result<()> {
        let device = self.current()?;
        let stream = self.stream(stream, device)?;
        self.queue(stream, Command::Fill { to, byte, bytes })
    }

    pub(crate) fn allocate_async(&mut self, pool: u64, bytes: usize, stream: u64) -> Result<u64> {
        let device = self.current()?;
        let stream = self.stream(stream, device)?;
        let address = self.machine.memories.allocate_in_pool(pool, bytes)?;
        self.queue(stream, Command::Allocate(address))?;
        Ok(address)
    }

    pub(crate) fn free_async(&mut self, address: u64, stream: u64) -> Result<()> {
        let device = self.current()?;
        let stream = self.stream(stream, device)?;
        let (start, allocation) = self.machine.memories.find(address).ok_or(Code::INVALID_VALUE)?;
        if start != address || allocation.origin == Origin::Pinned {
            return Err(Code::INVALID_VALUE);
        }
        self.queue(stream, Command::Free(address))
    }

    pub(crate) fn record(&mut self, event: u64, stream: u64) -> Result<()> {
        let device = self.current()?;
        let event = self.event(event)?;
        let stream = self.stream(stream, device)?;
        if self.device_of_stream(stream)? != event.device {
            return Err(Code::INVALID_HANDLE);
        }
        if self.streams.get(stream)?.capture.is_some() {
            // It becomes a part of the graph.
            return Ok(());
        }
        let number = event.record();
        self.queue(stream, Command::Record(event, number))
    }

    pub(crate) fn wait_event(&mut self, stream: u64, event: u64) -> Result<()> {
        let device = self.current()?;
        let event = self.event(event)?;
        let stream = self.stream(stream, device)?;
        let number = event.last();
        self.queue(stream, Command::Wait(event, number))
    }

    /// Waits for what a stream has.
    pub(crate) fn synchronize(&mut self, stream: u64) -> Result<()> {
        self.check_not_captured(stream)?;
        let device = self.device_of_stream(stream)?;
        self.run_until(device, Some(stream), move |driver| driver.is_idle(stream))
    }

    pub(crate) fn synchronize_device(&mut self) -> Result<()> {
        let device = self.current()?;
        self.check_unsafe_call()?;
        let is_idle = move |streams: &Streams| streams.is_device_idle(device);
        self.run_until(device, None, is_idle)
    }

    pub(crate) fn synchronize_event(&mut self, event: &Arc<Event>) -> Result<()> {
        let (device, number) = (event.device, event.last());
        self.run_until(device, None, |_| event.has_passed(number))
    }

    fn run_until(
        &mut self,
        device: usize,
        target: Option<u64>,
        holds: impl Fn(&Streams) -> bool,
    ) -> Result<()> {
        let has_ended = self.streams.run_until(target, &mut self.machine, |streams, machine| {
            holds(streams) || machine.lost[device].is_some()
        });
        self.check_lost(device)?;
        // Only a planned command that never ends stops the streams.
        has_ended.then_some(()).ok_or(Code::TIMEOUT)
    }

    pub(crate) fn query_stream(&mut self, stream: u64) -> Result<()> {
        self.check_not_captured(stream)?;
        let device = self.device_of_stream(stream)?;
        self.streams.run_a_little(&mut self.machine);
        self.check_lost(device)?;
        self.streams.is_idle(stream).then_some(()).ok_or(Code::NOT_READY)
    }

    pub(crate) fn query_event(&mut self, event: &Arc<Event>) -> Result<()> {
        self.streams.run_a_little(&mut self.machine);
        self.check_lost(event.device)?;
        event.has_passed(event.last()).then_some(()).ok_or(Code::NOT_READY)
    }

    /// Drops queued commands, sticky errors and planned faults of all devices.
    pub(crate) fn reset(&mut self) {
        self.planned.clear();
        for device in 0..self.settings.devices {
            self.streams.clear(device);
            self.machine.lost[device] = None;
        }
        self.machine.message.clear();
        Thread::exchange_capture_mode(0);
    }
}
