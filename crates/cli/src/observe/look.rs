//! The job to observe, for the commands that observe one.

use std::time::Duration;

use clap::Args;
use kvstore::{Config, Observer, Result};

use crate::settings;

/// Timeout of a first view.
pub(crate) const FIRST: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct ObservedJob {
    /// Address of the job's scheduler; else `KV_ROOT`
    #[arg(value_name = "ROOT")]
    root: Option<String>,

    /// Set any option of the library, repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = settings::assignment)]
    set: Vec<(String, String)>,
}

impl ObservedJob {
    pub(crate) fn config(&self) -> Result<Config> {
        settings::config(&self.set, &[("root", self.root.clone())])
    }

    /// Why the options must not stand on a command line, if so.
    pub(crate) fn check(&self) -> std::result::Result<(), &'static str> {
        settings::check(&self.set)
    }

    pub(crate) fn open(&self) -> Result<Observer> {
        Observer::open(&self.config()?)
    }
}
