// One process of a job over the machines of one build, `protocol`: its frames as bytes, the arithmetic of a
// server, the program of a worker. Both builds include it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use crate::{Ignored, Process, SCHEDULER, SERVERS, Seat, WORKERS};
use protocol::{
    Body, BundleParts, Data, DropReason, HEADER, Header, KeySpec, Limits, MS, Machine, Message,
    MessageKind, Mode, Node, NodeStart, OnLoss, OpId, PartialFrame, Peer, Scheduler, Server, SumOrder,
    ServerAction, SliceName, Worker, WorkerAction, copy, read_table, write, write_front,
    write_parts,
};

const F32: u32 = 2 | 32 << 8 | 1 << 16;
/// Elements of each key: one slice, and several.
const KEYS: [usize; 3] = [3, 40, 700];
const ROUNDS: u64 = 6;
/// Weight of the pushes to key 0.
const WEIGHT: u64 = 700;
/// Part of the pushes to key 0 in a tree.
const PART: u64 = 2 << 32;
const SCALE: u64 = 3 << 32;
const DEADLINE: u64 = 60_000 * MS;

#[derive(Clone)]
struct Bytes(Arc<[u8]>);

impl Bytes {
    fn of(elements: usize, value: f32) -> Self {
        Self(value.to_le_bytes().repeat(elements).into())
    }

    fn values(&self) -> Vec<f32> {
        self.0.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect()
    }
}

impl Data for Bytes {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn part(&self, at: u64, len: u64) -> Self {
        let (at, len) = (usize::try_from(at).unwrap(), usize::try_from(len).unwrap());
        Self(self.0[at..at + len].into())
    }
}

fn limits() -> Limits {
    Limits {
        job: 7,
        workers: WORKERS,
        servers: SERVERS,
        mode: Mode::Sync,
        on_loss: OnLoss::Fail,
        peer_timeout: 2_000 * MS,
        start_timeout: 20_000 * MS,
        embedded: false,
        block_elements: 4,
        slice_bytes: 512,
        hold_bytes: 1 << 16,
        max_rounds_ahead: 1,
        sum_order: SumOrder::Linear,
        window_frames: 16,
        window_bytes: 1 << 14,
        one_way_at_a_time: false,
    }
}

fn bytes(body: &Body<Bytes>) -> &[u8] {
    match body {
        Body::Fields(fields) => fields,
        Body::Data(data) => &data.0,
        Body::Parts(_) => panic!("a bundle in a bundle"),
    }
}

fn write_frame(message: &Message<Bytes>) -> Vec<u8> {
    let (head, mut frame) = (&message.head, vec![0; usize::try_from(message.frame_len()).unwrap()]);
    let len = match &message.body {
        Body::Parts(parts) => {
            let (front, payload) = frame.split_at_mut(head.len());
            let put = |body: &_, place: &mut _| Some(copy(bytes(body), place));
            let sum = write_parts(parts.messages(), payload, put).unwrap();
            write_front(head, payload.len(), sum, front) + payload.len()
        }
        body => write(head, bytes(body), &mut frame),
    };
    assert_eq!(len, frame.len());
    frame
}

fn body(head: &Header, payload: &[u8], checksum: u32) -> Body<Bytes> {
    assert_eq!(crc32c::crc32c(payload), checksum);
    let is_data = head.kind.carries_data(payload.len());
    if is_data { Body::Data(Bytes(payload.into())) } else { Body::Fields(payload.into()) }
}

fn read_frame(frame: &[u8]) -> Message<Bytes> {
    let (fixed, rest) = frame.split_first_chunk::<HEADER>().unwrap();
    let front = PartialFrame::new(fixed).expect("a frame of this version");
    let (fields, payload) = rest.split_at(front.extensions_len());
    let opened = front.open(fields, payload.len() as u64).expect("an intact header");
    assert_eq!(opened.payload, payload.len());
    if opened.head.kind != MessageKind::Bundle {
        let body = body(&opened.head, payload, opened.payload_checksum);
        return Message { head: opened.head, body };
    }
    let (table, mut rest) = payload.split_at(opened.head.covered(payload.len()));
    assert_eq!(crc32c::crc32c(table), opened.payload_checksum);
    let (mut parts, mut entries) = (BundleParts::default(), Vec::new());
    read_table(&opened.head, table, payload.len(), &mut parts, &mut entries).expect("a table");
    let filled = parts.fill(&entries, |head, entry| {
        let (own, others) = rest.split_at(entry.payload);
        rest = others;
        Ok::<_, Infallible>(body(head, own, entry.checksum))
    });
    let Ok(()) = filled;
    Message { head: opened.head, body: Body::Parts(Arc::new(parts)) }
}

/// What a role does beside its machine.
trait Part {
    fn act(&mut self, _now: u64) {}
}

/// A small number, which a float32 has exactly.
fn float(number: u64) -> f32 {
    f32::from(u16::try_from(number).unwrap())
}

/// A server whose value is the sum of the last round.
struct Summing {
    node: Node<Bytes, Server<Bytes>>,
    /// The value of each slice, and the sum of its open round.
    slices: BTreeMap<SliceName, (Bytes, Vec<f32>)>,
}

impl Part for Summing {
    fn act(&mut self, _: u64) {
        for action in self.node.part.actions().collect::<Vec<_>>() {
            match action {
                ServerAction::Install { slice, data, .. } => {
                    self.slices.insert(slice, (data, Vec::new()));
                }
                ServerAction::Add { slice, first, weight, part, scale, data, .. } => {
                    assert_eq!(weight, WEIGHT + slice.key, "releases share this field");
                    assert_eq!(part, PART + slice.key, "releases share this field");
                    assert_eq!(scale, SCALE + slice.key, "releases share this field");
                    let sum = &mut self.slices.get_mut(&slice).unwrap().1;
                    if first {
                        *sum = data.values();
                    } else {
                        sum.iter_mut().zip(data.values()).for_each(|(sum, value)| *sum += value);
                    }
                }
                ServerAction::Close { slice, .. } => {
                    let (value, sum) = self.slices.get_mut(&slice).unwrap();
                    *value = Bytes(sum.iter().flat_map(|it| it.to_le_bytes()).collect());
                }
                ServerAction::Answer(answer) => {
                    let value = self.slices[&answer.slice].0.clone();
                    self.node.part.value(&answer, value);
                }
                _ => {}
            }
        }
    }
}

/// A worker that initialises keys, makes rounds, and compares what it pulls with closed forms.
struct Training {
    node: Node<Bytes, Worker<Bytes>>,
    rank: u32,
    /// Stage of the program: 0 inits, then the rounds, then the end.
    stage: u64,
    /// Open calls: the elements that have arrived of those that read, and the expected element.
    open: BTreeMap<OpId, (Vec<Option<f32>>, f32)>,
}

impl Training {
    fn call(&mut self, now: u64) {
        let (program, rank, stage) = (&mut self.node.part, float(self.rank.into()), self.stage);
        let deadline = now + DEADLINE;
        self.stage += 1;
        match stage {
            0 => {
                for (key, elements) in (0..).zip(KEYS) {
                    let spec = KeySpec { dtype: F32, shape: vec![elements as u64], whole: false };
                    let data = Bytes::of(elements, 9.0);
                    let id = program.init(key, spec, data, now, deadline).unwrap();
                    self.open.insert(id, (Vec::new(), 0.0));
                }
                let id = program.set(b"a setting".to_vec(), now, deadline).unwrap();
                self.open.insert(id, (Vec::new(), 0.0));
            }
            1..=ROUNDS => {
                let scale = float(stage);
                let sum = (0..WORKERS).map(|rank| float(rank.into()) + 1.0).sum::<f32>() * scale;
                for (key, elements) in (0..).zip(KEYS) {
                    let data = Bytes::of(elements, (rank + 1.0) * scale);
                    program.weigh(WEIGHT + key);
                    program.set_part(PART + key);
                    program.scale(SCALE + key);
                    let id = if key % 2 == 0 {
                        program.pushpull(key, data, 0, now, deadline).unwrap()
                    } else {
                        let id = program.push(key, data, 0, now, deadline).unwrap();
                        self.open.insert(id, (Vec::new(), 0.0));
                        program.pull(key, 0, now, deadline).unwrap()
                    };
                    self.open.insert(id, (vec![None; elements], sum));
                }
                if stage % 2 == 0 {
                    let id = program.barrier(now, deadline).unwrap();
                    self.open.insert(id, (Vec::new(), 0.0));
                }
            }
            _ => {
                program.close(now, deadline).unwrap();
            }
        }
    }
}

impl Part for Training {
    fn act(&mut self, now: u64) {
        for action in self.node.part.actions().collect::<Vec<_>>() {
            match action {
                WorkerAction::Fill { op, at, data, .. } => {
                    let (out, _) = self.open.get_mut(&op).unwrap();
                    let places = &mut out[usize::try_from(at / 4).unwrap()..];
                    for (place, value) in places.iter_mut().zip(data.values()) {
                        assert_eq!(place.replace(value), None, "each element arrives once");
                    }
                }
                WorkerAction::Finished { op, result, .. } => {
                    assert_eq!(result.map_err(|failure| failure.to_string()), Ok(()));
                    if let Some((out, expected)) = self.open.remove(&op) {
                        assert!(out.iter().all(|it| *it == Some(expected)), "{out:?}: {expected}");
                    }
                }
                WorkerAction::Told { .. } => {}
            }
        }
        if self.open.is_empty() && self.stage <= ROUNDS + 1 {
            self.call(now);
        }
    }
}

/// The process of a role, which has the machine `machine`.
struct Running<P> {
    part: P,
    machine: fn(&mut P) -> &mut dyn Machine<Bytes>,
    look: fn(&P) -> &dyn Machine<Bytes>,
    unknown_fields: fn(&mut P, u64) -> u64,
}

impl Part for Scheduler<Bytes> {}

pub fn start(seat: Seat, now: u64) -> Box<dyn Process> {
    let address = seat.address();
    let node = |rank| NodeStart {
        rank: Some(rank),
        // No two processes of a role have the same.
        incarnation: now * 8 + u64::from(rank),
        address: &address,
        scheduler: SCHEDULER,
    };
    match seat {
        Seat::Scheduler => Box::new(Running {
            part: Scheduler::new(limits(), now * 8, now),
            machine: |part| part,
            look: |part| part,
            unknown_fields: |part, now| part.seen(0, 0, now).facts.counters.unknown_fields,
        }),
        Seat::Server(rank) => Box::new(Running {
            part: Summing { node: Node::new(limits(), &node(rank), now), slices: BTreeMap::new() },
            machine: |part| &mut part.node,
            look: |part| &part.node,
            unknown_fields: |part, now| part.node.facts(now).counters.unknown_fields,
        }),
        Seat::Worker(rank) => Box::new(Running {
            part: Training {
                node: Node::new(limits(), &node(rank), now),
                rank,
                stage: 0,
                open: BTreeMap::new(),
            },
            machine: |part| &mut part.node,
            look: |part| &part.node,
            unknown_fields: |part, now| part.node.facts(now).counters.unknown_fields,
        }),
    }
}

impl<P: Part> Process for Running<P> {
    fn receive(&mut self, frame: &[u8], now: u64) {
        (self.machine)(&mut self.part).receive(read_frame(frame), now);
    }

    fn step(&mut self, now: u64) -> Vec<(String, Vec<u8>)> {
        let machine = (self.machine)(&mut self.part);
        if machine.wake_at() <= now {
            machine.tick(now);
        }
        self.part.act(now);
        let machine = (self.machine)(&mut self.part);
        machine.news();
        let frames = machine.send(now);
        frames.map(|frame| (frame.to.to_string(), write_frame(&frame.message))).collect()
    }

    fn wake_at(&self) -> u64 {
        (self.look)(&self.part).wake_at()
    }

    fn end(&self) -> Option<Result<(), String>> {
        let end = (self.look)(&self.part).end()?;
        Some(end.clone().map_err(|failure| failure.to_string()))
    }

    fn ignored(&mut self, now: u64) -> Ignored {
        let fields = (self.unknown_fields)(&mut self.part, now);
        let mut ignored = Ignored { fields, ..Ignored::default() };
        for drop in (self.look)(&self.part).ignored() {
            if drop.reason == DropReason::UnknownKind {
                ignored.kinds += drop.count;
            }
            if !drop.reason.is_harmless() {
                ignored.faults.push(drop.reason.effect(drop.kind));
            }
        }
        ignored
    }

    fn features(&self, of: Seat) -> Option<u64> {
        let of = match of {
            Seat::Scheduler => Peer::SCHEDULER,
            Seat::Worker(rank) => Peer::worker(rank),
            Seat::Server(rank) => Peer::server(rank),
        };
        let machine = (self.look)(&self.part);
        (machine.has_started() && machine.linked(of).is_some()).then(|| machine.features(of))
    }
}
