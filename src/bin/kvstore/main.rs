//! The program `kvstore`: starts jobs, and is their servers and their schedulers.
//!
//! docs/cli.md describes the commands.
#![deny(unsafe_code)]

mod agent;
mod children;
mod crew;
mod hosts;
mod input;
mod job;
mod join;
mod keeper;
mod launch;
mod messages;
mod node;
mod output;
mod plan;
mod remote;
mod role_env;
mod run;
mod scheduler;
mod server;
mod shell;
mod signals;
mod site;
mod slurm;
mod summary;
mod sys;
mod talk;

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
    Join(join::Arguments),
    Server(server::Arguments),
    Scheduler(scheduler::Arguments),
    /// Ends the processes of a job whose launcher was killed.
    #[command(hide = true)]
    Keeper,
    /// Starts processes of a job on another machine than the launcher's.
    #[command(hide = true)]
    Agent,
}

fn main() -> ExitCode {
    match CommandLine::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Join(arguments) => join::run(&arguments),
        Command::Server(arguments) => server::run(&arguments),
        Command::Scheduler(arguments) => scheduler::run(&arguments),
        Command::Keeper => keeper::keep(),
        Command::Agent => agent::serve(),
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
