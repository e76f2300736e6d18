//! Hostile peers, with arbitrary frames.

use super::Job;
use crate::job::{MemberRole, Peer};
use crate::message::{Body, Header, KeySpec, Message, MessageKind, Placement};
use crate::peers::{OutgoingFrame, PeerEvent};
use crate::sim::{Bytes, Random, limits};

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

/// Reasons of dropped frames, with their senders.
fn drops(news: Vec<PeerEvent>) -> Vec<(Peer, &'static str)> {
    let drop = |news| match news {
        PeerEvent::Dropped(peer, why) => Some((peer, why.text())),
        _ => None,
    };
    news.into_iter().filter_map(drop).collect()
}

const UNREADABLE: &str = "that cannot be read, or is not for this process";
const UNASKED: &str = "that answers no request of this process";
const MISFIT: &str = "that does not fit the request or the key that it names";
const FAR: &str = "far ahead of the messages that have arrived";

/// Messages to a worker that no server of the protocol sends, and the reasons for which it drops them. `pull`
/// is an open request for a value of 48 bytes.
fn faults_of_a_server(pull: u64) -> Vec<(Message<Bytes>, &'static str)> {
    let spec = KeySpec { dtype: 2 | 32 << 8 | 1 << 16, shape: vec![12], whole: true };
    let place = |servers| Placement { spec: spec.clone(), slice_bytes: 48, servers }.encode();
    let answers = |kind, request, fields: &[u8]| {
        let mut message = Message::of_key(kind, 0, 1, fields.to_vec());
        message.head.request = request;
        if kind.carries_data() {
            message.body = Body::Data(Bytes::new(fields));
        }
        message
    };
    let mut strange = answers(MessageKind::Value, pull, &[0; 16]);
    strange.head.slice = 77;
    vec![
        (answers(MessageKind::Push, 0, &[0; 16]), UNREADABLE),
        (answers(MessageKind::Hello, 0, &[]), UNREADABLE),
        (answers(MessageKind::Place, pull, &place(vec![0])[1..]), UNREADABLE),
        (answers(MessageKind::Place, pull, &place(vec![99])), MISFIT),
        (answers(MessageKind::Awaited, pull, &[9]), UNREADABLE),
        (answers(MessageKind::Failed, pull, &[]), UNREADABLE),
        (answers(MessageKind::Failed, 1 << 40, &[4, 0, 0]), UNASKED),
        (answers(MessageKind::Value, u64::MAX, &[0; 48]), UNASKED),
        (answers(MessageKind::Value, pull, &[0; 15]), MISFIT),
        (strange, MISFIT),
    ]
}

#[test]
fn what_a_worker_drops_of_a_server_is_noted() {
    let limits = limits();
    let mut job = Job::started(&limits);
    job.init_all(2, 0, 12);
    job.nodes.values_mut().for_each(|node| assert_eq!(drops(node.news()), []));
    let mut hostile = job.nodes.remove("server-0").unwrap();
    let pull = job.pull(0, 0);
    let faults = faults_of_a_server(pull);
    for (number, (message, why)) in faults.into_iter().enumerate() {
        let kind = message.head.kind;
        hostile.say(Peer::worker(0), message);
        for OutgoingFrame { to, mut message, .. } in hostile.send(job.now) {
            let Some(node) = job.nodes.get_mut(&to).filter(|_| message.head.sequence > 0) else {
                continue;
            };
            if number == 0 {
                let sequence = message.head.sequence;
                message.head.sequence += 1_000;
                node.receive(message.clone(), job.now);
                assert_eq!(drops(node.news()), [(Peer::server(0), FAR)]);
                message.head.sequence = sequence;
            }
            node.receive(message.clone(), job.now);
            assert_eq!(drops(node.news()), [(Peer::server(0), why)], "{number}: {kind:?}");
            // A duplicate.
            node.receive(message, job.now);
            assert_eq!(drops(node.news()), [], "{kind:?} again");
        }
        job.settle();
    }
    assert_eq!(job.result(0, pull), None, "it still waits");
}

#[test]
fn what_a_server_drops_of_a_worker_is_noted() {
    let mut job = Job::started(&limits());
    job.init_all(2, 0, 12);
    job.nodes.values_mut().for_each(|node| assert_eq!(drops(node.news()), []));
    let mut hostile = job.nodes.remove("worker-1").unwrap();
    let mut init = Message::of_key(MessageKind::Init, 0, 1, Vec::new());
    init.body = Body::Data(Bytes::new(&[0; 15]));
    let mut never = Message::of_key(MessageKind::Pull, 0, 1, Vec::new());
    never.head.round = 1 << 63;
    let book = Message::new(MessageKind::Book, Vec::new());
    let faults = [(init, MISFIT), (never, "that can never be answered"), (book, UNREADABLE)];
    for (message, why) in faults {
        hostile.say(Peer::server(0), message);
        for OutgoingFrame { to, message, .. } in hostile.send(job.now) {
            if &*to == "server-0" {
                let node = job.nodes.get_mut(&to).unwrap();
                node.receive(message, job.now);
                assert_eq!(drops(node.news()), [(Peer::worker(1), why)]);
            }
        }
    }
}

#[test]
fn what_the_scheduler_drops_is_noted() {
    let mut job = Job::started(&limits());
    drops(job.scheduler.news());
    let mut hostile = job.nodes.remove("worker-1").unwrap();
    for kind in [MessageKind::Hello, MessageKind::Suspect, MessageKind::Grant, MessageKind::Look] {
        hostile.say(Peer::SCHEDULER, Message::new(kind, vec![1]));
    }
    let other = Message::new(MessageKind::Alive, Vec::new());
    hostile.say(Peer::SCHEDULER, other);
    let mut noted = Vec::new();
    for OutgoingFrame { to, mut message, .. } in hostile.send(job.now) {
        if &*to == "scheduler" {
            message.head.job += u64::from(message.head.kind == MessageKind::Alive);
            job.scheduler.receive(message, job.now);
            noted.extend(drops(job.scheduler.news()));
        }
    }
    let by = Peer::worker(1);
    assert_eq!(noted[..4], [(by, UNREADABLE); 4]);
    assert_eq!(noted[4..], [(by, "of another job")]);
}

#[test]
fn what_a_member_drops_of_the_scheduler_is_noted() {
    for (kind, is_read) in [
        (MessageKind::Book, false),
        (MessageKind::Awaited, false),
        (MessageKind::Grant, false),
        (MessageKind::Released, true),
    ] {
        for address in ["worker-0", "server-0"] {
            let mut job = Job::started(&limits());
            let node = job.nodes.get_mut(address).unwrap();
            drops(node.news());
            let mut message = Message::new(kind, vec![7]);
            (message.head.role, message.head.job) = (MemberRole::Scheduler, limits().job);
            message.head.incarnation = 1;
            // The next sequence of the stream is among these.
            for sequence in 1..20 {
                message.head.sequence = sequence;
                node.receive(message.clone(), job.now);
            }
            let noted = drops(node.news());
            assert_eq!(noted.is_empty(), is_read, "{kind:?}: {noted:?}");
            assert!(noted.iter().all(|drop| *drop == (Peer::SCHEDULER, UNREADABLE)), "{noted:?}");
        }
    }
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
        flags: u16::try_from(random.below(8)).unwrap(),
        ..Header::default()
    };
    let bytes: Vec<u8> =
        (0..random.below(40)).map(|_| u8::try_from(random.below(4)).unwrap()).collect();
    let body =
        if kind.carries_data() { Body::Data(Bytes::new(&bytes)) } else { Body::Fields(bytes) };
    Message { head, body }
}
