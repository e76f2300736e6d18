//! Generated from the definition of the command line: completions and manual pages.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::messages::say;

const NAME: &str = "kvstore";

/// Prints the completions of the command line for a shell.
///
/// For bash: kvstore completions bash > ~/.local/share/bash-completion/completions/kvstore
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Writes manual pages into a folder, one for each command.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The folder, which is made if it is missing
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

pub(crate) fn completions(arguments: &Completions, mut definition: Command) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut definition, NAME, &mut text);
    end("completions", io::stdout().write_all(&text))
}

pub(crate) fn man(arguments: &Man, definition: Command) -> ExitCode {
    end("man", write_pages(&arguments.folder, definition))
}

fn write_pages(folder: &Path, definition: Command) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(definition, folder)
}

fn end(command: &str, result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(command, error);
            ExitCode::FAILURE
        }
    }
}
