//! The program `kvstore`: starts jobs, runs their servers and schedulers, and shows the state of
//! running ones. Also called: command-line interface (CLI).
//!
//! docs/operate/cli.md describes the commands.
#![deny(unsafe_code)]

mod address;
mod bench;
mod certs;
#[cfg(test)]
#[path = "../../../tests/common/corpus.rs"]
mod corpus;
mod diff;
mod doctor;
mod ending;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod fuzz_agents;
mod generate;
mod launch;
mod messages;
mod observe;
mod plot;
mod serve;
mod settings;
mod sys;

use std::env;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use ending::Failure;

/// Starts and runs the processes of distributed key-value stores.
#[derive(Debug, Parser)]
#[command(name = "kvstore", version, subcommand_required = true, arg_required_else_help = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(launch::run::Arguments),
    Join(launch::join::Arguments),
    Server(serve::ServerOptions),
    Scheduler(serve::SchedulerOptions),
    Inspect(observe::inspect::Arguments),
    Diff(diff::Arguments),
    Completions(generate::Completions),
    Man(generate::Man),
    Certs(certs::Arguments),
    Status(observe::status::Arguments),
    Top(observe::top::Arguments),
    Doctor(doctor::Arguments),
    Trace(observe::trace::Arguments),
    Bench(Box<bench::Arguments>),
}

fn main() -> ExitCode {
    let command = env::args_os().nth(1).and_then(|word| word.into_string().ok());
    // Internal subcommands of `kvstore run` are hidden from the help.
    let result = match command.as_deref() {
        Some("keeper") => launch::processes::reaper::keep(),
        Some("agent") => launch::hosts::agent::serve(),
        _ => run(),
    };
    result.unwrap_or_else(|error| {
        messages::say(&command.unwrap_or_default(), format_args!("{error:#}"));
        ExitCode::from(error.downcast_ref::<Failure>().map_or(1, |failure| failure.status))
    })
}

/// Executes a subcommand; the caller prints its error.
fn run() -> anyhow::Result<ExitCode> {
    let words = launch::np::understood(env::args_os(), &definition());
    match CommandLine::parse_from(words).command {
        Command::Run(arguments) => launch::run::run(&arguments),
        Command::Join(arguments) => launch::join::run(&arguments),
        Command::Server(arguments) => serve::server(&arguments),
        Command::Scheduler(arguments) => serve::scheduler(&arguments),
        Command::Inspect(arguments) => Ok(observe::inspect::run(&arguments)),
        Command::Diff(arguments) => diff::run(&arguments),
        Command::Completions(arguments) => generate::completions(&arguments, definition()),
        Command::Man(arguments) => generate::man(&arguments, definition()),
        Command::Certs(arguments) => certs::run(&arguments),
        Command::Status(arguments) => Ok(observe::status::run(&arguments)),
        Command::Top(arguments) => Ok(observe::top::run(&arguments)),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Trace(arguments) => Ok(observe::trace::run(&arguments)),
        Command::Bench(arguments) => bench::run(&arguments),
    }
}

/// The command line, for generated completions and pages.
fn definition() -> clap::Command {
    CommandLine::command()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        super::definition().debug_assert();
    }

    #[test]
    fn the_page_of_the_program_lists_every_command() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/cli.md");
        let page = std::fs::read_to_string(page).unwrap();
        let table = page.split("| command | does |\n").nth(1).unwrap();
        let rows = table.lines().take_while(|line| line.starts_with('|'));
        let words = rows.filter_map(|row| row.strip_prefix("| `kvstore ")?.split('`').next());
        let documented: Vec<&str> =
            words.filter(|words| !words.starts_with("--") && !words.contains(' ')).collect();
        let definition = super::definition();
        let commands: Vec<&str> =
            definition.get_subcommands().map(clap::Command::get_name).collect();
        assert_eq!(documented, commands);
        let headings: Vec<&str> = page.lines().filter(|line| line.starts_with("## ")).collect();
        for command in commands {
            let name = format!("`kvstore {command}`");
            assert!(headings.iter().any(|line| line.contains(&name)), "no section of {name}");
        }
    }
}
