//! The common part of servers and the scheduler: options, and their main loop.

use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use clap::Args;
use kvstore::{Config, Role, Store};

use crate::ending::signal_status;
use crate::launch::processes::signals;
use crate::messages::say;
use crate::serve::refusals;
use crate::settings;

/// Timeout for the return of an aborted store.
const ABORT_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
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

    fn run(&self, config: &Config) -> kvstore::Result<()> {
        // Servers learn from the workers which kind of distributed store the job has.
        let store = Store::open("dist_sync", config)?;
        self.store.get_or_init(|| store).serve()
    }
}

/// Serves until the job ends.
pub(crate) fn serve(role: Role, options: &ServeOptions, rank: Option<u32>) -> ExitCode {
    if let Err(text) = settings::check(&options.set) {
        say(role.name(), text);
        return ExitCode::from(2);
    }
    let config = match options.config(role, rank) {
        Ok(config) => config,
        Err(error) => {
            say(role.name(), error);
            return ExitCode::from(2);
        }
    };
    crate::sys::prepare_for_tls(&options.set);
    refusals::announce(role);
    let warn = move |_, text: &str| say(role.name(), text);
    kvstore::set_logger(kvstore::Level::Warn, Some(Arc::new(warn)));
    let service = Arc::new(Service::default());
    let stopped = Arc::clone(&service);
    if let Err(error) = signals::watch(&signals::ending(), move |signal| stopped.stop(signal)) {
        say(role.name(), error);
        return ExitCode::FAILURE;
    }
    let result = service.run(&config);
    match (service.signal.load(Ordering::SeqCst), result) {
        (0, Ok(())) => ExitCode::SUCCESS,
        (0, Err(error)) => {
            say(role.name(), error);
            ExitCode::FAILURE
        }
        (signal, _) => ExitCode::from(signal_status(signal)),
    }
}
