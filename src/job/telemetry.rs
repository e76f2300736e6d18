//! Telemetry of a process (also called: observability): its trace and its statistics.

use std::sync::Arc;

use crate::config::JobConfig;
use crate::observer;
use crate::runtime::{Driver, DriverHost};
use crate::trace::Tracer;
use kvstore_protocol::{Machine as _, ProcessStats};

/// Tracer of this process, if an option sets one.
pub(crate) fn tracer(job: &JobConfig) -> Option<Arc<Tracer>> {
    job.trace.as_ref().map(|(prefix, rounds)| Arc::new(Tracer::new(prefix, *rounds)))
}

/// Connects the machine to the tracer.
pub(crate) fn trace<H: DriverHost>(driver: &Arc<Driver<H>>, tracer: Option<&Arc<Tracer>>) {
    let Some(tracer) = tracer else { return };
    driver.step(|machine, now| {
        tracer.align(now);
        machine.trace(tracer.rounds(), now);
    });
}

/// Statistics of the process, as one more member of the store's.
pub(crate) fn facts(stats: Option<ProcessStats>) -> String {
    let facts = stats.map(|said| {
        // Lists would change the length between two calls.
        let said = ProcessStats { waiting: Vec::new(), late: Vec::new(), ..said };
        observer::facts(&said, None)
    });
    let json = facts.and_then(|facts| serde_json::to_string(&facts).ok());
    json.map_or_else(String::new, |json| format!(",\"node\":{json}"))
}
