//! `kvstore doctor`: looks for what keeps a process from its job, and says what to do.
//!
//! A check is a name and a function from a case to its findings. `CHECKS` is their list; each check
//! may use the findings of those before it. Also called: diagnostics.

mod case;
mod gpu;
mod job;
mod machine;
mod network;
mod packets;
mod system;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;

use crate::ending::Failure;
use crate::settings;
use case::DoctorContext;

/// Looks for what keeps a process from its job: options, addresses, ports, limits of the machine, its
/// GPUs, and whether it fits the job that is running.
///
/// Run it where the process would run, with its options or its environment.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) asked: case::DoctorOptions,
}

/// Why a check has not succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The problem, and its remedy.
    Bad(String, String),
    /// Not checked, with the reason.
    Skipped(String),
}

/// Result of a check; a success has a text too.
pub(crate) type CheckResult = Result<String, Finding>;

pub(crate) fn bad(found: impl Into<String>, todo: impl Into<String>) -> Finding {
    Finding::Bad(found.into(), todo.into())
}

pub(crate) fn skipped(why: impl Into<String>) -> Finding {
    Finding::Skipped(why.into())
}

type Check = fn(&mut DoctorContext) -> CheckResult;

const CHECKS: &[(&str, Check)] = &[
    ("options", case::options),
    ("address", network::address),
    ("interface", network::interface),
    ("port", network::port),
    ("open files", machine::files),
    ("shared memory", machine::shared_memory),
    ("transports", machine::transports),
    ("GPU driver", gpu::driver),
    ("GPUs", gpu::gpus),
    ("GPU access", gpu::peers),
    ("credentials", job::credentials),
    ("scheduler", network::scheduler),
    ("packets", packets::scheduler),
    ("answer", job::answer),
    ("world size", job::world_size),
    ("rank", job::rank),
    ("clock", job::clock),
    ("processes", job::processes),
    ("packets of servers", packets::servers),
    ("bandwidth", job::bandwidth),
];

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = arguments.asked.settings();
    settings::check(&settings).map_err(Failure::usage)?;
    let mut case = DoctorContext::new(&arguments.asked);
    let mut out = io::stdout().lock();
    let mut problems = 0;
    for (name, check) in CHECKS {
        let result = check(&mut case);
        problems += usize::from(matches!(result, Err(Finding::Bad(..))));
        // The reader may have closed the pipe; the status still counts.
        let _ = match result {
            Ok(text) => writeln!(out, "ok    {name}: {text}"),
            Err(Finding::Skipped(why)) => writeln!(out, "-     {name}: not checked: {why}"),
            Err(Finding::Bad(found, todo)) => writeln!(out, "BAD   {name}: {found}\n      {todo}"),
        };
    }
    let _ = match problems {
        0 => writeln!(out, "\nnothing was found"),
        1 => writeln!(out, "\n1 problem was found"),
        count => writeln!(out, "\n{count} problems were found"),
    };
    Ok(ExitCode::from(u8::from(problems > 0)))
}
