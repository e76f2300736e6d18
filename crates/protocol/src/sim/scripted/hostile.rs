//! Hostile peers, with arbitrary frames.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Job;
use crate::drops::{DropCount, DropReason};
use crate::job::{Failure, Peer, Reason, Role, Time};
use crate::machine::Machine as _;
use crate::message::kinds::{
    Alive, Awaited, Barrier, Begun, Credit, Declare, Describe, Done, Failed, Form, Formed, GivenUp,
    Grant, Init, LAST_STEP, Leave, NO_BARRIER, NO_EXCHANGE, NO_GENERATION, NO_RESUME, NO_ROUND,
    Offer, Place, Pull, Push, Ready, Refused, Released, Remove, Removed, Report, Restore, Resume,
    Resumed, Segment, Setting, Suspect, TOO_LONG, Value,
};
use crate::message::{
    Body, Book, Decision, ExitNotice, Field as _, GroupTerms, Header, Hello, KeySpec, Look,
    Message, MessageKind, Placement, Proposal, ResumePoint,
};
use crate::peers::{OutgoingFrame, PeerEvent};
use crate::sim::{Bytes, Random, a_push, limits};
use crate::testing::AnyNode;

/// The group of some messages.
const GROUP: u64 = 5;

/// A process with the stream of a linked peer may send anything: no machine panics, and no other peer is
/// affected.
#[test]
fn messages_of_any_content_are_survived() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let limits = limits();
        let mut job = Job::started(&limits);
        job.init_all(2, 0, 12);
        job.push(0, 0, 12).unwrap();
        if random.one_in(2) {
            job.form_all(GROUP, "g", &[0, 1]);
        }
        let (to, from) = match random.below(3) {
            0 => ("server-0", Peer::worker(1)),
            1 => ("worker-0", Peer::server(0)),
            _ => ("scheduler", Peer::worker(1)),
        };
        let address = format!("{from}").replace(' ', "-");
        let mut hostile = job.nodes.remove(&*address).unwrap();
        for sequence in 1..40 {
            let message = any_message(&mut random, sequence);
            // The stream is a valid one; only its messages are not.
            hostile.say(if to == "scheduler" { Peer::SCHEDULER } else { peer_of(to) }, message);
            for OutgoingFrame { to: receiver, message, .. } in hostile.send(job.now) {
                match job.nodes.get_mut(&receiver) {
                    Some(node) => node.receive(message, job.now),
                    None if &*receiver == "scheduler" => job.scheduler.receive(message, job.now),
                    None => {}
                }
            }
            job.settle();
        }
        job.pass(limits.peer_timeout * 2);
    }
}

/// Dropped frames: senders, kinds and reasons.
fn drops(news: Vec<PeerEvent>) -> Vec<(Peer, MessageKind, DropReason)> {
    let drop = |news| match news {
        PeerEvent::Dropped(peer, kind, why) => Some((peer, kind, why)),
        _ => None,
    };
    news.into_iter().filter_map(drop).collect()
}

/// A message that no correct process sends to this one, and the reason for which it has no effect.
type Fault = (Message<Bytes>, DropReason);

/// The message with other fields, which cannot be read or do not belong to it.
fn with(message: impl Into<Message<Bytes>>, fields: &[u8]) -> Message<Bytes> {
    Message { body: Body::Fields(fields.to_vec()), ..message.into() }
}

fn invalid(message: impl Into<Message<Bytes>>, why: &'static str) -> Fault {
    (message.into(), DropReason::Invalid(why))
}

const KEY: KeySpec = KeySpec { dtype: 2 | 32 << 8 | 1 << 16, shape: Vec::new(), whole: true };
const UNPLACED: &str = "its placement cannot be read, or does not make up the key";

fn placement(servers: Vec<u16>) -> Placement {
    Placement { spec: KeySpec { shape: vec![12], ..KEY }, slice_bytes: 48, servers }
}

fn push_of(generation: u32, round: u64, total: u64) -> Push<Bytes> {
    a_push(0, (generation, round), total, Bytes::new(&[0; 48]))
}

/// Messages of a server to a worker. `pull` is an open request for a value of 48 bytes.
fn faults_of_a_server(pull: u64) -> Vec<Fault> {
    let place = |generation, servers| Place {
        key: 0,
        generation,
        name: 0,
        setting: 0,
        request: pull,
        provide: false,
        differs: false,
        decision: Decision::Key(Arc::new(placement(servers))),
    };
    let grant = |generation, round| Grant { key: 0, generation, slice: 0, round };
    let value = |generation, slice, request, len: usize| {
        let data = Bytes::new(&vec![0; len]);
        Value { key: 0, generation, slice, round: 0, request, data }
    };
    let removed = |generation, of_directory| Removed {
        key: 0,
        generation,
        request: pull,
        of_directory,
        back: false,
    };
    let failure = Failure::new(Reason::KeyNotFound, "");
    let failed = |request| {
        let failure = failure.clone();
        Failed { key: 0, generation: 1, slice: 0, request, failure }
    };
    let setting =
        Place { setting: 1, decision: Decision::Setting(Vec::new()), ..place(0, vec![0]) };
    let data = Message { body: Body::Data(Bytes::new(&[0])), ..grant(1, 1).into() };
    vec![
        (push_of(1, 1, 48).into(), DropReason::Misdirected),
        invalid(place(0, vec![0]), NO_GENERATION),
        invalid(with(place(1, vec![0]), &placement(vec![0]).encode()[1..]), UNPLACED),
        invalid(place(1, vec![0, 0]), UNPLACED),
        (place(1, vec![99]).into(), DropReason::Misfit),
        (setting.into(), DropReason::Misfit),
        invalid(grant(0, 1), NO_GENERATION),
        invalid(grant(1, 0), NO_ROUND),
        invalid(grant(1, u64::MAX), NO_ROUND),
        invalid(with(grant(1, 1), &[0]), "its kind has no payload"),
        invalid(data, "its payload is data where its kind has fields"),
        (grant(1, 9).into(), DropReason::Late),
        invalid(Credit { bytes: 0 }, "it returns no credit"),
        invalid(value(0, 0, pull, 48), NO_GENERATION),
        invalid(with(value(1, 0, pull, 48), &[0]), "its payload is not data"),
        (value(1, 0, u64::MAX, 48).into(), DropReason::Unasked),
        (value(1, 0, pull, 15).into(), DropReason::Misfit),
        (value(1, 77, pull, 16).into(), DropReason::Misfit),
        (value(2, 0, pull, 48).into(), DropReason::Late),
        invalid(removed(0, true), NO_GENERATION),
        invalid(removed(1, false), "only the directory decides on a removal"),
        (removed(1, true).into(), DropReason::Late),
        invalid(
            with(Awaited { request: pull, round: 0, peers: Vec::new() }, &[9]),
            "its list of members cannot be read",
        ),
        invalid(with(failed(pull), &[]), "its failure cannot be read"),
        (failed(1 << 40).into(), DropReason::Unasked),
    ]
}

/// Messages of a worker to a server with a slice of 48 bytes.
/// Of worker 1, in a group that it has not made known.
fn faults_in_groups() -> Vec<Fault> {
    let form = |name: &str, ranks: &[u32]| {
        let terms = GroupTerms { name: name.into(), ranks: ranks.to_vec() };
        Form { request: 0, terms }
    };
    let unnamed = "its group has no name, or no ascending ranks";
    let faults = vec![
        invalid(with(form("g", &[1]), &[1]), "its group cannot be read"),
        invalid(form("", &[1]), unnamed),
        invalid(form("g", &[]), unnamed),
        invalid(form("g", &[1, 0]), unnamed),
        invalid(form("g", &[1, 1]), unnamed),
        (form("g", &[0]).into(), DropReason::Misdirected),
        (form("g", &[1, 9]).into(), DropReason::Misdirected),
        (Formed { request: 0 }.into(), DropReason::Late),
        (push_of(1, 1, 48).into(), DropReason::Late),
        (Barrier { number: 1 }.into(), DropReason::Late),
        (Leave { back: true }.into(), DropReason::Late),
    ];
    let in_group = |(mut message, why): Fault| {
        message.head.group = GROUP;
        (message, why)
    };
    faults.into_iter().map(in_group).collect()
}

fn faults_of_a_worker() -> Vec<Fault> {
    let declare = |setting, back| Declare {
        key: 0,
        setting,
        request: 0,
        learn: false,
        back,
        proposal: Proposal::Setting(Vec::new()),
    };
    let ready = |generation, setting| Ready { key: 0, generation, setting, request: 0 };
    let init = |generation, total, len: usize| {
        let data = Bytes::new(&vec![0; len]);
        Init { key: 0, generation, slice: 0, offset: 0, total, request: 0, data }
    };
    let offer = |key, generation, round| Offer { key, generation, slice: 0, round };
    let pull = |generation, round| Pull {
        key: 0,
        generation,
        slice: 0,
        round,
        request: 0,
        priority: 0,
        wanted: None,
    };
    let remove = |generation, at_directory, back| Remove {
        key: 0,
        generation,
        request: 0,
        at_directory,
        back,
    };
    let describe =
        |generation| Describe { key: 0, generation, place: Arc::new(placement(vec![0])) };
    let restore = |generation| {
        let data = Bytes::new(&[0; 48]);
        Restore { key: 0, generation, slice: 0, request: 0, data }
    };
    let end = "the end of a list of pushes is of no key";
    vec![
        (with(Book::default(), &Book::default().encode()), DropReason::Misdirected),
        invalid(declare(1, true), "a setting is not withdrawn"),
        invalid(with(declare(0, false), &[1]), "its proposal of a key cannot be read"),
        invalid(ready(0, 0), NO_GENERATION),
        (ready(1, 0).into(), DropReason::Outdated),
        (ready(1, 9).into(), DropReason::Late),
        invalid(init(0, 48, 48), NO_GENERATION),
        invalid(init(1, 15, 48), TOO_LONG),
        (init(1, 15, 15).into(), DropReason::Misfit),
        invalid(push_of(0, 1, 48), NO_GENERATION),
        invalid(push_of(1, 0, 48), NO_ROUND),
        invalid(push_of(1, 1, 47), TOO_LONG),
        invalid(offer(0, 0, 1), NO_GENERATION),
        invalid(offer(0, 1, 0), NO_ROUND),
        (offer(5, 1, 1).into(), DropReason::Late),
        invalid(pull(0, 0), NO_GENERATION),
        invalid(with(pull(1, 0), &[1]), "its payload is not data"),
        (pull(1, 1 << 63).into(), DropReason::Unanswerable),
        invalid(remove(0, true, false), NO_GENERATION),
        invalid(remove(1, false, true), "only the directory takes a removal back"),
        (remove(7, false, false).into(), DropReason::Late),
        invalid(describe(0), NO_GENERATION),
        invalid(with(describe(1), &[1]), UNPLACED),
        (describe(1).into(), DropReason::Outdated),
        invalid(restore(0), NO_GENERATION),
        (restore(7).into(), DropReason::Late),
        invalid(Done { key: 3, generation: 0, pushes: 1 }, end),
        (Done { key: 3, generation: 7, pushes: 1 }.into(), DropReason::Late),
    ]
}

/// Settings of a worker to a server.
fn faulty_settings() -> Vec<Fault> {
    vec![
        invalid(
            Setting { version: 0, request: 0, fields: Vec::new() },
            "versions of settings begin at 1",
        ),
        invalid(
            Setting { version: u64::MAX, request: 0, fields: Vec::new() },
            "servers merge nothing by a collective call",
        ),
    ]
}

/// Bundles of a worker to a server.
fn faulty_bundles() -> Vec<Fault> {
    let mut bundle = Message::bundle(vec![push_of(1, 1, 48).into()]);
    bundle.head.total = 2;
    vec![
        invalid(bundle, "its messages are not of the announced number"),
        invalid(Message::new(MessageKind::Bundle, Vec::new()), "its payload is not messages"),
    ]
}

/// Messages of a worker to the scheduler.
fn faults_of_a_member() -> Vec<Fault> {
    let hello =
        |address: &str, passed| Hello { address: address.into(), passed, ..Hello::default() };
    let suspect = |stage, peer| Suspect { stage, accused: (peer, 1) };
    let look = |address: &str| Look { address: address.into(), skip: 0 };
    let exit_notice = |launch, how: &str| ExitNotice { launch, how: how.into() };
    let report = Report { facts: Some(Box::default()) };
    let grant = Grant { key: 0, generation: 1, slice: 0, round: 1 };
    vec![
        (grant.into(), DropReason::Misdirected),
        invalid(Barrier { number: 0 }, NO_BARRIER),
        invalid(Resume::from(ResumePoint::default()), NO_RESUME),
        invalid(with(hello("a", 0), &[1]), "its introduction cannot be read"),
        invalid(hello("", 0), "it introduces a process without an address"),
        invalid(hello("a", 1), "its sender has passed more barriers than it arrived at"),
        invalid(suspect(2, Peer::server(0)), "a suspicion is raised or withdrawn"),
        invalid(suspect(0, Peer::SCHEDULER), "it suspects the scheduler that decides"),
        invalid(with(suspect(0, Peer::server(0)), &[1]), "the accused member cannot be read"),
        (suspect(0, Peer::server(9)).into(), DropReason::Outdated),
        invalid(with(look("a"), &[1]), "its query cannot be read"),
        invalid(look(""), "it has no address for the answer"),
        invalid(with(exit_notice(1, ""), &[1]), "its word on an end cannot be read"),
        invalid(exit_notice(0, ""), "it names no process"),
        invalid(exit_notice(1, "a\nb"), "its text is no short line"),
        (exit_notice(1, "gone").into(), DropReason::Outdated),
        invalid(with(report, &[1]), "its statistics cannot be read, or are too long"),
    ]
}

/// Messages of the scheduler to a worker; those that members take are not among them.
fn faults_of_the_scheduler() -> Vec<Fault> {
    let grant = Grant { key: 0, generation: 1, slice: 0, round: 1 };
    let seen = Message::new(MessageKind::Seen, vec![1]);
    vec![
        (grant.into(), DropReason::Misdirected),
        invalid(with(Book::default(), &[7]), "its address book cannot be read"),
        (Book::default().into(), DropReason::Outdated),
        invalid(
            with(Awaited { request: 0, round: 0, peers: Vec::new() }, &[7]),
            "its list of members cannot be read",
        ),
        invalid(Released { barrier: 0 }, NO_BARRIER),
        invalid(Resumed::from(ResumePoint::default()), NO_RESUME),
        invalid(segment(0, 0, 1), NO_EXCHANGE),
        invalid(segment(1, LAST_STEP + 1, 1), "an exchange has two steps"),
        invalid(segment(1, 0, 2), "the piece is not of its segment"),
        invalid(Begun { exchange: 0, what: 0, root: 0, dtype: 0, count: 0 }, NO_EXCHANGE),
        invalid(GivenUp { exchange: 0, failure: Failure::new(Reason::Timeout, "") }, NO_EXCHANGE),
        invalid(seen, "its state of the job cannot be read"),
        (Report { facts: Some(Box::default()) }.into(), DropReason::Misdirected),
        (Refused { failure: Failure::new(Reason::Refused, "") }.into(), DropReason::Outdated),
    ]
}

/// A piece of one byte, at an offset of a segment of one byte.
fn segment(exchange: u64, step: u32, end: u64) -> Segment<Bytes> {
    let data = Bytes::new(&[7]);
    let (what, root, dtype, count, offset, total) = (0, 0, 0, 0, end - 1, 1);
    let answer = false;
    Segment { exchange, what, root, dtype, count, step, offset, total, answer, data }
}

/// Whether messages of this kind are outside of the streams.
fn is_outside(kind: MessageKind) -> bool {
    use MessageKind::{ExitNotice, Look, Refused, Report, Seen};
    [Look, ExitNotice, Refused, Report, Seen].contains(&kind)
}

/// Sends a message and returns the frame in which it arrives.
fn frame_of(
    hostile: &mut AnyNode<Bytes>,
    to: (Peer, &str),
    message: Message<Bytes>,
    now: Time,
) -> Message<Bytes> {
    let kind = message.head.kind;
    hostile.say(to.0, message);
    let frames = hostile.send(now).filter(|frame| &*frame.to == to.1);
    let mut frame = frames.map(|frame| frame.message).find(|it| it.head.kind == kind).unwrap();
    if is_outside(kind) {
        frame.head.sequence = 0;
    }
    frame
}

/// The count of a kind and reason.
fn count(ignored: &[DropCount], kind: MessageKind, why: DropReason) -> u64 {
    let of = ignored.iter().filter(|it| (it.kind, it.reason) == (kind, why));
    of.map(|it| it.count).sum()
}

/// Sends the faults of a peer to a node; each is noted and counted by its kind and reason, once.
fn check_faults(job: &mut Job, mut hostile: AnyNode<Bytes>, to: (Peer, &str), faults: Vec<Fault>) {
    let by = hostile.me();
    for (number, (message, why)) in faults.into_iter().enumerate() {
        let kind = message.head.kind;
        let frame = frame_of(&mut hostile, to, message, job.now);
        let node = job.nodes.get_mut(to.1).unwrap();
        let before = count(&node.ignored(), kind, why);
        if number == 0 {
            let mut far = frame.clone();
            far.head.sequence += 10_000;
            node.receive(far, job.now);
            assert_eq!(drops(node.news()), [(by, kind, DropReason::Far)]);
        }
        node.receive(frame.clone(), job.now);
        assert_eq!(drops(node.news()), [(by, kind, why)], "{number}: {kind:?}");
        assert_eq!(count(&node.ignored(), kind, why), before + 1, "{number}: {kind:?} {why:?}");
        node.receive(frame, job.now);
        assert_eq!(drops(node.news()), [(by, kind, DropReason::Duplicate)], "{kind:?} again");
        job.settle();
    }
}

#[test]
fn what_a_worker_drops_of_a_server_is_noted() {
    let mut job = Job::started(&limits());
    job.init_all(2, 0, 12);
    job.nodes.values_mut().for_each(|node| assert_eq!(drops(node.news()), []));
    let hostile = job.nodes.remove("server-0").unwrap();
    let pull = job.pull(0, 0);
    check_faults(&mut job, hostile, (Peer::worker(0), "worker-0"), faults_of_a_server(pull));
    assert_eq!(job.result(0, pull), None, "it still waits");
}

#[test]
fn what_a_server_drops_of_a_worker_is_noted() {
    let faults = faults_of_a_worker().into_iter().chain(faulty_bundles());
    // A stream takes some messages without an acknowledgement.
    for faults in [faults.chain(faulty_settings()).collect(), faults_in_groups()] {
        let mut job = Job::started(&limits());
        job.init_all(2, 0, 12);
        job.nodes.values_mut().for_each(|node| assert_eq!(drops(node.news()), []));
        let hostile = job.nodes.remove("worker-1").unwrap();
        check_faults(&mut job, hostile, (Peer::server(0), "server-0"), faults);
    }
}

#[test]
fn what_the_scheduler_drops_is_noted() {
    let mut job = Job::started(&limits());
    drops(job.scheduler.news());
    let (by, to) = (Peer::worker(1), (Peer::SCHEDULER, "scheduler"));
    let mut hostile = job.nodes.remove("worker-1").unwrap();
    for (number, (message, why)) in faults_of_a_member().into_iter().enumerate() {
        let kind = message.head.kind;
        let frame = frame_of(&mut hostile, to, message, job.now);
        job.scheduler.receive(frame, job.now);
        assert_eq!(drops(job.scheduler.news()), [(by, kind, why)], "{number}");
        assert!(count(&job.scheduler.ignored(), kind, why) > 0, "{number}");
    }
    let mut frame = frame_of(&mut hostile, to, Alive {}.into(), job.now);
    frame.head.job += 1;
    job.scheduler.receive(frame, job.now);
    assert_eq!(drops(job.scheduler.news()), [(by, MessageKind::Alive, DropReason::OtherJob)]);
}

#[test]
fn what_a_member_drops_of_the_scheduler_is_noted() {
    for (message, why) in faults_of_the_scheduler() {
        for address in ["worker-0", "server-0"] {
            let mut job = Job::started(&limits());
            let me = job.nodes[address].me();
            let incarnation = job.scheduler.linked(me).unwrap().1;
            let node = job.nodes.get_mut(address).unwrap();
            let (mut message, kind) = (message.clone(), message.head.kind);
            (message.head.role, message.head.job) = (Role::Scheduler, limits().job);
            (message.head.incarnation, message.head.to_incarnation) = (1, incarnation);
            // The next sequence of the stream is among these.
            for sequence in 1..20 {
                message.head.sequence = if is_outside(kind) { 0 } else { sequence };
                node.receive(message.clone(), job.now);
            }
            drops(node.news());
            assert!(count(&node.ignored(), kind, why) > 0, "{kind:?} {why:?} at {address}");
        }
    }
}

/// Each sentence of the checks is that of one of these faults.
#[test]
fn every_check_of_a_message_has_a_message_that_fails_it() {
    let sources =
        [include_str!("../../message/kinds.rs"), include_str!("../../message/payload.rs")];
    let lines = sources.iter().flat_map(|text| text.lines());
    let code =
        lines.filter(|line| !line.trim_start().starts_with("//") && !line.contains("reason ="));
    let sentences = code.filter_map(|line| line.split('"').nth(1)).collect::<BTreeSet<_>>();
    let faults = faults_of_a_server(0).into_iter().chain(faults_of_a_worker());
    let faults = faults.chain(faulty_bundles()).chain(faulty_settings()).chain(faults_in_groups());
    let faults = faults.chain(faults_of_a_member()).chain(faults_of_the_scheduler());
    let told = faults.filter_map(|(_, why)| match why {
        DropReason::Invalid(why) => Some(why),
        _ => None,
    });
    let told = told.collect::<BTreeSet<_>>();
    assert!(sentences.len() > 25, "{sentences:?}");
    assert_eq!(sentences.difference(&told).collect::<Vec<_>>(), Vec::<&&str>::new());
}

fn peer_of(address: &str) -> Peer {
    match address {
        "server-0" => Peer::server(0),
        _ => Peer::worker(0),
    }
}

fn any_message(random: &mut Random, request: u64) -> Message<Bytes> {
    let kind = MessageKind::ALL[random.index(MessageKind::ALL.len())];
    if kind == MessageKind::Bundle {
        return Message::bundle(
            (0..random.below(4)).map(|_| any_message(random, request)).collect(),
        );
    }
    let small = |random: &mut Random| match random.below(8) {
        0 => u64::MAX,
        _ => random.below(4),
    };
    let head = Header {
        kind,
        key: small(random),
        generation: u32::try_from(random.below(3)).unwrap(),
        slice: u32::try_from(small(random) & 0xffff_ffff).unwrap(),
        round: small(random),
        offset: small(random),
        total: small(random),
        request: if random.one_in(2) { request } else { small(random) },
        setting: random.below(3),
        group: if random.one_in(4) { GROUP } else { 0 },
        flags: u16::try_from(random.below(8)).unwrap(),
        ..Header::default()
    };
    let bytes: Vec<u8> =
        (0..random.below(40)).map(|_| u8::try_from(random.below(4)).unwrap()).collect();
    let body = if kind.carries_data(bytes.len()) {
        Body::Data(Bytes::new(&bytes))
    } else {
        Body::Fields(bytes)
    };
    Message { head, body }
}
