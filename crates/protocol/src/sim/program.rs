//! Program of one worker: calls that a user would write, drawn from the seed, so that all ranks fit.

use std::collections::{BTreeSet, VecDeque};

use super::Bytes;
use super::model::value_of;
use super::scenario::Scenario;
use crate::job::{MS, Mode, Time};
use crate::message::KeySpec;
use crate::testing::Random;

pub(super) const F32: u32 = 2 | 32 << 8 | 1 << 16;

/// One line of a program.
#[derive(Debug, Clone)]
pub(super) enum Line {
    Init(u64, KeySpec, Bytes),
    Push(u64, Bytes, i32),
    Pushpull(u64, Bytes, i32),
    Pull(u64, i32),
    Remove(u64),
    /// Pulls a key of this many elements that this rank has not initialised.
    Ask(u64, u64),
    /// Pulls a key after its removal expired or was cancelled.
    Probe(u64),
    /// A line with a short deadline or a cancellation after this time. A call without effect is then made
    /// again.
    Hasty(Box<Line>, Time, bool),
    Set(Vec<u8>),
    Barrier,
    Done,
    Close,
    /// Blocks until all open calls have ended.
    Wait,
    /// Blocks until all hasty calls have ended, expired or been cancelled.
    Settle,
    Think(Time),
}

/// Generator of programs. Lines that all ranks must agree on are drawn from one random sequence, the rest
/// from another.
struct Writer<'a> {
    scenario: &'a Scenario,
    rank: u32,
    common: Random,
    own: Random,
    lines: VecDeque<Line>,
    /// Elements of each key, and pushes in its present generation.
    sizes: Vec<u64>,
    pushes: Vec<u64>,
    /// Keys with hasty pushes, in their present generation.
    hurried: BTreeSet<u64>,
    slow: bool,
}

/// Generates the program of a rank.
pub(super) fn write(scenario: &Scenario, rank: u32) -> VecDeque<Line> {
    let mut own = Random::new(scenario.seed.wrapping_mul(31).wrapping_add(u64::from(rank)));
    let slow = own.one_in(4);
    let mut writer = Writer {
        scenario,
        rank,
        common: Random::new(scenario.seed ^ 0xc0de),
        own,
        lines: VecDeque::new(),
        sizes: Vec::new(),
        pushes: Vec::new(),
        hurried: BTreeSet::new(),
        slow,
    };
    writer.begin();
    for _ in 0..scenario.phases {
        writer.phase();
    }
    writer.finish();
    writer.lines
}

impl Writer<'_> {
    fn begin(&mut self) {
        for key in 0..self.scenario.keys {
            self.sizes.push(self.common.below(40));
            self.pushes.push(0);
            self.init(key);
        }
        self.lines.push_back(Line::Wait);
        self.add(Line::Barrier);
        self.lines.push_back(Line::Wait);
    }

    /// Adds a line, at times as a hasty one.
    fn add(&mut self, line: Line) {
        if self.own.below(8) > 0 {
            return self.lines.push_back(line);
        }
        let (time, cancelled) =
            (self.own.below(400 * MS) >> (4 * self.own.below(3)), self.own.one_in(2));
        self.lines.extend([Line::Hasty(Box::new(line), time + 1, cancelled), Line::Settle]);
    }

    fn init(&mut self, key: u64) {
        let elements = self.sizes[at(key)];
        let spec = KeySpec { dtype: F32, shape: vec![elements], whole: key == 3 };
        let values: Vec<_> = (0..elements).map(|e| value_of(key, self.rank, 0, e)).collect();
        // "Pull, else init": of all ranks, and in any order.
        if self.own.one_in(3) {
            self.add(Line::Ask(key, elements));
            if self.own.one_in(2) {
                self.lines.push_back(Line::Wait);
            }
        }
        self.add(Line::Init(key, spec, Bytes::of(&values)));
    }

    /// Adds a removal, after this rank's pushes of the key have taken effect.
    fn remove(&mut self, key: u64) {
        self.lines.push_back(Line::Wait);
        if self.hurried.remove(&key) {
            self.lines.extend([Line::Pull(key, 0), Line::Wait]);
        }
        self.add(Line::Remove(key));
        if self.own.one_in(2) {
            self.lines.push_back(Line::Wait);
        }
    }

    /// Pushes to all keys, each rank in its own order, then pulls; now and then a call that all ranks make.
    fn phase(&mut self) {
        let joint = self.common.below(8);
        let (key, size, both) =
            (self.common.below(self.scenario.keys), self.common.below(40), self.common.below(3));
        match joint {
            0 => {
                self.add(Line::Barrier);
                self.lines.push_back(Line::Wait);
            }
            1 => {
                self.remove(key);
                self.sizes[at(key)] = size;
                self.pushes[at(key)] = 0;
                self.init(key);
                self.lines.push_back(Line::Wait);
            }
            2 => {
                let scale = 0.25f32 * f32::from(u16::try_from(size).unwrap());
                self.add(Line::Set(scale.to_le_bytes().to_vec()));
                self.lines.push_back(Line::Wait);
            }
            _ => {}
        }
        // With staleness 0, ranks that wait for every push must push in equal order, or they block each
        // other.
        let level = self.scenario.limits.mode == Mode::Async { staleness: Some(0) };
        let patient = self.own.one_in(2) && !level;
        for key in self.keys_in_any_order() {
            if self.slow {
                let pause = self.own.below(100 * MS);
                self.lines.push_back(Line::Think(pause));
            }
            self.push(key, both == 0);
            if patient && both != 0 {
                self.lines.push_back(Line::Wait);
            }
        }
        for key in self.keys_in_any_order() {
            if both != 0 && self.own.below(3) != 0 {
                let priority = self.priority();
                self.add(Line::Pull(key, priority));
            }
        }
        if self.own.below(3) != 0 {
            self.lines.push_back(Line::Wait);
        }
    }

    /// Some ranks push more than the rest; then all call done, or just leave.
    fn finish(&mut self) {
        for key in 0..self.scenario.keys {
            for _ in 0..self.own.below(3) {
                self.push(key, false);
            }
        }
        if self.own.one_in(2) {
            self.lines.push_back(Line::Done);
            if self.own.one_in(2) {
                self.lines.push_back(Line::Wait);
            }
            for key in self.keys_in_any_order() {
                self.lines.push_back(Line::Pull(key, 0));
            }
        }
        self.lines.push_back(Line::Close);
    }

    fn push(&mut self, key: u64, answer: bool) {
        self.pushes[at(key)] += 1;
        let round = self.pushes[at(key)];
        let elements = self.sizes[at(key)];
        let values: Vec<_> = (0..elements).map(|e| value_of(key, self.rank, round, e)).collect();
        let (data, priority) = (Bytes::of(&values), self.priority());
        self.add(if answer {
            Line::Pushpull(key, data, priority)
        } else {
            Line::Push(key, data, priority)
        });
        if matches!(self.lines.back(), Some(Line::Settle)) {
            self.hurried.insert(key);
        }
    }

    fn priority(&mut self) -> i32 {
        i32::try_from(self.own.below(5)).unwrap() - 2
    }

    fn keys_in_any_order(&mut self) -> Vec<u64> {
        let mut keys: Vec<_> = (0..self.scenario.keys).collect();
        self.own.shuffle(&mut keys);
        keys
    }
}

fn at(key: u64) -> usize {
    usize::try_from(key).unwrap()
}
