//! Streams, events, modules and functions by their handles.

use std::sync::Arc;

use super::device::{CAPABILITY, ptx_version};
use super::{Driver, Function, Loaded, Thread};
use crate::error::{Code, Result};
use crate::ptx::Module;
use crate::streams::{Event, Kind};

/// The legacy default stream has two handles.
const LEGACY: [u64; 2] = [0, 1];
const PER_THREAD: u64 = 2;
/// Flags of streams: not ordered with the legacy stream.
const NON_BLOCKING: u32 = 1;
/// The range of priorities; lower numbers run earlier.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);

impl Driver {
    /// The identity of a stream. Default streams are those of a device.
    pub(crate) fn stream(&mut self, handle: u64, device: usize) -> Result<u64> {
        if LEGACY.contains(&handle) {
            return Ok(self.streams.default(device, Kind::Legacy));
        }
        if handle == PER_THREAD {
            return Ok(self.streams.default(device, Kind::PerThread(Thread::number())));
        }
        let id = *self.stream_handles.get(handle)?;
        self.check_lost(self.streams.get(id)?.device)?;
        Ok(id)
    }

    pub(crate) fn create_stream(
        &mut self,
        device: usize,
        flags: u32,
        priority: i32,
    ) -> Result<u64> {
        if flags > NON_BLOCKING {
            return Err(Code::INVALID_VALUE);
        }
        let kind = if flags == NON_BLOCKING { Kind::NonBlocking } else { Kind::Blocking };
        let id = self.streams.create(device, kind, priority.clamp(PRIORITIES.1, PRIORITIES.0));
        Ok(self.stream_handles.add(id))
    }

    pub(crate) fn destroy_stream(&mut self, handle: u64) -> Result<()> {
        let id = self.stream_handles.remove(handle)?;
        self.streams.destroy(id);
        Ok(())
    }

    pub(crate) fn create_event(&mut self, device: usize) -> u64 {
        self.events.add(Arc::new(Event::new(device)))
    }

    pub(crate) fn event(&self, handle: u64) -> Result<Arc<Event>> {
        let event = self.events.get(handle)?;
        self.check_lost(event.device)?;
        Ok(Arc::clone(event))
    }

    pub(crate) fn destroy_event(&mut self, handle: u64) -> Result<()> {
        self.events.remove(handle).map(drop)
    }

    /// Compiles PTX. The text is what a driver writes to the log of errors.
    pub(crate) fn load(
        &mut self,
        device: usize,
        text: &str,
    ) -> std::result::Result<u64, (Code, String)> {
        let error = |code, message: String| Err((code, message));
        let module = match Module::parse(text) {
            Ok(module) => module,
            Err(wrong) => return error(Code::INVALID_PTX, format!("ptxas: {wrong}")),
        };
        let known = ptx_version(self.settings.version);
        if module.version() > known {
            let (major, minor) = module.version();
            return error(
                Code::PTX_VERSION,
                format!("ptxas: unsupported .version {major}.{minor}"),
            );
        }
        if module.target() > 10 * CAPABILITY.0 + CAPABILITY.1 {
            return error(Code::NO_BINARY, format!("ptxas: .target sm_{}", module.target()));
        }
        let module = Arc::new(module);
        Ok(self.modules.add(Loaded { device, module, functions: Vec::new() }))
    }

    pub(crate) fn unload(&mut self, handle: u64) -> Result<()> {
        for function in self.modules.remove(handle)?.functions {
            self.functions.remove(function)?;
        }
        Ok(())
    }

    /// The handle of a kernel.
    pub(crate) fn find_function(&mut self, module: u64, name: &str) -> Result<u64> {
        let Loaded { device, module: text, functions } = self.modules.get(module)?;
        let found = |handle: &&u64| {
            let function = self.functions.get(**handle);
            function.is_ok_and(|it| it.module.kernels()[it.kernel].name() == name)
        };
        if let Some(handle) = functions.iter().find(found) {
            return Ok(*handle);
        }
        let kernel = text.kernels().iter().position(|kernel| kernel.name() == name);
        let kernel = kernel.ok_or(Code::NOT_FOUND)?;
        let function = Function { device: *device, module: Arc::clone(text), kernel };
        let handle = self.functions.add(function);
        self.modules.get_mut(module)?.functions.push(handle);
        Ok(handle)
    }

    pub(crate) fn function(&self, handle: u64) -> Result<&Function> {
        self.functions.get(handle)
    }
}
