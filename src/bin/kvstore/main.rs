//! The program `kvstore`: starts jobs, is their servers and their schedulers, and shows what running
//! ones are like.
//!
//! docs/cli.md describes the commands.
#![deny(unsafe_code)]

mod agent;
mod attendance;
mod bench;
mod certs;
mod children;
mod crew;
mod doctor;
mod ending;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod fuzz_agents;
mod generate;
mod hosts;
mod input;
mod inspect;
mod job;
mod join;
mod keeper;
mod launch;
mod look;
mod messages;
mod node;
mod np;
mod output;
mod plan;
mod plot;
mod refusals;
mod remote;
mod role_env;
mod run;
mod scheduler;
mod server;
mod settings;
mod shell;
mod show;
mod signals;
mod site;
mod slurm;
mod status;
mod summary;
mod sys;
mod talk;
mod top;
mod trace;

use std::env;
use std::ffi::OsStr;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Starts and runs the processes of distributed key-value stores.
#[derive(Debug, Parser)]
#[command(name = "kvstore", version, subcommand_required = true, arg_required_else_help = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Arguments),
    Join(join::Arguments),
    Server(server::Arguments),
    Scheduler(scheduler::Arguments),
    Inspect(inspect::Arguments),
    Completions(generate::Completions),
    Man(generate::Man),
    Certs(certs::Arguments),
    Status(status::Arguments),
    Top(top::Arguments),
    Doctor(doctor::Arguments),
    Trace(trace::Arguments),
    Bench(Box<bench::Arguments>),
}

fn main() -> ExitCode {
    // What only `kvstore run` starts is no part of the command line that people see.
    match env::args_os().nth(1).as_deref().and_then(OsStr::to_str) {
        Some("keeper") => return keeper::keep(),
        Some("agent") => return agent::serve(),
        _ => {}
    }
    let words = np::understood(env::args_os(), &definition());
    match CommandLine::parse_from(words).command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Join(arguments) => join::run(&arguments),
        Command::Server(arguments) => server::run(&arguments),
        Command::Scheduler(arguments) => scheduler::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Completions(arguments) => generate::completions(&arguments, definition()),
        Command::Man(arguments) => generate::man(&arguments, definition()),
        Command::Certs(arguments) => certs::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
    }
}

/// The command line, for what is generated from it.
fn definition() -> clap::Command {
    CommandLine::command()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        super::definition().debug_assert();
    }
}
