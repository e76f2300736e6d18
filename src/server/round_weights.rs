//! Weights of the contributions to a round (also called: sample counts): their sum divides that of the values.

use crate::error::{Result, fail};
use crate::job::round_info::RoundInfo;
use crate::local::weight::is_weight;
use crate::tensor::DType;

/// Contributions to the open round, and who took part in the last one. A job may have very many small keys, so
/// what only pushes with a weight need is behind a pointer.
#[derive(Default)]
pub(super) struct RoundWeights {
    count: u32,
    closed: u32,
    /// Rank of the first contribution.
    lowest: u32,
    weights: Option<Box<Weights>>,
}

#[derive(Default)]
struct Weights {
    /// Contributions to the open round with a weight.
    count: u32,
    total: f64,
    /// First ranks with and without a weight.
    with: u32,
    without: u32,
    /// Sum of the last round.
    closed: f64,
}

impl RoundWeights {
    /// Notes the contribution of the next rank; weights are added in the order of ranks.
    pub(super) fn add(&mut self, first: bool, rank: u64, weight: Option<f64>) -> Result<()> {
        let before = if first { 0 } else { self.count };
        self.count = before + 1;
        if let (true, Some(weights)) = (first, &mut self.weights) {
            **weights = Weights { closed: weights.closed, ..Weights::default() };
        }
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        if before == 0 {
            self.lowest = rank;
        }
        let lowest = self.lowest;
        let weights = match (&mut self.weights, weight) {
            (None, None) => return Ok(()),
            // The contributions before the first weight had none.
            (weights, _) => weights
                .get_or_insert_with(|| Box::new(Weights { without: lowest, ..Weights::default() })),
        };
        let Some(weight) = weight else {
            if weights.count == before {
                weights.without = rank;
            }
            return Ok(());
        };
        if weights.count == 0 {
            weights.with = rank;
        }
        weights.count += 1;
        weights.total += weight;
        if is_weight(weight) {
            return Ok(());
        }
        Err(fail!(InvalidArgument, "{weight} of worker {rank} is no weight"))
    }

    /// Ends the round: gives the number that its sum is divided by, if it has weights.
    pub(super) fn close(&mut self, dtype: DType) -> Result<Option<f64>> {
        self.closed = self.count;
        let Some(weights) = &mut self.weights else { return Ok(None) };
        weights.closed = weights.total;
        if weights.count == 0 {
            return Ok(None);
        }
        if weights.count < self.count {
            return Err(fail!(
                Differs,
                "worker {} pushed with a weight, and worker {} without: either all pushes of a round have \
                 one or none has",
                weights.with,
                weights.without
            ));
        }
        if !dtype.is_float() {
            return Err(fail!(DtypeMismatch, "pushes with a weight: only floats are divided"));
        }
        if weights.total == 0.0 {
            return Err(fail!(InvalidArgument, "all weights of the round are 0: there is no mean"));
        }
        Ok(Some(weights.total))
    }

    /// Who took part in the last round.
    pub(super) fn closed(&self) -> RoundInfo {
        let total_weight = self.weights.as_ref().map_or(0.0, |weights| weights.closed);
        RoundInfo { contributors: self.closed.into(), total_weight }
    }
}

#[cfg(test)]
mod tests {
    use super::RoundWeights;
    use crate::ErrorKind;
    use crate::tensor::DType;

    fn close(weights: &[Option<f64>], dtype: DType) -> crate::Result<Option<f64>> {
        let mut round = RoundWeights::default();
        for (rank, weight) in (0..).zip(weights) {
            round.add(rank == 0, rank, *weight)?;
        }
        let divisor = round.close(dtype);
        assert_eq!(round.closed().contributors, weights.len() as u64);
        divisor
    }

    #[test]
    fn weights_are_added_in_the_order_of_ranks() {
        let weights = [1e16, 1.0, 1.0].map(Some);
        assert_eq!(close(&weights, DType::F32).unwrap(), Some(1e16 + 1.0 + 1.0));
        let weights = [1.0, 1.0, 1e16].map(Some);
        assert_eq!(close(&weights, DType::F32).unwrap(), Some(1.0 + 1.0 + 1e16));
        assert_eq!(close(&[Some(0.0), Some(3.0)], DType::F64).unwrap(), Some(3.0));
        assert_eq!(close(&[None, None], DType::I8).unwrap(), None);
    }

    #[test]
    fn a_round_without_a_mean_is_an_error() {
        let kind = |weights: &[Option<f64>], dtype| close(weights, dtype).unwrap_err().kind();
        let mut round = RoundWeights::default();
        for (ranks, with, without) in [
            ([Some(1.0), Some(1.0), None, None], 5, 7),
            ([None, None, Some(1.0), None], 7, 5),
            ([None, None, Some(2.0), Some(1.0)], 7, 5),
        ] {
            for (rank, weight) in (5..).zip(ranks) {
                round.add(rank == 5, rank, weight).unwrap();
            }
            let error = round.close(DType::F32).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Differs);
            let expected =
                format!("worker {with} pushed with a weight, and worker {without} without");
            assert!(error.message().starts_with(&expected), "{error}");
            (0..2).for_each(|rank| round.add(rank == 0, rank, None).unwrap());
            assert_eq!(round.close(DType::F32).unwrap(), None);
            assert_eq!((round.closed().contributors, round.closed().total_weight), (2, 0.0));
            // The next one begins as the first did.
            round.weights = round.weights.take().filter(|_| with == 7);
        }
        assert_eq!(kind(&[Some(0.0), Some(0.0)], DType::F32), ErrorKind::InvalidArgument);
        assert_eq!(kind(&[Some(1.0)], DType::I32), ErrorKind::DtypeMismatch);
        for bad in [f64::NAN, f64::INFINITY, -1.0, 1e-31, 2e30] {
            assert_eq!(
                kind(&[Some(1.0), Some(bad)], DType::F32),
                ErrorKind::InvalidArgument,
                "{bad}"
            );
        }
    }
}
