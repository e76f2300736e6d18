//! Telemetry of a process (also called: observability): its trace and its statistics.

use std::sync::Arc;

use crate::observer;
use crate::runtime::{Driver, DriverHost, ProtocolMachine};

/// Connects the machine to the tracer.
pub(crate) fn trace<H: DriverHost>(driver: &Arc<Driver<H>>) {
    let Some(rounds) = driver.tracer.rounds() else { return };
    driver.step(|machine, now| match machine {
        ProtocolMachine::Node(node) => node.trace(rounds, now),
        ProtocolMachine::Scheduler(_) => {}
    });
}

/// Statistics of the process, as one more member of the store's.
pub(crate) fn facts<H: DriverHost>(driver: &Arc<Driver<H>>) -> String {
    let said = driver.step(|machine, now| match machine {
        ProtocolMachine::Node(node) => Some(node.facts(now)),
        ProtocolMachine::Scheduler(_) => None,
    });
    let facts = said.flatten().map(|said| {
        // Lists would change the length between two calls.
        let said = kvstore_protocol::ProcessStats { waiting: Vec::new(), late: Vec::new(), ..said };
        observer::facts(&said, None)
    });
    let json = facts.and_then(|facts| serde_json::to_string(&facts).ok());
    json.map_or_else(String::new, |json| format!(",\"node\":{json}"))
}
