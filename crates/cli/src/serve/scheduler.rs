//! `kvstore scheduler`: brings the processes of a job together.

use std::process::ExitCode;

use clap::Args;
use kvstore::Role;

use crate::serve::node::{self, ServeOptions};

/// Runs the scheduler of a distributed job until the job ends.
///
/// Servers and workers need to know nothing but its address.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: ServeOptions,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    node::serve(Role::Scheduler, &arguments.options, None)
}
