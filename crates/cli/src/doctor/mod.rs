//! `kvstore doctor`: looks for what keeps a process from its job, and says what to do.
//!
//! A check is a name and a function from a case to what it found. `CHECKS` is their list; each one may
//! use what those before it have found out.

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
use case::Case;

/// Looks for what keeps a process from its job: options, addresses, ports, limits of the machine, and
/// whether it fits the job that is running.
///
/// Run it where the process would run, with its options or its environment.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) asked: case::Asked,
}

/// What came of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Good(String),
    /// What was found, and what to do.
    Bad(String, String),
    /// Not checked, and why.
    Skipped(String),
}

pub(crate) fn good(text: impl Into<String>) -> Outcome {
    Outcome::Good(text.into())
}

pub(crate) fn bad(found: impl Into<String>, todo: impl Into<String>) -> Outcome {
    Outcome::Bad(found.into(), todo.into())
}

pub(crate) fn skipped(why: impl Into<String>) -> Outcome {
    Outcome::Skipped(why.into())
}

pub(crate) struct Check {
    name: &'static str,
    run: fn(&mut Case) -> Outcome,
}

const CHECKS: &[Check] = &[
    Check { name: "options", run: case::options },
    Check { name: "address", run: network::address },
    Check { name: "interface", run: network::interface },
    Check { name: "port", run: network::port },
    Check { name: "open files", run: machine::files },
    Check { name: "shared memory", run: machine::shared_memory },
    Check { name: "credentials", run: job::credentials },
    Check { name: "scheduler", run: network::scheduler },
    Check { name: "packets", run: packets::scheduler },
    Check { name: "answer", run: job::answer },
    Check { name: "world size", run: job::world_size },
    Check { name: "rank", run: job::rank },
    Check { name: "clock", run: job::clock },
    Check { name: "processes", run: job::processes },
    Check { name: "packets of servers", run: packets::servers },
    Check { name: "bandwidth", run: job::bandwidth },
];

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    if let Err(text) = settings::check(&arguments.asked.options()) {
        say("doctor", text);
        return ExitCode::from(2);
    }
    crate::sys::prepare_for_tls(&arguments.asked.options());
    let mut case = Case::new(&arguments.asked);
    let mut out = io::stdout().lock();
    let mut problems = 0;
    for check in CHECKS {
        let outcome = (check.run)(&mut case);
        problems += usize::from(matches!(outcome, Outcome::Bad(..)));
        // Who reads it may have had enough; the status still counts.
        let _ = out.write_all(text(check.name, &outcome).as_bytes());
    }
    let _ = match problems {
        0 => writeln!(out, "\nnothing was found"),
        1 => writeln!(out, "\n1 problem was found"),
        count => writeln!(out, "\n{count} problems were found"),
    };
    if problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn text(name: &str, outcome: &Outcome) -> String {
    match outcome {
        Outcome::Good(text) => format!("ok    {name}: {text}\n"),
        Outcome::Skipped(why) => format!("-     {name}: not checked: {why}\n"),
        Outcome::Bad(found, todo) => format!("BAD   {name}: {found}\n      {todo}\n"),
    }
}
