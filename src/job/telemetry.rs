//! Telemetry of a process (also called: observability): its trace and its statistics.

use std::sync::Arc;

use crate::observer;
use crate::runtime::{Driver, DriverHost};
use kvstore_protocol::{DropCount, Machine as _, ProcessStats};

/// Connects the machine to the tracer.
pub(crate) fn trace<H: DriverHost>(driver: &Arc<Driver<H>>) {
    let Some(rounds) = driver.tracer.rounds() else { return };
    driver.step(|machine, now| machine.trace(rounds, now));
}

/// Statistics of a node, and its counts of frames and messages without an effect, as two more members of the
/// store's.
pub(crate) fn facts(said: Option<(ProcessStats, Vec<DropCount>)>) -> String {
    let members = said.and_then(|(said, ignored)| {
        // Lists would change the length between two calls.
        let said =
            ProcessStats { waiting: Vec::new(), late: Vec::new(), transports: Vec::new(), ..said };
        let node = serde_json::to_string(&observer::facts(&said, None)).ok()?;
        let ignored = ignored.iter().map(|DropCount { kind, reason, count }| {
            let (kind, reason) = (format!("{kind:?}"), reason.text());
            serde_json::json!({ "kind": kind, "reason": reason, "count": count })
        });
        let ignored: serde_json::Value = ignored.collect();
        Some(format!(",\"node\":{node},\"ignored\":{ignored}"))
    });
    members.unwrap_or_default()
}
