//! A case, and its expected results.

use clap::ValueEnum;

/// A call of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchOp {
    Push,
    Pull,
    Pushpull,
}

impl BenchOp {
    /// How often the bytes of the keys go in or out.
    pub(crate) fn ways(self) -> f64 {
        if self == Self::Pushpull { 2.0 } else { 1.0 }
    }
}

/// How pushes merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchOptimizer {
    None,
    Sgd,
    Momentum,
}

/// The name of a call or an optimizer, as on the command line.
pub(crate) fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The work of one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BenchCase {
    pub(crate) op: BenchOp,
    pub(crate) keys: usize,
    /// Bytes of the value of each key.
    pub(crate) size: usize,
}

impl BenchCase {
    pub(crate) fn bytes(&self) -> usize {
        self.keys * self.size
    }
}

pub(crate) struct BenchCases {
    pub(crate) measured: Vec<BenchCase>,
    /// Keys and bytes of a key of the cases that are too large.
    pub(crate) left_out: Vec<(usize, usize)>,
}

/// Values repeat after so many elements.
pub(crate) const PERIOD: usize = 3;
/// Decay factor of the last step with `momentum`.
pub(crate) const MOMENTUM: f64 = 0.5;

/// The element at this place of what a worker pushes in its `turn`, which is also a small whole
/// number, so that sums are exact.
#[allow(clippy::cast_precision_loss, reason = "at most 3")]
pub(crate) fn pushed(place: usize, rank: usize, turn: usize) -> f64 {
    (1 + (place + rank + turn) % PERIOD) as f64
}

/// All inputs of a stored value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct History {
    pub(crate) optimizer: BenchOptimizer,
    pub(crate) workers: usize,
    /// Whether each push is a step of its own, or all workers' together are one.
    pub(crate) is_async: bool,
    /// Pushes of each worker that were like turn 0; one like turn 1 came after them.
    pub(crate) pushes: usize,
}

impl History {
    /// The rank by which a worker's values differ: without rounds it is not known whose push comes
    /// last, so that all push the same.
    pub(crate) fn rank(&self, rank: usize) -> usize {
        if self.is_async { 0 } else { rank }
    }

    /// The stored value at each place of the period.
    pub(crate) fn stored(&self) -> [f64; PERIOD] {
        std::array::from_fn(|place| self.stored_at(place))
    }

    fn stored_at(&self, place: usize) -> f64 {
        let (summed, steps) = if self.is_async { (1, self.workers) } else { (self.workers, 1) };
        let sum = |turn| (0..summed).map(|rank| pushed(place, rank, turn)).sum::<f64>();
        let kept = match self.optimizer {
            BenchOptimizer::None => return sum(1),
            BenchOptimizer::Sgd => 0.0,
            BenchOptimizer::Momentum => MOMENTUM,
        };
        let (mut value, mut moving) = (0.0, 0.0);
        for (turn, pushes) in [(0, self.pushes), (1, 1)] {
            for _ in 0..pushes * steps {
                moving = kept * moving - sum(turn);
                value += moving;
            }
        }
        value
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "whole numbers and quarters are exact")]
mod tests {
    use super::{BenchOptimizer, History};

    #[test]
    fn what_is_stored_follows_from_what_was_pushed() {
        let history =
            |optimizer, is_async| History { optimizer, workers: 2, is_async, pushes: 2 }.stored();
        // Turn 0: 1 2 3 and 2 3 1; turn 1: 2 3 1 and 3 1 2.
        assert_eq!(history(BenchOptimizer::None, false), [5.0, 4.0, 3.0]);
        assert_eq!(history(BenchOptimizer::None, true), [2.0, 3.0, 1.0]);
        assert_eq!(history(BenchOptimizer::Sgd, false), [-11.0, -14.0, -11.0]);
        assert_eq!(history(BenchOptimizer::Sgd, true), [-8.0, -14.0, -14.0]);
        // Steps of 3, 1.5 + 3 and 2.25 + 5.
        assert_eq!(history(BenchOptimizer::Momentum, false)[0], -14.75);
    }
}
