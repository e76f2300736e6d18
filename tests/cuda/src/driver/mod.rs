//! The state of the driver: one for the process, behind one lock.

mod capture;
mod device;
mod faults;
mod objects;
mod queue;
mod thread;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Code, Result};
use crate::ptx::Module;
use crate::streams::{Command, Event, Handles, Machine, Streams};
use crate::variables::Settings;
pub(crate) use device::{attribute, context_of, device_of, uuid};
use faults::Planned;
pub(crate) use thread::Thread;

/// A module of a context.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) device: usize,
    pub(crate) module: Arc<Module>,
    functions: Vec<u64>,
}

/// A kernel of a module.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) device: usize,
    pub(crate) module: Arc<Module>,
    pub(crate) kernel: usize,
}

/// Everything that the driver knows.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) settings: Settings,
    pub(crate) machine: Machine,
    pub(crate) streams: Streams,
    /// Identities of streams.
    stream_handles: Handles<u64>,
    events: Handles<Arc<Event>>,
    modules: Handles<Loaded>,
    functions: Handles<Function>,
    /// How often the primary context of each device is retained.
    contexts: Vec<u32>,
    /// The pool of each device that has no other one.
    pools: Vec<u64>,
    planned: Vec<Planned>,
    /// Planned for the stream of the call that is running.
    late: Option<Command>,
    calls: BTreeMap<&'static str, u64>,
    /// The process of `cuInit`.
    process: Option<u32>,
}

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);

/// Runs a call with the driver locked. A poisoned lock is ignored: the panic has failed the test.
pub(crate) fn with<R>(work: impl FnOnce(&mut Driver) -> R) -> R {
    let mut driver: MutexGuard<'_, Option<Driver>> =
        DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    work(driver.get_or_insert_with(|| Driver::new(Settings::read())))
}

impl Driver {
    fn new(settings: Settings) -> Self {
        let devices = settings.devices;
        let mut machine = Machine::new(devices, settings.memory, settings.finds_races);
        let pools = (0..devices).map(|device| machine.memories.create_pool(device)).collect();
        Self {
            machine,
            streams: Streams::new(settings.seed),
            stream_handles: Handles::new(0x10_0000),
            events: Handles::new(0x20_0000),
            modules: Handles::new(0x30_0000),
            functions: Handles::new(0x40_0000),
            contexts: vec![0; devices],
            pools,
            planned: faults::parse(&settings.faults),
            late: None,
            calls: BTreeMap::new(),
            process: None,
            settings,
        }
    }

    /// A call of a function begins: it is counted, and a fault that is planned for it happens.
    pub(crate) fn enter(&mut self, function: &'static str) -> Result<()> {
        let count = self.calls.entry(function).or_default();
        *count += 1;
        self.late = None;
        match faults::take(&mut self.planned, function, *count) {
            None => Ok(()),
            Some(faults::What::Now(code)) => {
                if code.is_sticky()
                    && let Some(device) = Thread::current()
                {
                    self.machine.lose(device, code, format!("a planned fault of {function}"));
                }
                Err(code)
            }
            Some(faults::What::Late(code)) => {
                self.late = Some(Command::Fail(code));
                Ok(())
            }
            Some(faults::What::Hang) => {
                self.late = Some(Command::Hang);
                Ok(())
            }
        }
    }

    /// How often a function was called.
    pub(crate) fn calls(&self, function: &str) -> u64 {
        self.calls.get(function).copied().unwrap_or(0)
    }

    pub(crate) fn forget_calls(&mut self) {
        self.calls.clear();
    }

    /// Plans faults beside those that are left.
    pub(crate) fn plan(&mut self, text: &str) {
        self.planned.extend(faults::parse(text));
    }

    pub(crate) fn initialize(&mut self) -> Result<()> {
        if self.settings.devices == 0 {
            return Err(Code::NO_DEVICE);
        }
        self.process.get_or_insert(std::process::id());
        self.check_initialized()
    }

    /// `cuInit` was called, and in this process: a driver does not survive `fork`.
    pub(crate) fn check_initialized(&self) -> Result<()> {
        (self.process == Some(std::process::id())).then_some(()).ok_or(Code::NOT_INITIALIZED)
    }

    /// The device of the calling thread's context, which is not lost.
    pub(crate) fn current(&self) -> Result<usize> {
        self.check_initialized()?;
        let device = Thread::current().ok_or(Code::INVALID_CONTEXT)?;
        if self.contexts[device] == 0 {
            return Err(Code::INVALID_CONTEXT);
        }
        self.check_lost(device)?;
        Ok(device)
    }

    /// Returns the fault of a device that is lost.
    pub(crate) fn check_lost(&self, device: usize) -> Result<()> {
        self.machine.lost[device].map_or(Ok(()), Err)
    }

    /// A device by its number.
    pub(crate) fn ordinal(&self, device: i32) -> Result<usize> {
        self.check_initialized()?;
        let device = usize::try_from(device).ok().filter(|device| *device < self.settings.devices);
        device.ok_or(Code::INVALID_DEVICE)
    }

    /// A device by its primary context.
    pub(crate) fn of_context(&self, context: u64) -> Result<usize> {
        device_of(context).filter(|it| *it < self.settings.devices).ok_or(Code::INVALID_CONTEXT)
    }

    pub(crate) fn retain(&mut self, device: usize) {
        self.contexts[device] += 1;
    }

    /// The last release resets the context: its commands are dropped, its memory is freed, and its sticky
    /// error is cleared.
    pub(crate) fn release(&mut self, device: usize) -> Result<()> {
        let count = self.contexts[device].checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        self.contexts[device] = count;
        if count == 0 {
            self.streams.clear(device);
            self.machine.memories.free_context(device);
            self.machine.lost[device] = None;
        }
        Ok(())
    }

    pub(crate) fn is_retained(&self, device: usize) -> bool {
        self.contexts[device] > 0
    }

    pub(crate) fn default_pool(&self, device: usize) -> u64 {
        self.pools[device]
    }
}
