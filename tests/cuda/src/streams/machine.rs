//! Execution of commands over the memory of all devices.

use super::command::{Command, Source};
use crate::error::Code;
use crate::memory::{DeviceView, Memories};
use crate::ptx::{Fault, FaultKind, Launch, Memory, Module, Watched};

/// The devices.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) memories: Memories,
    /// The sticky error of each device.
    pub(crate) lost: Vec<Option<Code>>,
    /// Message of the last fault.
    pub(crate) message: String,
    finds_races: bool,
    /// Instructions that kernels ran.
    pub(crate) instructions: u64,
}

impl Machine {
    pub(crate) fn new(devices: usize, memory: u64, finds_races: bool) -> Self {
        Self {
            memories: Memories::new(devices, memory),
            lost: vec![None; devices],
            message: String::new(),
            finds_races,
            instructions: 0,
        }
    }

    /// From now on the device returns this error.
    pub(crate) fn lose(&mut self, device: usize, code: Code, message: String) {
        if self.lost[device].is_none() {
            self.lost[device] = Some(code);
            self.message = message;
        }
    }

    /// Runs a command of a stream of a device. On a lost device only events pass. `order`: the seed for the
    /// threads of a launch.
    pub(super) fn run(&mut self, device: usize, command: Command, order: u64) {
        if self.lost[device].is_some() {
            command.pass();
            return;
        }
        let name = command.name();
        if let Err(fault) = self.execute(device, command, order) {
            let code = match fault.kind {
                FaultKind::Misaligned => Code::MISALIGNED,
                FaultKind::Endless => Code::TIMEOUT,
                FaultKind::DivisionByZero | FaultKind::Launch => Code::LAUNCH_FAILED,
                _ => Code::ILLEGAL_ADDRESS,
            };
            self.lose(device, code, format!("device {device}, {name}: {fault}"));
        }
    }

    fn execute(&mut self, device: usize, command: Command, order: u64) -> Result<(), Fault> {
        let memories = &mut self.memories;
        match command {
            Command::Launch { module, kernel, launch, arguments } => {
                return self.launch(
                    device,
                    &module,
                    kernel,
                    Launch { order, ..launch },
                    &arguments,
                );
            }
            Command::FromHost { to, from: Source::Read(bytes) } => {
                memories.write(device, to, &bytes)?;
            }
            Command::FromHost { to, from: Source::Pinned(span) } => {
                check_pinned(memories, span.address(), span.bytes())?;
                memories.write(device, to, &span.read())?;
            }
            Command::ToHost { to, is_pinned, from } => {
                if is_pinned {
                    check_pinned(memories, to.address(), to.bytes())?;
                }
                to.write(&memories.read(device, from, to.bytes())?);
            }
            Command::Copy { to, from, bytes } => memories.copy(to, from, bytes)?,
            Command::Fill { to, byte, bytes } => memories.fill(device, to, bytes, byte)?,
            Command::Record(..) => command.pass(),
            Command::Allocate(address) => memories.make_usable(address),
            Command::Free(address) => {
                let fault = Fault::new(FaultKind::Address, address, 0);
                memories.free(address, false).map_err(|_| fault)?;
            }
            Command::Fail(code) => self.lose(device, code, "a planned fault".into()),
            Command::Wait(..) | Command::Hang => {}
        }
        Ok(())
    }

    fn launch(
        &mut self,
        device: usize,
        module: &Module,
        kernel: usize,
        launch: Launch,
        arguments: &[u64],
    ) -> Result<(), Fault> {
        let mut view = DeviceView::new(&mut self.memories, device);
        let mut watched;
        let memory: &mut dyn Memory = if self.finds_races {
            watched = Watched::new(&mut view);
            &mut watched
        } else {
            &mut view
        };
        let counts = module.kernels()[kernel].run(&launch, arguments, memory)?;
        self.instructions += counts.instructions;
        Ok(())
    }
}

fn check_pinned(memories: &Memories, address: u64, bytes: usize) -> Result<(), Fault> {
    let fault = Fault::new(FaultKind::Address, address, bytes);
    memories.is_pinned(address, bytes).then_some(()).ok_or(fault)
}

impl Command {
    fn name(&self) -> String {
        match self {
            Self::Launch { module, kernel, .. } => {
                format!("kernel {}", module.kernels()[*kernel].name())
            }
            Self::FromHost { .. } => "copy from the host".into(),
            Self::ToHost { .. } => "copy to the host".into(),
            Self::Copy { .. } => "copy between devices".into(),
            Self::Fill { .. } => "fill".into(),
            Self::Free(_) => "free".into(),
            _ => "command".into(),
        }
    }
}
