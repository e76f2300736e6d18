//! Gain of slices and their priorities, as in "Priority-based Parameter Propagation for Distributed DNN
//! Training" (Jayarajan et al., 2019), here P3. docs/internals/slicing.md has the whole table.

use std::rc::Rc;

use super::bandwidth::Nanos;
use super::trainer::Stage;
use super::training::{Job, Outcome, Setup};
use crate::job::{Limits, MS};
use crate::testing::{Net, resnet_50, vgg_19};

const MACHINES: u32 = 4;

/// Minimum elements of an array that MXNet splits over all servers.
const SPLIT: u64 = 1_000_000;

/// Exchange of gradients and weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Whole arrays, first in, first out, as in MXNet; large ones in as many parts as there are servers.
    Whole,
    /// Slices, first in, first out.
    Slices,
    /// Slices, those of the first layers first.
    Urgent,
}

/// Placement of servers, and the speed of their sums.
#[derive(Debug, Clone, Copy)]
struct Place {
    together: bool,
    adds: Option<u64>,
    hold_bytes: u64,
}

/// As P3 was measured, except that sums take no time and that servers may hold all early contributions.
const SHARED: Place = Place { together: true, adds: None, hold_bytes: 1 << 30 };
const APART: Place = Place { together: false, ..SHARED };

fn stages(net: &Net, way: Way) -> Rc<Vec<Stage>> {
    let (mut stages, mut count) = (Vec::new(), 0);
    for (layer, index) in net.layers.iter().zip(0..) {
        let mut keys = Vec::new();
        for elements in &layer.arrays {
            let splits = way == Way::Whole && *elements >= SPLIT;
            let parts = if splits { u64::from(MACHINES) } else { 1 };
            for part in 0..parts {
                let elements = elements * (part + 1) / parts - elements * part / parts;
                keys.push((count, elements * 4));
                count += 1;
            }
        }
        let forward = net.forward(layer);
        let priority = if way == Way::Urgent { -index } else { 0 };
        stages.push(Stage { keys, priority, forward, backward: 2 * forward });
    }
    Rc::new(stages)
}

/// Trains for some iterations. MXNet's variant has no windows, no credit, and no peer timeout.
fn train(net: &Net, way: Way, gbits: u64, place: Place) -> Outcome {
    let whole = way == Way::Whole;
    let limits = Limits {
        workers: MACHINES,
        servers: MACHINES,
        peer_timeout: if whole { 3_600_000 * MS } else { 5_000 * MS },
        block_elements: 2_048,
        slice_bytes: if whole { 1 << 40 } else { 256 << 10 },
        hold_bytes: if whole { 1 << 40 } else { place.hold_bytes },
        window_frames: if whole { 1_000 } else { 256 },
        window_bytes: if whole { 1 << 40 } else { 1 << 20 },
        ..super::limits()
    };
    let (stages, Place { together, adds, .. }) = (stages(net, way), place);
    Job::new(Setup { limits, gbits, together, adds, stages, iterations: 5 }).run()
}

/// Gain of the faster variant in equal time, of 1,000.
fn gain(slow: Nanos, fast: Nanos) -> i64 {
    i64::try_from((slow * 2_000 / fast).div_ceil(2)).unwrap() - 1_000
}

/// Gain of slices with priorities over MXNet's variant at each speed.
fn gains(net: &Net, speeds: &[u64], place: Place) -> Vec<i64> {
    let gain = |gbits: &u64| {
        let urgent = train(net, Way::Urgent, *gbits, place);
        assert_eq!(urgent.resent, 0, "{} at {gbits} Gbit/s", net.name);
        gain(train(net, Way::Whole, *gbits, place).iteration, urgent.iteration)
    };
    speeds.iter().map(gain).collect()
}

#[test]
fn slices_with_priorities_gain_much_and_never_lose() {
    for (net, speeds, best) in
        [(vgg_19(), [1, 4, 6, 10, 30], 220), (resnet_50(), [1, 2, 4, 6, 30], 220)]
    {
        let gains = gains(&net, &speeds, SHARED);
        assert!(gains.iter().all(|gain| *gain >= -10), "{}: {gains:?} of 1,000", net.name);
        assert!(gains.iter().any(|gain| *gain >= best), "{}: {gains:?} of 1,000", net.name);
    }
    let gains = gains(&vgg_19(), &[5], APART);
    assert!(gains[0] >= 800, "on machines of their own: {gains:?} of 1,000");
}

/// The tables of docs/internals/slicing.md.
#[test]
#[ignore = "prints, takes minutes"]
fn prints_the_table_of_priority_slicing() {
    let adding = Place { adds: Some(5), ..SHARED };
    let holding = Place { hold_bytes: 256 << 20, ..SHARED };
    let places = [
        ("sharing machines", SHARED),
        ("on machines of their own", APART),
        ("sharing machines, adding 5 GB/s", adding),
        ("sharing machines, hold_bytes as by default", holding),
    ];
    for (title, place) in places {
        for net in [vgg_19(), resnet_50()] {
            println!("\n{}, workers and servers {title}:\n", net.name);
            println!("| Gbit/s | whole, ms | slices, ms | urgent, ms | slices | urgent |");
            println!("|---|---|---|---|---|---|");
            for gbits in [1, 2, 4, 5, 6, 8, 10, 15, 20, 25, 30] {
                let times = [Way::Whole, Way::Slices, Way::Urgent]
                    .map(|way| train(&net, way, gbits, place).iteration);
                let ms = times.map(|time| (time / 1_000_000).to_string()).join(" | ");
                let gains = [1, 2].map(|way| percent(gain(times[0], times[way])));
                println!("| {gbits} | {ms} | {} |", gains.join(" | "));
            }
        }
    }
}

fn percent(mille: i64) -> String {
    let sign = if mille < 0 { "-" } else { "+" };
    format!("{sign}{}.{} %", mille.abs() / 10, mille.abs() % 10)
}
