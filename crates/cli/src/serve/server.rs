//! `kvstore server`: holds keys and applies updaters until the job ends.

use std::process::ExitCode;

use clap::Args;
use kvstore::Role;

use crate::serve::node::{self, ServeOptions};

/// Runs a server of a distributed job until the job ends.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Rank among the servers, from 0; else `KV_RANK`
    #[arg(long)]
    rank: Option<u32>,

    #[command(flatten)]
    options: ServeOptions,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    node::serve(Role::Server, &arguments.options, arguments.rank)
}
