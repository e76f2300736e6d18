//! Composes the public view of a job from the scheduler's answers.

use std::collections::BTreeMap;

use super::view::{
    Facts, LATENCY_BOUNDS_US, Latency, Node, Rates, State, TransportUse, View, WaitedFor, Waiting,
};
use crate::key::Key;
use kvstore_protocol::{
    Histogram, JobView, MS, MemberReport, MemberState, Mode, Peer, ProcessStats, Role, Time,
    WaitingCall,
};

/// Reports of the previous look, for comparison.
pub(crate) type PreviousReports = BTreeMap<Peer, ProcessStats>;

const MOST_MISSING: usize = 64;
/// Time after which a waiting call counts as held up by the peers it waits for.
const LONG: Time = 1_000 * MS;
/// Minimum share of all waiting, in per cent, that was for a straggler alone,
const MOST_OF_IT: u64 = 60;
/// and its minimum share of the elapsed time, in per mille.
const SOME_TIME: u64 = 50;

/// The public view of a job; stores the reports of this look in `before`.
pub(crate) fn view(root: &str, seen: &JobView, before: &mut PreviousReports) -> View {
    let terms = seen.terms.as_ref();
    let silent = terms.map_or(Time::MAX, |terms| terms.peer_timeout / 4);
    let scheduler = MemberReport {
        peer: Peer::SCHEDULER,
        state: MemberState::Here,
        address: root.into(),
        heard: Some(0),
        report: Some((0, seen.facts.clone())),
    };
    let mut sights: Vec<&MemberReport> = std::iter::once(&scheduler).chain(&seen.sights).collect();
    // By name: the scheduler, servers, workers.
    sights.sort_unstable_by_key(|sight| (sight.peer.role.name(), sight.peer.rank));
    let view = View {
        root: root.into(),
        clock_ms: seen.clock / MS,
        started: seen.epoch > 0,
        kind: terms.map(|terms| match terms.mode {
            Mode::Sync => "dist_sync",
            Mode::Async { .. } => "dist_async",
        }),
        num_workers: seen.workers,
        num_servers: seen.servers,
        epoch: seen.epoch,
        peer_timeout_ms: terms.map(|terms| terms.peer_timeout / MS),
        hold_bytes: terms.map(|terms| terms.hold_bytes),
        missing: missing(seen),
        slowest_worker: straggler(seen, before),
        nodes: sights.iter().map(|sight| node(sight, silent, before)).collect(),
    };
    let said = |sight: &&MemberReport| Some((sight.peer, sight.report.as_ref()?.1.clone()));
    *before = sights.iter().filter_map(said).collect();
    view
}

fn missing(seen: &JobView) -> Vec<String> {
    let servers = (0..seen.servers).map(Peer::server);
    let workers = (0..seen.workers).map(Peer::worker);
    let known = |peer: &Peer| seen.sights.iter().any(|sight| sight.peer == *peer);
    let missing = servers.chain(workers).filter(|peer| !known(peer));
    missing.take(MOST_MISSING).map(|peer| peer.to_string()).collect()
}

fn node(sight: &MemberReport, silent: Time, before: &PreviousReports) -> Node {
    let is_silent = sight.heard.is_none_or(|ago| ago > silent);
    let state = match sight.state {
        MemberState::Here if is_silent => State::Silent,
        MemberState::Here => State::Here,
        MemberState::Lost => State::Lost,
        MemberState::Left => State::Left,
    };
    Node {
        role: sight.peer.role.name(),
        rank: sight.peer.rank,
        address: sight.address.clone(),
        state,
        heard_ms: sight.heard.map(|ago| ago / MS),
        report_ms: sight.report.as_ref().map(|(ago, _)| ago / MS),
        facts: sight.report.as_ref().map(|(_, said)| facts(said, last(sight, before))),
    }
}

/// Report of the process, in the same incarnation, at the previous look.
fn last<'a>(sight: &MemberReport, before: &'a PreviousReports) -> Option<&'a ProcessStats> {
    let age = sight.report.as_ref()?.1.age;
    before.get(&sight.peer).filter(|old| old.age <= age)
}

/// Facts of one process, compared with its previous report.
pub(crate) fn facts(said: &ProcessStats, before: Option<&ProcessStats>) -> Facts {
    let latency = |now: &Histogram, old: fn(&ProcessStats) -> &Histogram| {
        let recent = before.map_or_else(|| now.clone(), |before| now.since(old(before)));
        Latency {
            count: now.count(),
            p50_us: recent.quantile(500),
            p99_us: recent.quantile(990),
            sum_us: now.sum,
            below: LATENCY_BOUNDS_US.map(|bound| now.below(bound.ilog2())),
        }
    };
    Facts {
        age_s: seconds(said.age),
        counters: said.counters,
        rates: before.and_then(|before| rates(said, before)),
        push: latency(&said.push, |before| &before.push),
        pull: latency(&said.pull, |before| &before.pull),
        pushpull: latency(&said.pushpull, |before| &before.pushpull),
        pending: said.pending,
        waiting: said.waiting.iter().map(waiting).collect(),
        waited_for: said
            .late
            .iter()
            .map(|late| WaitedFor {
                worker: late.rank,
                rounds: late.rounds,
                seconds: seconds(late.time),
            })
            .collect(),
        transports: said.transports.iter().map(transport).collect(),
    }
}

fn rates(now: &ProcessStats, before: &ProcessStats) -> Option<Rates> {
    let over_s = seconds(now.age.saturating_sub(before.age));
    if over_s <= 0.0 {
        return None;
    }
    let (now, before) = (&now.counters, &before.counters);
    let rate = |now: u64, before: u64| number(now.saturating_sub(before)) / over_s;
    Some(Rates {
        over_s,
        bytes_in_per_s: rate(now.bytes_in, before.bytes_in),
        bytes_out_per_s: rate(now.bytes_out, before.bytes_out),
        rounds_per_s: rate(now.rounds, before.rounds),
    })
}

fn waiting(call: &WaitingCall) -> Waiting {
    let key = match &call.name {
        _ if !call.call.has_key() => None,
        name if name.is_empty() => Some(number_of(call.key)),
        name => Some(name.clone()),
    };
    Waiting {
        call: call.call.name(),
        key,
        round: call.round,
        age_ms: call.age / MS,
        awaited: call.awaited.iter().map(ToString::to_string).collect(),
    }
}

fn transport(used: &kvstore_protocol::TransportUse) -> TransportUse {
    TransportUse {
        transport: used.transport.clone(),
        peers: used.peers.iter().map(ToString::to_string).collect(),
        count: used.count,
        others: used.others.clone(),
    }
}

/// Text of a key whose name is unknown.
fn number_of(key: u64) -> String {
    if Key::from(key).id() >> 63 == 0 { key.to_string() } else { format!("{key:#018x}") }
}

/// The straggler that other workers wait for: now and for long, or most of the time since the previous look.
fn straggler(seen: &JobView, before: &PreviousReports) -> Option<u32> {
    let mut awaited: BTreeMap<u32, u64> = BTreeMap::new();
    let mut late: BTreeMap<u32, u64> = BTreeMap::new();
    let mut over: Time = 0;
    for sight in &seen.sights {
        let Some((_, said)) = &sight.report else { continue };
        for call in said.waiting.iter().filter(|call| call.age >= LONG) {
            let workers = call.awaited.iter().filter(|peer| peer.role == Role::Worker);
            workers.for_each(|peer| *awaited.entry(peer.rank).or_default() += 1);
        }
        let Some(old) = last(sight, before) else { continue };
        over = over.max(said.age - old.age);
        for now in &said.late {
            let old = old.late.iter().find(|old| old.rank == now.rank);
            let more = now.time.saturating_sub(old.map_or(0, |old| old.time));
            *late.entry(now.rank).or_default() += more;
        }
    }
    // A worker that waits for its turn does not keep other workers waiting.
    let most = |counts: &BTreeMap<u32, u64>| {
        counts
            .iter()
            .max_by_key(|(rank, count)| (**count, std::cmp::Reverse(**rank)))
            .map(|(rank, count)| (*rank, *count))
    };
    if let Some((rank, _)) = most(&awaited) {
        return Some(rank);
    }
    let all: u64 = late.values().sum();
    let (rank, time) = most(&late)?;
    (time * 100 >= all * MOST_OF_IT && time * 1_000 >= over * SOME_TIME && time > 0).then_some(rank)
}

fn seconds(time: Time) -> f64 {
    number(time) / 1e6
}

#[allow(clippy::cast_precision_loss, reason = "for people, and for formats with float64 only")]
pub(crate) fn number(count: u64) -> f64 {
    count as f64
}
