//! The program `kvstore`: starts a job on one machine, is its servers and its scheduler, and shows
//! what a running one is like.
//!
//! docs/cli.md describes the commands.
#![deny(unsafe_code)]

mod children;
mod doctor;
mod input;
mod job;
mod keeper;
mod look;
mod messages;
mod node;
mod output;
mod plan;
mod run;
mod scheduler;
mod server;
mod show;
mod signals;
mod status;
mod sys;
mod top;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    Server(server::Arguments),
    Scheduler(scheduler::Arguments),
    Status(status::Arguments),
    Top(top::Arguments),
    Doctor(doctor::Arguments),
    Trace(trace::Arguments),
    /// Ends the processes of a job whose launcher was killed.
    #[command(hide = true)]
    Keeper,
}

fn main() -> ExitCode {
    match CommandLine::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Server(arguments) => server::run(&arguments),
        Command::Scheduler(arguments) => scheduler::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Keeper => keeper::keep(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        super::CommandLine::command().debug_assert();
    }
}
