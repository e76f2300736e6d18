//! The times of a round in several libraries.

use crate::compare::Case;

/// Who runs a round.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Runner {
    /// With a thread for each processor, as is the default.
    Ours,
    OursOnOne,
    Mxnet,
    Numpy,
}

/// The times of one kind of round.
pub struct Race {
    pub keys: String,
    pub case: Case,
    /// That any implementation must move.
    pub bytes: f64,
    /// Bytes a second that the machine can move.
    pub limit: f64,
    pub seconds: Vec<(Runner, f64)>,
}

impl Race {
    pub fn of(&self, runner: Runner) -> Option<f64> {
        self.seconds.iter().find(|(it, _)| *it == runner).map(|(_, seconds)| *seconds)
    }

    /// Bytes a second, of those that any implementation must move.
    pub fn rate(&self, runner: Runner) -> Option<f64> {
        Some(self.bytes / self.of(runner)?)
    }

    /// How many times longer one takes than the other.
    pub fn over(&self, slow: Runner, fast: Runner) -> Option<f64> {
        Some(self.of(slow)? / self.of(fast)?)
    }

    /// How many times longer one takes than the machine needs to move the bytes.
    pub fn over_limit(&self, slow: Runner) -> Option<f64> {
        Some(self.of(slow)? * self.limit / self.bytes)
    }
}
