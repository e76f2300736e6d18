//! The processes `kvstore server` and `kvstore scheduler`. Also called: daemons.

use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use clap::Args;
use kvstore::{Config, Role, Store};

use crate::ending::{Failure, signal_status};
use crate::launch::processes::signals;
use crate::messages::say;
use crate::settings;

/// Timeout for the return of an aborted store.
const ABORT_LIMIT: Duration = Duration::from_secs(2);

/// Runs a server of a distributed job until the job ends.
#[derive(Debug, Args)]
pub(crate) struct ServerOptions {
    /// Rank among the servers, from 0; else `KV_RANK`
    #[arg(long)]
    rank: Option<u32>,

    #[command(flatten)]
    options: ServeOptions,
}

/// Runs the scheduler of a distributed job until the job ends.
///
/// Servers and workers need to know nothing but its address.
#[derive(Debug, Args)]
pub(crate) struct SchedulerOptions {
    #[command(flatten)]
    options: ServeOptions,
}

#[derive(Debug, Args)]
struct ServeOptions {
    /// Address of the scheduler; else `KV_ROOT`
    #[arg(long, value_name = "HOST:PORT")]
    root: Option<String>,

    /// How many workers the job has; else `KV_NUM_WORKERS`
    #[arg(long, value_name = "COUNT")]
    num_workers: Option<u32>,

    /// How many servers the job has; else `KV_NUM_SERVERS`
    #[arg(long, value_name = "COUNT")]
    num_servers: Option<u32>,

    /// Address to listen at; else `KV_BIND`
    #[arg(long, value_name = "HOST[:PORT]")]
    bind: Option<String>,

    /// Set any option of the library, repeatable; an option that is not set comes from the
    /// environment
    #[arg(long, value_name = "NAME=VALUE", value_parser = settings::assignment)]
    set: Vec<(String, String)>,
}

impl ServeOptions {
    fn config(&self, role: Role, rank: Option<u32>) -> kvstore::Result<Config> {
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        let named = [
            ("root", self.root.clone()),
            ("num_workers", number(self.num_workers)),
            ("num_servers", number(self.num_servers)),
            ("bind", self.bind.clone()),
            ("rank", number(rank)),
            ("role", Some(role.name().to_owned())),
        ];
        settings::config(&self.set, &named)
    }
}

/// State shared by the signal thread and the serving thread.
#[derive(Default)]
struct Service {
    store: OnceLock<Store>,
    /// The signal that ended this process, or 0.
    signal: AtomicI32,
}

impl Service {
    /// Ends this process, through the store if there is one already.
    fn stop(&self, signal: i32) {
        self.signal.store(signal, Ordering::SeqCst);
        if let Some(store) = self.store.get() {
            store.abort();
            thread::sleep(ABORT_LIMIT);
        }
        process::exit(signal_status(signal).into());
    }
}

/// Holds keys and applies updaters until the job ends.
pub(crate) fn server(arguments: &ServerOptions) -> anyhow::Result<ExitCode> {
    serve(Role::Server, &arguments.options, arguments.rank)
}

/// Brings the processes of a job together, until it ends.
pub(crate) fn scheduler(arguments: &SchedulerOptions) -> anyhow::Result<ExitCode> {
    serve(Role::Scheduler, &arguments.options, None)
}

fn serve(role: Role, options: &ServeOptions, rank: Option<u32>) -> anyhow::Result<ExitCode> {
    settings::check(&options.set).map_err(Failure::usage)?;
    let config = options.config(role, rank).map_err(Failure::usage)?;
    let warn = move |_, text: &str| say(role.name(), text);
    kvstore::set_logger(kvstore::Level::Warn, Some(Arc::new(warn)));
    let service = Arc::new(Service::default());
    let stopped = Arc::clone(&service);
    signals::watch(&signals::ending(), move |signal| stopped.stop(signal))?;
    // Servers learn from the workers which kind of distributed store the job has.
    let store = Store::open("dist_sync", &config);
    let result = store.and_then(|store| service.store.get_or_init(|| store).serve());
    match service.signal.load(Ordering::SeqCst) {
        0 => Ok(result.map(|()| ExitCode::SUCCESS)?),
        signal => Ok(ExitCode::from(signal_status(signal))),
    }
}
