//! Telemetry of a process (also called: observability): its trace and its statistics.

use std::sync::Arc;

use crate::config::JobConfig;
use crate::observer;
use crate::runtime::{Driver, DriverHost, ProtocolMachine};
use crate::trace::Tracer;

/// Tracer of this process, if an option sets one.
pub(crate) fn tracer(job: &JobConfig) -> Option<Arc<Tracer>> {
    job.trace.as_ref().map(|(prefix, rounds)| Arc::new(Tracer::new(prefix, *rounds)))
}

/// Connects the machine to the tracer.
pub(crate) fn trace<H: DriverHost>(driver: &Arc<Driver<H>>, tracer: Option<&Arc<Tracer>>) {
    let Some(tracer) = tracer else { return };
    driver.step(|machine, now| match machine {
        ProtocolMachine::Node(node) => {
            tracer.align(now);
            node.trace(tracer.rounds(), now);
        }
        ProtocolMachine::Scheduler(_) => {}
    });
}

/// Statistics of the process, and its counts of frames and messages without an effect, as two more members
/// of the store's.
pub(crate) fn facts<H: DriverHost>(driver: &Arc<Driver<H>>) -> String {
    let said = driver.step(|machine, now| match machine {
        ProtocolMachine::Node(node) => Some((node.facts(now), node.ignored())),
        ProtocolMachine::Scheduler(_) => None,
    });
    let members = said.flatten().and_then(|(said, ignored)| {
        // Lists would change the length between two calls.
        let said = kvstore_protocol::ProcessStats { waiting: Vec::new(), late: Vec::new(), ..said };
        let node = serde_json::to_string(&observer::facts(&said, None)).ok()?;
        let ignored = ignored.iter().map(|(kind, why, count)| {
            serde_json::json!({ "kind": format!("{kind:?}"), "reason": why.text(), "count": count })
        });
        let ignored = serde_json::Value::from_iter(ignored);
        Some(format!(",\"node\":{node},\"ignored\":{ignored}"))
    });
    members.unwrap_or_default()
}
