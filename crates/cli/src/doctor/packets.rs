//! Whether packets of full size pass, where small ones do (path MTU). A tunnel or an overlay on the
//! way may have a smaller maximum transmission unit than both ends, without a router that reports
//! it.

use std::time::Duration;

use kvstore::{Observer, State};

use super::case::DoctorContext;
use super::{CheckOutcome, bad, good, skipped};

/// Bytes that fit into one packet of any network, with all headers.
const SMALL: u32 = 64;
/// Bytes that fill several packets of any network, those of jumbo frames too.
const LARGE: u32 = 24 << 10;
/// Maximum number of servers that are probed.
const MOST: usize = 8;
/// Timeout of each probe; a network that works answers within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Which frames were answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnsweredFrames {
    pub(crate) small: bool,
    pub(crate) there: bool,
    pub(crate) back: bool,
}

impl AnsweredFrames {
    pub(crate) fn are_all(self) -> bool {
        self.small && self.there && self.back
    }
}

/// Sends a small and a large frame each way; `server` is the address of one, None the scheduler.
fn ask(case: &DoctorContext, server: Option<&str>) -> AnsweredFrames {
    let timeout = case.timeout.min(TIMEOUT);
    let passes = |there: u32, back: u32| {
        let there = usize::try_from(there).unwrap_or(usize::MAX);
        Observer::echo(case.config(), server, there, back, timeout).unwrap_or(false)
    };
    let small = passes(SMALL, SMALL);
    let (there, back) = (small && passes(LARGE, SMALL), small && passes(SMALL, LARGE));
    AnsweredFrames { small, there, back }
}

/// To the scheduler.
pub(crate) fn scheduler(case: &mut DoctorContext) -> CheckOutcome {
    if !case.reached {
        return skipped("nothing was reached");
    }
    if let Err(error) = case.open() {
        return skipped(error.message().to_owned());
    }
    let to = format!("the scheduler at {}", case.root().unwrap_or_default());
    let outcome = judge(&to, ask(case, None));
    case.loses_packets = matches!(outcome, CheckOutcome::Bad(..));
    outcome
}

/// To the servers that are there.
pub(crate) fn servers(case: &mut DoctorContext) -> CheckOutcome {
    let Some(view) = &case.view else { return skipped("no scheduler has answered") };
    let here = view.nodes.iter().filter(|node| node.role == "server" && node.state == State::Here);
    let servers: Vec<(u32, String)> =
        here.take(MOST).map(|node| (node.rank, node.address.clone())).collect();
    let mut silent = Vec::new();
    for (rank, address) in &servers {
        let to = format!("server {rank} at {address}");
        let passed = ask(case, Some(address));
        if passed.small && !passed.are_all() {
            return judge(&to, passed);
        }
        silent.extend((!passed.small).then_some(to));
    }
    match (servers.is_empty(), silent.is_empty()) {
        (true, _) => skipped("no server is there"),
        (false, true) => good(format!("full-size ones pass to and from {} servers", servers.len())),
        (false, false) => skipped(format!("no answer came from {}", silent.join(", "))),
    }
}

pub(crate) fn judge(to: &str, passed: AnsweredFrames) -> CheckOutcome {
    let ways = match (passed.there, passed.back) {
        _ if !passed.small => return skipped(format!("no answer came from {to}")),
        (true, true) => return good(format!("full-size ones pass to {to} and back")),
        (false, true) => "to",
        (true, false) => "from",
        (false, false) => "to and from",
    };
    bad(
        format!("MTU: full-size packets are lost on the way {ways} {to}, and small ones pass"),
        "a tunnel, an overlay or a router on the way drops packets larger than its MTU and does not say \
         so: set that MTU on the interfaces of both machines (`ip link set dev NAME mtu 1400`), or let \
         ICMP's \"fragmentation needed\" pass",
    )
}
