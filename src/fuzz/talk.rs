//! A worker, or a reader, that sends arbitrary messages to a job that it joins or has joined.

use std::sync::Arc;

use crate::runtime::{BlockPool, Bytes};
use kvstore_protocol::testing::AnyNode;
use kvstore_protocol::{
    AuthenticatedPeer, Body, Header, Limits, MS, Machine as _, Message, MessageKind, Mode,
    NodeStart, OnLoss, Peer, Role, Scheduler, ServerAction, SumOrder, Time, is_at,
};

const LIMITS: Limits = Limits {
    job: 1,
    workers: 2,
    servers: 1,
    mode: Mode::Sync,
    on_loss: OnLoss::Continue,
    peer_timeout: 5_000 * MS,
    start_timeout: 20_000 * MS,
    embedded: false,
    block_elements: 4,
    slice_bytes: 16,
    hold_bytes: 1 << 10,
    max_rounds_ahead: 1,
    sum_order: SumOrder::Linear,
    window_frames: 32,
    window_bytes: 1 << 10,
    one_way_at_a_time: false,
};
/// The incarnations of the scheduler and worker 0, and of the server.
const LIFE: u64 = 7;
const OF_SERVER: u64 = 8;
const OF_OTHER: u64 = 9;
/// The process that the fuzz input plays.
const PLAYED: &str = "worker 0";
const READER: AuthenticatedPeer = AuthenticatedPeer { role: Role::Worker, rank: None, reads: true };

/// A scheduler, a server and two workers, the first of which the fuzz input plays.
struct FuzzJob {
    scheduler: Scheduler<Bytes>,
    nodes: Vec<(&'static str, AnyNode<Bytes>)>,
    blocks: Arc<BlockPool>,
    now: Time,
    /// The last sequence numbers of the streams of worker 0: to the scheduler, and to the server.
    sent: [u64; 2],
    /// Its credential, if it has one.
    speaker: Option<AuthenticatedPeer>,
}

impl FuzzJob {
    fn new(joined: bool, speaker: Option<AuthenticatedPeer>) -> Self {
        let node = |(role, rank, incarnation, address)| {
            let birth = NodeStart { rank: Some(rank), incarnation, address, scheduler: "root" };
            let mut node = AnyNode::new(role, LIMITS, &birth, 0);
            if let (AnyNode::Worker(worker), PLAYED, true) = (&mut node, address, speaker.is_some())
            {
                worker.only_read();
            }
            (address, node)
        };
        let nodes = [
            (Role::Worker, 0, LIFE, PLAYED),
            (Role::Server, 0, OF_SERVER, "server"),
            (Role::Worker, 1, OF_OTHER, "worker 1"),
        ];
        let (nodes, blocks) = (nodes.map(node).into(), Arc::default());
        let scheduler = Scheduler::new(LIMITS, LIFE, 0);
        let mut job = Self { scheduler, nodes, blocks, now: 0, sent: [0; 2], speaker };
        for _ in 0..if joined { 10 } else { 0 } {
            job.step();
        }
        assert_eq!(job.nodes.iter().all(|(_, node)| node.has_started()), joined);
        // From now on the fuzz input sends in its place.
        job.nodes.remove(0);
        job
    }

    /// Delivers all messages; those for worker 0 are dropped once it is played.
    fn step(&mut self) {
        self.now += MS;
        let now = self.now;
        let from_scheduler = self.scheduler.send(now).map(|frame| ("root", frame));
        let mut frames: Vec<_> = from_scheduler.collect();
        for (address, node) in &mut self.nodes {
            let sent: Vec<_> = node.send(now).collect();
            if *address == PLAYED {
                for frame in &sent {
                    let last = &mut self.sent[usize::from(&*frame.to != "root")];
                    *last = frame.message.head.sequence.max(*last);
                }
            }
            frames.extend(sent.into_iter().map(|frame| (*address, frame)));
        }
        for (from, frame) in frames {
            self.deliver(from, &frame.to, frame.message);
        }
        if self.scheduler.wake_at() <= now {
            self.scheduler.tick(now);
        }
        for (_, node) in &mut self.nodes {
            if node.wake_at() <= now {
                node.tick(now);
            }
            if let AnyNode::Server(node) = node {
                let server = &mut node.part;
                let actions: Vec<_> = server.actions().collect();
                assert!(server.held_bytes() <= LIMITS.hold_bytes, "more than it may hold");
                for action in actions {
                    if let ServerAction::Answer(answer) = action
                        && let Ok(block) = self.blocks.join(&[&[0; 16]])
                    {
                        server.value(&answer, Bytes::of_block(block));
                    }
                }
            }
        }
    }

    fn deliver(&mut self, from: &str, to: &str, mut message: Message<Bytes>) {
        let speaker = self.speaker.filter(|_| from == PLAYED);
        if speaker.is_some_and(|it| it.admit(from, &mut message).is_err()) {
            return;
        }
        let peer = Peer { role: message.head.role, rank: message.head.rank };
        let may =
            |linked: Option<(&str, u64)>| speaker.is_none() || is_at(&message.head, linked, from);
        if to == "root" {
            if !may(self.scheduler.linked(peer)) {
                return;
            }
            let before = speaker.map(|_| self.scheduler.standing(Peer::worker(0)));
            let started = self.scheduler.has_started();
            self.scheduler.receive(message, self.now);
            // Before the start it may take any place.
            if let Some(before) = before.filter(|_| started) {
                assert_eq!(self.scheduler.standing(Peer::worker(0)), before, "a reader changes it");
            }
        } else if let Some((_, node)) = self.nodes.iter_mut().find(|(address, _)| *address == to)
            && may(node.linked(peer))
        {
            node.receive(message, self.now);
        }
    }
}

/// Small numbers, powers of two, and the largest ones.
fn wide(byte: u8) -> u64 {
    match byte {
        0..0x80 => byte.into(),
        0x80..0xc0 => 1 << (byte - 0x80),
        _ => u64::MAX - u64::from(byte - 0xc0),
    }
}

fn narrow(byte: u8) -> u32 {
    u32::try_from(wide(byte)).unwrap_or(u32::MAX - u32::from(byte))
}

/// Plays a worker. The input is whether it has joined, then its messages. Each is 16 bytes, of which the last
/// is the length of the payload that follows.
pub fn talk(data: &[u8]) {
    play(data, None);
}

/// Like `talk`, with the credential of a reader: no frame changes what the scheduler knows of its peers.
pub fn reader(data: &[u8]) {
    play(data, Some(READER));
}

fn play(data: &[u8], speaker: Option<AuthenticatedPeer>) {
    let Some((joined, mut data)) = data.split_first() else { return };
    let mut job = FuzzJob::new(joined & 1 != 0, speaker);
    while let Some((front, rest)) = data.split_first_chunk() {
        let len = usize::from(front[15]).min(rest.len());
        let (payload, rest) = rest.split_at(len);
        if let Some((to, mut message)) = message(&mut job, front, payload) {
            // A reader may claim to be another process.
            if speaker.is_some() && front[0] & 8 != 0 {
                (message.head.rank, message.head.incarnation) = (1, OF_OTHER);
            }
            job.deliver(PLAYED, to, message);
        }
        job.now += u64::from(front[0] >> 4) * 100 * MS;
        job.step();
        data = rest;
    }
    for _ in 0..3 {
        job.step();
        job.now += 10_000 * MS;
    }
}

fn message(
    job: &mut FuzzJob,
    front: &[u8; 16],
    payload: &[u8],
) -> Option<(&'static str, Message<Bytes>)> {
    let [odd, kind, place, ack, key, generation, slice, round, rest @ ..] = *front;
    let [offset, total, request, setting, flags, codec, priority, _] = rest;
    let kind = *MessageKind::ALL.get(usize::from(kind) % MessageKind::ALL.len())?;
    let to_server = odd & 1 != 0;
    let last = &mut job.sent[usize::from(to_server)];
    *last += u64::from(place < 0xc0);
    let head = Header {
        kind,
        role: Role::Worker,
        job: LIMITS.job,
        incarnation: LIFE + u64::from(odd & 2 != 0),
        to_incarnation: match (odd & 4 == 0, to_server) {
            (true, true) => OF_SERVER,
            (true, false) => LIFE,
            (false, _) => 0,
        },
        sequence: if place < 0xc0 { *last } else { wide(place).wrapping_add(*last) },
        ack: wide(ack),
        key: wide(key),
        generation: narrow(generation),
        slice: narrow(slice),
        round: wide(round),
        offset: wide(offset),
        total: wide(total),
        request: wide(request),
        setting: wide(setting),
        flags: u16::from(flags),
        codec: u16::from(codec),
        priority: priority.into(),
        ..Header::default()
    };
    let of_kind = |kind: MessageKind| {
        let body = if kind.carries_data(payload.len()) {
            Body::Data(Bytes::of_block(job.blocks.join(&[payload]).ok()?))
        } else {
            Body::Fields(payload.to_vec())
        };
        Some(Message { head: Header { kind, ..head.clone() }, body })
    };
    let mut message = of_kind(kind)?;
    if kind == MessageKind::Bundle {
        let parts: Option<Vec<_>> = [MessageKind::Push, MessageKind::Pull, MessageKind::Value]
            .map(of_kind)
            .into_iter()
            .collect();
        message.body = Message::bundle(parts?).body;
    }
    Some((if to_server { "server" } else { "root" }, message))
}
