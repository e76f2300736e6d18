//! The keeper: a process that kills all others of a job when the launcher is killed. Also called:
//! watchdog.
//!
//! It reads a pipe whose other end the launcher holds, and which the system closes when the
//! launcher ends, however it ends. Every process of the job writes its number into it. Its
//! arguments are files to be removed with the job.

use std::env;
use std::fs;
use std::io::{self, IsTerminal, PipeWriter, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::ensure;
use signal_hook::consts::SIGKILL;

use crate::ending::Failure;
use crate::sys;

/// The launcher's side.
#[derive(Debug)]
pub(crate) struct Reaper {
    process: Child,
    pipe: PipeWriter,
}

impl Reaper {
    /// `files` are removed when the launcher is killed.
    pub(crate) fn start(executable: &Path, files: &[PathBuf]) -> io::Result<Self> {
        let (reader, pipe) = io::pipe()?;
        let mut command = Command::new(executable);
        command.arg("keeper").args(files).stdin(reader).stdout(Stdio::null()).stderr(Stdio::null());
        // It must not pin a folder that a user may want to unmount.
        command.current_dir("/");
        sys::set_apart(&mut command);
        Ok(Self { process: command.spawn()?, pipe })
    }

    /// Puts the process of a command into a group of its own, which the keeper then watches.
    pub(crate) fn look_after(&self, command: &mut Command) -> io::Result<()> {
        use std::os::unix::process::CommandExt;

        command.process_group(0);
        sys::tie_to_us(command, self.pipe.try_clone()?);
        Ok(())
    }

    /// Ends the keeper: no process is left to watch. Without this call it ends the job.
    pub(crate) fn dismiss(mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The keeper's side: waits until the launcher has ended, then kills all groups.
pub(crate) fn keep() -> anyhow::Result<ExitCode> {
    let mut input = io::stdin().lock();
    ensure!(!input.is_terminal(), Failure::usage("only `kvstore run` starts this"));
    let mut numbers = Vec::new();
    // Data read before an error is valid all the same.
    let _ = input.read_to_end(&mut numbers);
    // Before another job can listen at this address and keep a file of that name.
    for file in env::args_os().skip(2) {
        let _ = fs::remove_file(file);
    }
    for number in numbers.as_chunks::<4>().0 {
        sys::signal_group(u32::from_le_bytes(*number), SIGKILL);
    }
    Ok(ExitCode::SUCCESS)
}
