//! What a worker does in an exchange, as its driver plans it.

use crate::job::{Data, Time};
use crate::message::kinds::{Begun, Segment};

/// What all workers of an exchange have alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeTerms {
    /// Code of the call and of its reduction, of the driver.
    pub what: u32,
    /// Rank of the worker that has, or gets, what others do not; 0 without one.
    pub root: u32,
    /// Dtype of the values.
    pub dtype: u32,
    /// Elements of each contribution, where all have as many; else 0.
    pub count: u64,
}

/// What this worker sends and receives in an exchange. The lists have an entry for each rank; those for its own are
/// empty.
#[derive(Debug)]
pub struct ExchangePlan<D> {
    /// What all workers have alike.
    pub terms: ExchangeTerms,
    /// When the exchange fails.
    pub deadline: Time,
    /// Contributions to other ranks.
    pub sends: Vec<Option<D>>,
    /// Whether the data are lent: the exchange ends after others have acknowledged them.
    pub is_lent: bool,
    /// Bytes that each other rank contributes.
    pub receives: Vec<u64>,
    /// Bytes of the part that this worker reduces: as many as each other rank contributes. 0 if it does not.
    pub reduces: u64,
    /// Ranks that get the result of that part.
    pub result_receivers: Vec<u32>,
    /// Bytes of the results that each other rank sends.
    pub results: Vec<u64>,
}

impl<D: Data> ExchangePlan<D> {
    /// Whether it is a plan of a rank among this many workers.
    pub(super) fn is_of(&self, rank: u32, workers: usize) -> bool {
        let me = rank as usize;
        let lists = [self.sends.len(), self.receives.len(), self.results.len()];
        lists.iter().all(|len| *len == workers)
            && self.sends[me].is_none()
            && (self.receives[me], self.results[me]) == (0, 0)
            && !self.result_receivers.contains(&rank)
    }
}

impl From<(u64, ExchangeTerms)> for Begun {
    fn from((exchange, terms): (u64, ExchangeTerms)) -> Self {
        let ExchangeTerms { what, root, dtype, count } = terms;
        Self { exchange, what, root: root.into(), dtype: dtype.into(), count }
    }
}

impl Begun {
    pub(super) fn terms(&self) -> ExchangeTerms {
        terms(self.what, self.root, self.dtype, self.count)
    }
}

impl<D: Data> Segment<D> {
    pub(super) fn terms(&self) -> ExchangeTerms {
        terms(self.what, self.root, self.dtype, self.count)
    }
}

/// Numbers that are too large are those of no exchange.
fn terms(what: u32, root: u64, dtype: u64, count: u64) -> ExchangeTerms {
    let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    ExchangeTerms { what, root: narrow(root), dtype: narrow(dtype), count }
}
