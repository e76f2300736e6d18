//! Metrics of a job in the format of Prometheus, served by its scheduler: one address for all its processes.
//! Also called: exporter, scrape endpoint.

mod http;
mod text;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Result, fail};
use crate::observer::{PreviousReports, view};
use crate::runtime::{Driver, NoopHandler};
use kvstore_protocol::Scheduler;

pub(crate) use http::MetricsServer;
#[cfg(any(fuzzing, test))]
pub(crate) use http::target;

/// Timeout for the report of a process; after that its previous report counts.
const PATIENCE: Duration = Duration::from_millis(300);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Listens at an address, before a job starts, so that an error is reported at once.
pub(crate) fn listen(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address)
        .map_err(|error| fail!(Network, "cannot listen at {address} for metrics: {error}"))
}

/// Answers requests until the endpoint is dropped.
pub(crate) fn serve(
    listener: TcpListener,
    root: &str,
    driver: &Arc<Driver<NoopHandler>>,
) -> Result<MetricsServer> {
    let (root, driver) = (root.to_owned(), Arc::downgrade(driver));
    MetricsServer::start(listener, move || Some(text::of(&look(&root, &driver.upgrade()?)?)))
}

/// The view of the job now, or None at its end.
fn look(root: &str, driver: &Arc<Driver<NoopHandler>>) -> Option<crate::observer::View> {
    let asked = driver.now();
    driver.step(Scheduler::ask_for_reports)?;
    let end = Instant::now() + PATIENCE;
    while !driver.peek(|scheduler| scheduler.has_reports_since(asked))? && Instant::now() < end {
        std::thread::sleep(LOOK_AGAIN);
    }
    let now = driver.now();
    let seen = driver.peek(|scheduler| scheduler.seen(0, usize::MAX, now))?;
    Some(view(root, &seen, &mut PreviousReports::new()))
}
