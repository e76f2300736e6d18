//! `kvstore status`: the state of a running job, once.

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use kvstore::{JobDigests, Observer, Result, View};
use serde::Serialize;

use crate::messages::say;
use crate::observe::look::{FIRST, ObservedJob};
use crate::observe::show::{digests, table};

/// Shows the state of a running job, once.
///
/// It does not take part in the job, which does not wait for it.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: ObservedJob,

    /// How to show it
    #[arg(long, value_enum, default_value_t = StatusFormat::Json)]
    format: StatusFormat,

    /// Show the digests of all keys too, for a comparison with another job
    #[arg(long)]
    digests: bool,

    /// The time that rates and latencies are about
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 500)]
    interval_ms: u64,

    /// How long the scheduler may take to answer
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 5_000)]
    timeout_ms: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum StatusFormat {
    Json,
    Table,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    if let Err(text) = arguments.target.check() {
        say("status", text);
        return ExitCode::from(2);
    }
    let text = look(arguments).map(|status| match arguments.format {
        StatusFormat::Json => json(&status),
        StatusFormat::Table => {
            let digests = status.digests.as_ref().map_or(String::new(), digests::table);
            table::table(&status.view) + &digests
        }
    });
    match text {
        Ok(text) => {
            // The reader may have closed the pipe.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            say("status", error);
            ExitCode::FAILURE
        }
    }
}

/// The state of a job, and the digests of its keys.
#[derive(Serialize)]
struct JobStatus {
    #[serde(flatten)]
    view: View,
    #[serde(skip_serializing_if = "Option::is_none")]
    digests: Option<JobDigests>,
}

fn look(arguments: &Arguments) -> Result<JobStatus> {
    let timeout = Duration::from_millis(arguments.timeout_ms).min(FIRST * 720);
    let view = view(arguments, timeout)?;
    let config = arguments.target.config()?;
    let digests = arguments.digests.then(|| Observer::digests(&config, timeout)).transpose()?;
    Ok(JobStatus { view, digests })
}

/// Two views: the second one has rates.
fn view(arguments: &Arguments, timeout: Duration) -> Result<View> {
    let mut observer = arguments.target.open()?;
    let first = observer.look(timeout)?;
    if arguments.interval_ms == 0 {
        return Ok(first);
    }
    thread::sleep(Duration::from_millis(arguments.interval_ms));
    observer.look(timeout)
}

fn json(status: &JobStatus) -> String {
    let text = serde_json::to_string_pretty(status);
    text.map_or_else(|error| error.to_string(), |text| text + "\n")
}
