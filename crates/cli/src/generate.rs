//! Generated from the definition of the command line: completions and manual pages.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

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

pub(crate) fn completions(
    arguments: &Completions,
    mut definition: Command,
) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut definition, NAME, &mut text);
    io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(arguments: &Man, definition: Command) -> anyhow::Result<ExitCode> {
    fs::create_dir_all(&arguments.folder)?;
    clap_mangen::generate_to(definition, &arguments.folder)?;
    Ok(ExitCode::SUCCESS)
}
