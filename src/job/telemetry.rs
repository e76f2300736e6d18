//! Telemetry of a process (also called: observability): its trace and its statistics.

use std::sync::Arc;

use crate::config::JobConfig;
use crate::observer;
use crate::runtime::{Driver, DriverHost};
use crate::trace::Tracer;
use kvstore_protocol::{DropReason, Machine as _, MessageKind, ProcessStats};

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

/// Statistics of a node, and its counts of frames and messages without an effect, as two more members of the
/// store's.
pub(crate) fn facts(said: Option<(ProcessStats, Vec<(MessageKind, DropReason, u64)>)>) -> String {
    let members = said.and_then(|(said, ignored)| {
        // Lists would change the length between two calls.
        let said = ProcessStats { waiting: Vec::new(), late: Vec::new(), ..said };
        let node = serde_json::to_string(&observer::facts(&said, None)).ok()?;
        let ignored = ignored.iter().map(|(kind, why, count)| {
            serde_json::json!({ "kind": format!("{kind:?}"), "reason": why.text(), "count": count })
        });
        let ignored = serde_json::Value::from_iter(ignored);
        Some(format!(",\"node\":{node},\"ignored\":{ignored}"))
    });
    members.unwrap_or_default()
}
