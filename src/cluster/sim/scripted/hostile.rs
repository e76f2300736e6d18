//! Peers that send anything.

use super::Job;
use crate::cluster::common::Peer;
use crate::cluster::net::Frame;
use crate::cluster::sim::{Bytes, Random, limits};
use crate::cluster::wire::{Body, Header, Kind, Message};

/// A process that speaks for a linked peer may send anything: nothing panics, no other peer is hurt.
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
            // The stream is the real one: only what is in it is not.
            hostile.say(if to == "scheduler" { Peer::SCHEDULER } else { peer_of(to) }, message);
            for Frame { to: receiver, message, .. } in hostile.send(job.now) {
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

fn peer_of(address: &str) -> Peer {
    match address {
        "server-0" => Peer::server(0),
        _ => Peer::worker(0),
    }
}

fn any_message(random: &mut Random, request: u64) -> Message<Bytes> {
    let kind = Kind::ALL[usize::try_from(random.below(Kind::ALL.len() as u64)).unwrap()];
    if kind == Kind::Bundle {
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
        request: if random.below(2) == 0 { request } else { small(random) },
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
