//! Event queue in virtual time (also: discrete-event simulation), and the network between the processes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::scenario::Scenario;
use crate::job::Time;
use crate::testing::Random;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Happening {
    /// A process is started.
    Birth(Arc<str>),
    Frame {
        from: Arc<str>,
        to: Arc<str>,
        bytes: Vec<u8>,
    },
    /// Wake-up time of a process.
    Wake(Arc<str>),
    /// An observer queries the state of the job.
    Look,
    /// The hostile reader sends frames.
    Attack,
    /// The trouble of the scenario begins.
    Trouble,
    /// A connection between two processes is lost.
    ConnectionLost,
    /// It was made again.
    Reconnected {
        one: Arc<str>,
        other: Arc<str>,
    },
}

/// A cut: no frame passes between the two processes until this time.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) one: Arc<str>,
    pub(super) other: Arc<str>,
    pub(super) until: Time,
}

#[derive(Debug)]
pub(super) struct Network {
    pub(super) now: Time,
    queue: BinaryHeap<Reverse<(Time, u64, Happening)>>,
    count: u64,
    random: Random,
    pub(super) cuts: Vec<Cut>,
}

impl Network {
    pub(super) fn new(seed: u64) -> Self {
        let random = Random::new(seed ^ 0x0e7);
        Self { now: 0, queue: BinaryHeap::new(), count: 0, random, cuts: Vec::new() }
    }

    pub(super) fn at(&mut self, time: Time, happening: Happening) {
        self.count += 1;
        self.queue.push(Reverse((time.max(self.now), self.count, happening)));
    }

    /// Next event; virtual time advances to it.
    pub(super) fn next(&mut self) -> Option<Happening> {
        let Reverse((time, _, happening)) = self.queue.pop()?;
        self.now = time;
        Some(happening)
    }

    /// Drops the frames in flight between two processes, and those that they send until a time; gives how many
    /// were in flight.
    pub(super) fn lose_connection(&mut self, one: &Arc<str>, other: &Arc<str>, until: Time) -> u64 {
        let before = self.queue.len();
        let is_between = |from: &Arc<str>, to: &Arc<str>| {
            (from, to) == (one, other) || (from, to) == (other, one)
        };
        self.queue.retain(|Reverse((.., happening))| {
            !matches!(happening, Happening::Frame { from, to, .. } if is_between(from, to))
        });
        let (one, other) = (one.clone(), other.clone());
        self.cuts.retain(|cut| cut.until > self.now);
        self.cuts.push(Cut { one, other, until });
        (before - self.queue.len()) as u64
    }

    pub(super) fn send(
        &mut self,
        from: &Arc<str>,
        to: &Arc<str>,
        bytes: &[u8],
        scenario: &Scenario,
    ) {
        let now = self.now;
        let cut = |cut: &Cut| {
            let ends = [&cut.one, &cut.other];
            cut.until > now && ends.contains(&from) && ends.contains(&to)
        };
        if self.cuts.iter().any(cut) || self.random.per_mille(scenario.loss) {
            return;
        }
        let copies = 1 + u64::from(self.random.per_mille(scenario.doubling));
        for _ in 0..copies {
            let mut bytes = bytes.to_vec();
            if self.random.per_mille(scenario.damage) {
                let at = self.random.index(bytes.len());
                bytes[at] ^= 1 << self.random.below(8);
            }
            let time = now + scenario.latency + self.random.below(scenario.jitter);
            let (from, to) = (from.clone(), to.clone());
            self.at(time, Happening::Frame { from, to, bytes });
        }
    }
}
