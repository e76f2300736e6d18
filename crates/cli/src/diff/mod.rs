//! `kvstore diff`: where two runs part, by their digest logs, and in what two checkpoints differ.

mod checkpoint;
mod compare;
#[cfg(test)]
mod fuzz;
mod log;
mod report;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use crate::ending::Failure;
use log::RunLog;

/// Status when the two are the same, differ, or cannot be compared.
const DIFFERENT: u8 = 1;
const NOT_COMPARABLE: u8 = 2;

/// Names the first difference of two runs by their digest logs, or the differences of two checkpoints.
///
/// Status 0: the same. 1: different. 2: not comparable.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Folder of a digest log (option `digest_log`), or a checkpoint.
    a: PathBuf,
    /// The other one.
    b: PathBuf,
    /// Print a JSON object instead of sentences.
    #[arg(long)]
    json: bool,
}

/// Compares, and gives the status.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    compare(arguments).map_err(|error| {
        let text = format!("not comparable: {error:#}");
        Failure { status: NOT_COMPARABLE, text }.into()
    })
}

fn compare(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { a, b, json } = arguments;
    let is_folder = |path: &Path| -> anyhow::Result<bool> {
        let about = path.metadata().with_context(|| format!("\"{}\"", path.display()))?;
        Ok(about.is_dir())
    };
    let (text, is_same) = match (is_folder(a)?, is_folder(b)?) {
        (true, true) => logs(a, b, *json)?,
        (false, false) => checkpoint::compare(a, b, *json)?,
        _ => anyhow::bail!(
            "one is a folder and the other a file: give two digest logs, or two checkpoints"
        ),
    };
    // A reader may close the pipe early.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    Ok(if is_same { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

fn logs(a: &Path, b: &Path, json: bool) -> anyhow::Result<(String, bool)> {
    let (a, b) = (RunLog::read(a)?, RunLog::read(b)?);
    let found = compare::compare(&a, &b)?;
    let is_same = found.first.is_none();
    let text = if json {
        serde_json::to_string_pretty(&found)? + "\n"
    } else {
        report::text(&found, &a, &b)
    };
    Ok((text, is_same))
}
