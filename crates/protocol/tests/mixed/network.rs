//! A network in virtual time that loses, duplicates and reorders frames, from a seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A frame on its way: when it arrives, its number, its receiver.
type Transit = (u64, u64, String, Vec<u8>);

pub struct Network {
    now: u64,
    sent: u64,
    state: u64,
    queue: BinaryHeap<Reverse<Transit>>,
}

impl Network {
    pub fn new(seed: u64) -> Self {
        Self { now: 1, sent: 0, state: seed * 2 + 1, queue: BinaryHeap::new() }
    }

    /// A number below `end`, by the linear congruential generator of Knuth's MMIX.
    fn below(&mut self, end: u64) -> u64 {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % end
    }

    pub fn send(&mut self, to: &str, frame: &[u8]) {
        let copies = match self.below(30) {
            0 => 0,
            1 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            self.sent += 1;
            let at = self.now + 100 + self.below(3_000);
            self.queue.push(Reverse((at, self.sent, to.to_owned(), frame.to_owned())));
        }
    }

    /// Passes the time to the next arrival, or to `wake`.
    pub fn advance(&mut self, wake: u64) -> u64 {
        let next = self.queue.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
        self.now = next.min(wake).max(self.now + 1);
        self.now
    }

    /// Frames that have arrived, and their receivers.
    pub fn arrived(&mut self) -> Vec<(String, Vec<u8>)> {
        let mut arrived = Vec::new();
        while self.queue.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            arrived.extend(self.queue.pop().map(|Reverse((_, _, to, frame))| (to, frame)));
        }
        arrived
    }
}
