//! `kvstore doctor`: looks for what keeps a process from its job, and says what to do.
//!
//! A check is a name and a function from a case to its findings. `CHECKS` is their list; each check
//! may use the findings of those before it. Also called: diagnostics.

mod case;
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

use crate::messages::say;
use crate::settings;
use case::DoctorContext;

/// Looks for what keeps a process from its job: options, addresses, ports, limits of the machine, and
/// whether it fits the job that is running.
///
/// Run it where the process would run, with its options or its environment.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) asked: case::DoctorOptions,
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CheckOutcome {
    Good(String),
    /// The finding, and its remedy.
    Bad(String, String),
    /// Not checked, with the reason.
    Skipped(String),
}

pub(crate) fn good(text: impl Into<String>) -> CheckOutcome {
    CheckOutcome::Good(text.into())
}

pub(crate) fn bad(found: impl Into<String>, todo: impl Into<String>) -> CheckOutcome {
    CheckOutcome::Bad(found.into(), todo.into())
}

pub(crate) fn skipped(why: impl Into<String>) -> CheckOutcome {
    CheckOutcome::Skipped(why.into())
}

pub(crate) struct CheckResult {
    name: &'static str,
    run: fn(&mut DoctorContext) -> CheckOutcome,
}

const CHECKS: &[CheckResult] = &[
    CheckResult { name: "options", run: case::options },
    CheckResult { name: "address", run: network::address },
    CheckResult { name: "interface", run: network::interface },
    CheckResult { name: "port", run: network::port },
    CheckResult { name: "open files", run: machine::files },
    CheckResult { name: "shared memory", run: machine::shared_memory },
    CheckResult { name: "credentials", run: job::credentials },
    CheckResult { name: "scheduler", run: network::scheduler },
    CheckResult { name: "packets", run: packets::scheduler },
    CheckResult { name: "answer", run: job::answer },
    CheckResult { name: "world size", run: job::world_size },
    CheckResult { name: "rank", run: job::rank },
    CheckResult { name: "clock", run: job::clock },
    CheckResult { name: "processes", run: job::processes },
    CheckResult { name: "packets of servers", run: packets::servers },
    CheckResult { name: "bandwidth", run: job::bandwidth },
];

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    if let Err(text) = settings::check(&arguments.asked.options()) {
        say("doctor", text);
        return ExitCode::from(2);
    }
    crate::sys::prepare_for_tls(&arguments.asked.options());
    let mut case = DoctorContext::new(&arguments.asked);
    let mut out = io::stdout().lock();
    let mut problems = 0;
    for check in CHECKS {
        let outcome = (check.run)(&mut case);
        problems += usize::from(matches!(outcome, CheckOutcome::Bad(..)));
        // The reader may have closed the pipe; the status still counts.
        let _ = out.write_all(text(check.name, &outcome).as_bytes());
    }
    let _ = match problems {
        0 => writeln!(out, "\nnothing was found"),
        1 => writeln!(out, "\n1 problem was found"),
        count => writeln!(out, "\n{count} problems were found"),
    };
    if problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn text(name: &str, outcome: &CheckOutcome) -> String {
    match outcome {
        CheckOutcome::Good(text) => format!("ok    {name}: {text}\n"),
        CheckOutcome::Skipped(why) => format!("-     {name}: not checked: {why}\n"),
        CheckOutcome::Bad(found, todo) => format!("BAD   {name}: {found}\n      {todo}\n"),
    }
}
