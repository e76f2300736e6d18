//! What a process shows of itself: its trace and its facts.

use std::sync::Arc;

use crate::config::JobConfig;
use crate::observer;
use crate::runtime::{Driver, DriverHost, Machine};
use crate::trace::Tracer;

/// Remembers what this process does in some rounds, if that is asked for.
pub(crate) fn tracer(job: &JobConfig) -> Option<Arc<Tracer>> {
    job.trace.as_ref().map(|(prefix, rounds)| Arc::new(Tracer::new(prefix, *rounds)))
}

/// Lets the machine tell its tracer.
pub(crate) fn trace<H: DriverHost>(driver: &Arc<Driver<H>>, tracer: Option<&Arc<Tracer>>) {
    let Some(tracer) = tracer else { return };
    driver.step(|machine, now| match machine {
        Machine::Node(node) => {
            tracer.align(now);
            node.trace(tracer.rounds(), now);
        }
        Machine::Scheduler(_) => {}
    });
}

/// What a process says of itself, as one more member of its statistics.
pub(crate) fn facts<H: DriverHost>(driver: &Arc<Driver<H>>) -> String {
    let said = driver.step(|machine, now| match machine {
        Machine::Node(node) => Some(node.facts(now)),
        Machine::Scheduler(_) => None,
    });
    let facts = said.flatten().map(|said| {
        // Lists would change the length from one call to the next.
        let said = kvstore_protocol::ProcessStats { waiting: Vec::new(), late: Vec::new(), ..said };
        observer::facts(&said, None)
    });
    let json = facts.and_then(|facts| serde_json::to_string(&facts).ok());
    json.map_or_else(String::new, |json| format!(",\"node\":{json}"))
}
