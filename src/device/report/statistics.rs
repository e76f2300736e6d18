//! The statistics of devices, for a store.

use std::fmt::Write;

use super::super::budget::MemoryBudget;
use super::super::context::Device;
use super::super::driver::{Driver, PINNED};

/// The members `pinned_bytes` and `devices` of a store's statistics: the devices that this process
/// uses, with the bytes of the store's keys on each.
pub(crate) fn statistics(budget: &MemoryBudget) -> String {
    let mut out = String::new();
    // A forked child has the counters of its parent, and cannot use the devices.
    let mut devices = if Driver::is_in_use() { Device::in_use() } else { Vec::new() };
    let pinned = if devices.is_empty() { 0 } else { PINNED.get() };
    let _ = write!(out, ",\"pinned_bytes\":{pinned},\"devices\":[");
    devices.sort_unstable_by_key(|device| device.ordinal);
    for (index, device) in devices.into_iter().enumerate() {
        let (comma, number) = (if index > 0 { "," } else { "" }, device.ordinal);
        let held = budget.held_on(number);
        let _ = write!(out, "{comma}{{\"device\":{number},\"key_bytes\":{held}");
        device.counters.put(&mut out);
        out.push('}');
    }
    out.push(']');
    out
}
