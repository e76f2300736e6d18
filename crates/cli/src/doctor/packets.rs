//! Whether packets of full size pass, where small ones do (path MTU). A tunnel or an overlay on the
//! way may have a smaller maximum transmission unit than both ends, without a router that reports
//! it.

use std::time::Duration;

use kvstore::{Observer, State};

use super::case::DoctorContext;
use super::{CheckResult, Finding, bad, skipped};

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

/// Sends a small and a large frame each way; `server` is the address of one, None the scheduler.
fn ask(case: &DoctorContext, server: Option<&str>) -> AnsweredFrames {
    let timeout = case.timeout.min(TIMEOUT);
    let passes = |there: u32, back: u32| {
        let there = usize::try_from(there).unwrap_or(usize::MAX);
        Observer::echo(&case.config, server, there, back, timeout).unwrap_or(false)
    };
    let small = passes(SMALL, SMALL);
    let (there, back) = (small && passes(LARGE, SMALL), small && passes(SMALL, LARGE));
    AnsweredFrames { small, there, back }
}

/// To the scheduler.
pub(crate) fn scheduler(case: &mut DoctorContext) -> CheckResult {
    if !case.reached {
        return Err(skipped("nothing was reached"));
    }
    case.open().as_ref().map_err(|error| skipped(error.message()))?;
    let to = format!("the scheduler at {}", case.root().unwrap_or_default());
    let result = judge(&to, ask(case, None));
    case.loses_packets = matches!(result, Err(Finding::Bad(..)));
    result
}

/// To the servers that are there.
pub(crate) fn servers(case: &mut DoctorContext) -> CheckResult {
    let view = case.view.as_ref().ok_or_else(|| skipped("no scheduler has answered"))?;
    let here = view.nodes.iter().filter(|node| node.role == "server" && node.state == State::Here);
    let servers: Vec<(u32, String)> =
        here.take(MOST).map(|node| (node.rank, node.address.clone())).collect();
    let mut silent = Vec::new();
    for (rank, address) in &servers {
        let to = format!("server {rank} at {address}");
        match judge(&to, ask(case, Some(address))) {
            Ok(_) => {}
            Err(Finding::Skipped(_)) => silent.push(to),
            lost => return lost,
        }
    }
    match (servers.is_empty(), silent.is_empty()) {
        (true, _) => Err(skipped("no server is there")),
        (false, true) => Ok(format!("full-size ones pass to and from {} servers", servers.len())),
        (false, false) => Err(skipped(format!("no answer came from {}", silent.join(", ")))),
    }
}

pub(crate) fn judge(to: &str, passed: AnsweredFrames) -> CheckResult {
    let ways = match (passed.there, passed.back) {
        _ if !passed.small => return Err(skipped(format!("no answer came from {to}"))),
        (true, true) => return Ok(format!("full-size ones pass to {to} and back")),
        (false, true) => "to",
        (true, false) => "from",
        (false, false) => "to and from",
    };
    Err(bad(
        format!("MTU: full-size packets are lost on the way {ways} {to}, and small ones pass"),
        "a tunnel, an overlay or a router on the way drops packets larger than its MTU and does not say \
         so: set that MTU on the interfaces of both machines (`ip link set dev NAME mtu 1400`), or let \
         ICMP's \"fragmentation needed\" pass",
    ))
}
