//! `kvstore status`: the state of a running job, once.

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use kvstore::{Result, View};

use crate::messages::say;
use crate::observe::look::{FIRST, ObservedJob};
use crate::observe::show::table;

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
    let text = look(arguments).map(|view| match arguments.format {
        StatusFormat::Json => json(&view),
        StatusFormat::Table => table::table(&view),
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

/// Two views: the second one has rates.
fn look(arguments: &Arguments) -> Result<View> {
    let timeout = Duration::from_millis(arguments.timeout_ms).min(FIRST * 720);
    let mut observer = arguments.target.open()?;
    let first = observer.look(timeout)?;
    if arguments.interval_ms == 0 {
        return Ok(first);
    }
    thread::sleep(Duration::from_millis(arguments.interval_ms));
    observer.look(timeout)
}

fn json(view: &View) -> String {
    let text = serde_json::to_string_pretty(view);
    text.map_or_else(|error| error.to_string(), |text| text + "\n")
}
