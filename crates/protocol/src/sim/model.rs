//! Reference model of a cluster (also: oracle), without messages: plain loops over numbers.

use std::collections::{BTreeMap, BTreeSet};

use super::Bytes;
use super::scenario::Scenario;
use crate::job::Mode;
use crate::message::SliceName;
use crate::server::{Server, ServerAction};
use crate::testing::Random;

/// Values that a worker pushes in a round to one element; round 0 is its first value. The magnitudes differ
/// so much that a sum in any other order has other bits.
pub(super) fn value_of(key: u64, rank: u32, round: u64, element: u64) -> f32 {
    let seed = key << 48 ^ u64::from(rank) << 40 ^ round << 20 ^ element;
    let mut random = Random::new(seed);
    let size = i32::try_from(random.below(16)).unwrap() - 8;
    let digits = f32::from(u16::try_from(random.below(65_536)).unwrap()) / 32_768.0 - 1.0;
    digits * 2f32.powi(size)
}

/// Weight of a push, as the bits of a message; a third of the pushes have none.
pub(super) fn weight_of(key: u64, rank: u32, round: u64) -> u64 {
    let number = key + 5 * u64::from(rank) + round;
    if number.is_multiple_of(3) { 0 } else { number << 40 | round }
}

/// Part of a push in a tree, as the number of a message; half of the pushes have none.
pub(super) fn part_of(key: u64, rank: u32, round: u64) -> u64 {
    let number = key + 3 * u64::from(rank) + round;
    if number.is_multiple_of(2) { 0 } else { number << 32 | u64::from(rank) }
}

/// Scale of the round of a push, as the bits of a message; a quarter of the pushes have one.
pub(super) fn scale_of(key: u64, rank: u32, round: u64) -> u64 {
    let number = key + u64::from(rank) + 3 * round;
    if number % 4 == 1 { number << 20 | 1 } else { 0 }
}

/// Merge rule of a setting: none replaces the value; a setting halves it and adds the scaled sum.
fn merge(stored: f32, sum: f32, scale: Option<f32>) -> f32 {
    match scale {
        None => sum,
        Some(scale) => stored * 0.5 + scale * sum,
    }
}

/// One slice of one key generation: the server's state, and the expected one.
#[derive(Debug)]
struct Log {
    /// Value as the server calculates it.
    stored: Vec<f32>,
    sum: Vec<f32>,
    /// Expected values: after the first value and after each round.
    history: Vec<Vec<f32>>,
    /// Contributions to each closed round and to the open one, with the worker's round.
    rounds: Vec<Vec<(u32, u64)>>,
    open: Vec<(u32, u64)>,
    provider: u32,
    first_element: u64,
}

#[derive(Debug)]
pub(super) struct Model {
    mode: Mode,
    elements: u64,
    logs: BTreeMap<SliceName, Log>,
    /// Key generations that a server has dropped: its rank, key and generation. Each server drops on its own.
    dropped: BTreeSet<(u32, u64, u32)>,
    settings: BTreeMap<u64, f32>,
    /// Pushes that have finished on their workers: key, generation, rank, round.
    made: BTreeSet<(u64, u32, u32, u64)>,
    /// Pushes that each program has begun in the present generation, by key and rank.
    begun: BTreeMap<(u64, u32), u64>,
    /// Settings that a program had made when it began a push, by key, rank and round.
    made_under: BTreeMap<(u64, u32, u64), u64>,
    /// Barriers that each worker has entered.
    arrived: BTreeMap<u32, u64>,
    /// Workers that no round or barrier waits for.
    pub(super) gone: BTreeSet<u32>,
    workers: u32,
    pub(super) closed: u64,
}

impl Model {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let limits = &scenario.limits;
        let block = limits.block_elements;
        Self {
            mode: limits.mode,
            elements: (limits.slice_bytes / 4 / block * block).max(block),
            logs: BTreeMap::new(),
            dropped: BTreeSet::new(),
            settings: BTreeMap::new(),
            made: BTreeSet::new(),
            begun: BTreeMap::new(),
            made_under: BTreeMap::new(),
            arrived: BTreeMap::new(),
            gone: BTreeSet::new(),
            workers: limits.workers,
            closed: 0,
        }
    }

    /// Carries out an action of a server, and checks it.
    pub(super) fn act(
        &mut self,
        rank: u32,
        server: &mut Server<Bytes>,
        action: ServerAction<Bytes>,
    ) {
        match action {
            ServerAction::Install { slice, data, .. } | ServerAction::Restore { slice, data } => {
                self.install(slice, &data);
            }
            ServerAction::Add {
                slice,
                round,
                rank: from,
                first,
                codec,
                weight,
                part,
                scale,
                data,
                ..
            } => {
                assert_eq!(codec, 0);
                let expected = weight_of(slice.key, from, round);
                assert_eq!(weight, expected, "not the weight that worker {from} pushed");
                let expected = part_of(slice.key, from, round);
                assert_eq!(part, expected, "not the part that worker {from} pushed");
                let expected = scale_of(slice.key, from, round);
                assert_eq!(scale, expected, "not the scale that worker {from} pushed");
                self.add(rank, slice, (round, from), first, &data);
            }
            ServerAction::Close { slice, round, setting } => self.close(slice, round, setting),
            ServerAction::Answer(answer) => server.value(&answer, self.stored(answer.slice)),
            ServerAction::Setting { version, fields } => self.set(version, &fields),
            ServerAction::Drop { key, generation, .. } => self.drop_key(rank, key, generation),
        }
    }

    /// Key 3 is on a single server: one slice.
    fn first_element(&self, slice: SliceName) -> u64 {
        u64::from(slice.slice) * self.elements
    }

    fn install(&mut self, slice: SliceName, data: &Bytes) {
        let first_element = self.first_element(slice);
        let values = data.values();
        let from = |rank: &u32| {
            let own = |(e, value): (u64, &f32)| {
                value_of(slice.key, *rank, 0, first_element + e).to_bits() == value.to_bits()
            };
            (0..).zip(&values).all(own)
        };
        let provider = (0..self.workers).find(from).expect("the first value is nobody's");
        let log = Log {
            stored: values.clone(),
            sum: Vec::new(),
            history: vec![values],
            rounds: Vec::new(),
            open: Vec::new(),
            provider,
            first_element,
        };
        self.logs.insert(slice, log);
    }

    /// A server drops a key that all workers have removed.
    fn drop_key(&mut self, server: u32, key: u64, generation: u32) {
        self.dropped.insert((server, key, generation));
    }

    fn set(&mut self, version: u64, fields: &[u8]) {
        let scale = f32::from_le_bytes(fields.try_into().unwrap());
        let known = self.settings.insert(version, scale);
        assert!(known.is_none_or(|known| known.to_bits() == scale.to_bits()), "two settings");
    }

    /// A server adds the contribution of a worker to a round.
    fn add(
        &mut self,
        server: u32,
        slice: SliceName,
        (round, rank): (u64, u32),
        first: bool,
        data: &Bytes,
    ) {
        let gone = self.dropped.contains(&(server, slice.key, slice.generation));
        assert!(!gone, "the key is gone");
        self.check_staleness(slice.key, rank, round);
        let log = self.logs.get_mut(&slice).expect("a slice that does not exist");
        let values = data.values();
        for (element, value) in (log.first_element..).zip(&values) {
            let expected = value_of(slice.key, rank, round, element);
            assert_eq!(value.to_bits(), expected.to_bits(), "not what worker {rank} pushed");
        }
        assert_eq!(first, log.open.is_empty(), "a sum begins with the first of its round");
        if first {
            log.sum = values;
        } else {
            log.sum.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value);
        }
        let known = log.rounds.iter().chain([&log.open]).flatten().any(|e| *e == (rank, round));
        assert!(!known, "a push was added twice");
        log.open.push((rank, round));
    }

    /// Checks the staleness bound: a worker leads the slowest counted worker by at most the bound.
    fn check_staleness(&self, key: u64, rank: u32, round: u64) {
        let Mode::Async { staleness: Some(most) } = self.mode else { return };
        let counts = |other: &u32| *other != rank && !self.gone.contains(other);
        for other in (0..self.workers).filter(counts) {
            let made = self.begun.get(&(key, other)).copied().unwrap_or(0);
            assert!(round <= made + most, "worker {rank} leads worker {other}: {round}, {made}");
        }
    }

    /// A server closes a round: checks that the sum is in the order of ranks.
    fn close(&mut self, slice: SliceName, round: u64, setting: u64) {
        let scale = self.settings.get(&setting).copied();
        assert!(setting == 0 || scale.is_some(), "a setting that the server does not have");
        let log = self.logs.get_mut(&slice).expect("a slice that does not exist");
        assert_eq!(round, log.rounds.len() as u64 + 1, "rounds close one after the other");
        let mut by_rank = log.open.clone();
        by_rank.sort_unstable();
        assert!(!by_rank.is_empty(), "a round without contributions");
        if self.mode == Mode::Sync {
            assert!(by_rank.iter().all(|entry| entry.1 == round), "another round: {by_rank:?}");
        }
        let under = |(rank, round): &(u32, u64)| self.made_under[&(slice.key, *rank, *round)];
        assert_eq!(Some(setting), by_rank.iter().map(under).max(), "the setting of another round");
        let before = log.history.last().expect("the first value");
        let expected: Vec<f32> = (log.first_element..)
            .zip(before)
            .map(|(element, stored)| {
                let value =
                    |(rank, round): &(u32, u64)| value_of(slice.key, *rank, *round, element);
                let sum = by_rank[1..].iter().fold(value(&by_rank[0]), |sum, e| sum + value(e));
                merge(*stored, sum, scale)
            })
            .collect();
        for (stored, sum) in log.stored.iter_mut().zip(&log.sum) {
            *stored = merge(*stored, *sum, scale);
        }
        assert_eq!(bits(&log.stored), bits(&expected), "not the sum in the order of ranks");
        log.history.push(expected);
        log.rounds.push(std::mem::take(&mut log.open));
        self.closed += 1;
    }

    /// A program begins a push, in this round of its own, after this many settings.
    pub(super) fn begin_push(&mut self, key: u64, rank: u32, round: u64, settings: u64) {
        self.begun.insert((key, rank), round);
        self.made_under.insert((key, rank, round), settings);
    }

    /// A worker enters its next barrier, or its last one again; gives the number of the barrier.
    pub(super) fn arrive(&mut self, rank: u32, again: bool) -> u64 {
        let count = self.arrived.entry(rank).or_default();
        *count += u64::from(!again);
        *count
    }

    /// A worker leaves a barrier: checks that all counted workers have entered it.
    pub(super) fn pass(&self, rank: u32, barrier: u64) {
        for other in (0..self.workers).filter(|other| !self.gone.contains(other)) {
            let came = self.arrived.get(&other).copied().unwrap_or(0);
            assert!(came >= barrier, "worker {rank} passed a barrier before worker {other} came");
        }
    }

    fn stored(&self, slice: SliceName) -> Bytes {
        Bytes::of(&self.logs[&slice].stored)
    }

    /// A push has finished on its worker.
    pub(super) fn pushed(&mut self, key: u64, generation: u32, rank: u32, round: u64) {
        self.made.insert((key, generation, rank, round));
    }

    /// Number of pushes that have finished on a worker, one after the other.
    pub(super) fn finished(&self, key: u64, generation: u32, rank: u32) -> u64 {
        let is_made = |round: &u64| self.made.contains(&(key, generation, rank, *round));
        (1..=self.made.len() as u64).take_while(is_made).count() as u64
    }

    /// A worker has pulled the whole key after this many pushes of its own; `exact` if it goes on.
    pub(super) fn pulled(
        &self,
        key: u64,
        generation: u32,
        (rank, after): (u32, u64),
        exact: bool,
        out: &[f32],
    ) {
        let mut total = 0;
        for (slice, log) in
            self.logs.iter().filter(|(s, _)| (s.key, s.generation) == (key, generation))
        {
            let at = usize::try_from(log.first_element).unwrap();
            let got = bits(&out[at..at + log.stored.len()]);
            total += log.stored.len();
            let least = match self.mode {
                Mode::Sync => usize::try_from(after).unwrap(),
                Mode::Async { .. } => log.after(rank, after),
            };
            let exact = self.mode == Mode::Sync && exact;
            let most = if exact { least + 1 } else { log.history.len() };
            let right = log.history.get(least..most).unwrap_or(&[]);
            assert!(
                right.iter().any(|value| bits(value) == got),
                "worker {rank} pulled {slice:?} after {after} pushes: not the value of that round"
            );
        }
        assert_eq!(total, out.len(), "every slice of key {key} was pulled");
    }

    /// Whether the last workers of a job have removed a key before its server knew that others were lost, so
    /// that the server never closed this round. No worker can read it.
    fn is_removed_before(&self, slice: &SliceName, log: &Log, round: u64) -> bool {
        let dropped =
            self.dropped.iter().any(|&(_, key, of)| (key, of) == (slice.key, slice.generation));
        dropped && !self.gone.is_empty() && round > log.rounds.len() as u64
    }

    /// Checks the end of the job: every finished push is in its round, on every slice. The first values of a
    /// key are of one worker. Pushes of a lost worker after a missing one do not count.
    pub(super) fn check_end(&self) {
        let counts = |(key, generation, rank, round): &&(u64, u32, u32, u64)| {
            let is_made = |before| self.made.contains(&(*key, *generation, *rank, before));
            !self.gone.contains(rank) || (1..*round).all(is_made)
        };
        for (key, generation, rank, round) in self.made.iter().filter(counts) {
            let slices =
                self.logs.iter().filter(|(s, _)| (s.key, s.generation) == (*key, *generation));
            for (slice, log) in slices {
                let holds = |entries: &Vec<(u32, u64)>| entries.contains(&(*rank, *round));
                let found = match self.mode {
                    Mode::Sync => {
                        log.rounds.get(usize::try_from(round - 1).unwrap()).is_some_and(holds)
                    }
                    Mode::Async { .. } => log.rounds.iter().any(holds),
                };
                assert!(
                    found || self.is_removed_before(slice, log, *round),
                    "round {round} of {slice:?} has no push of worker {rank}"
                );
            }
        }
        for (slice, log) in self.logs.iter().filter(|(_, log)| log.stored.len() > 1) {
            let same = |(other, log_of_other): (&SliceName, &Log)| {
                (other.key, other.generation) != (slice.key, slice.generation)
                    || log_of_other.provider == log.provider
                    || log_of_other.stored.len() < 2
            };
            assert!(self.logs.iter().all(same), "the first value of {slice:?} has two sources");
        }
    }
}

impl Log {
    /// Index of the first value that includes this push of a worker.
    fn after(&self, rank: u32, round: u64) -> usize {
        let holds = |entries: &Vec<(u32, u64)>| entries.contains(&(rank, round));
        if round == 0 {
            0
        } else {
            self.rounds.iter().position(holds).map_or(usize::MAX, |at| at + 1)
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
