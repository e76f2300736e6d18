//! What the contributions to a round say of themselves: weights (also called: sample counts), whose sum divides
//! that of the values; the number of values, which is equal in a tree; and the factor that clips the round, which is
//! equal too.

use crate::error::{Result, fail};
use crate::job::round_info::RoundInfo;
use crate::local::weight::is_weight;
use crate::tensor::DType;

/// What a contribution says of itself.
#[derive(Clone, Copy, Default)]
pub(super) struct ContributionInfo {
    pub(super) weight: Option<f64>,
    /// Number of values in its part of a tree; 0 if it does not say so.
    pub(super) leaves: u32,
    /// What the sum of the round is multiplied by.
    pub(super) scale: Option<f64>,
}

/// Contributions to the open round, and who took part in the last one. A job may have very many small keys, so
/// what only pushes with a weight or a scale need is behind a pointer.
#[derive(Default)]
pub(super) struct RoundWeights {
    count: u32,
    closed: u32,
    /// Rank of the first contribution, and its number of values.
    lowest: u32,
    leaves: u32,
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
    /// Scale of the first contribution.
    scale: Option<f64>,
}

impl RoundWeights {
    /// Notes the contribution of the next rank; weights are added in the order of ranks.
    pub(super) fn add(&mut self, first: bool, rank: u64, info: ContributionInfo) -> Result<()> {
        let ContributionInfo { weight, leaves, scale } = info;
        let before = if first { 0 } else { self.count };
        self.count = before + 1;
        if let (true, Some(weights)) = (first, &mut self.weights) {
            **weights = Weights { closed: weights.closed, ..Weights::default() };
        }
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        if before == 0 {
            (self.lowest, self.leaves) = (rank, leaves);
        }
        self.weigh(before, rank, weight)
            .and(self.check_leaves(rank, leaves))
            .and(self.note_scale(before, rank, scale))
    }

    /// Notes the scale of the first contribution, and refuses another one: its worker has measured another round.
    fn note_scale(&mut self, before: u32, rank: u32, scale: Option<f64>) -> Result<()> {
        let lowest = self.lowest;
        if scale.is_none() && self.weights.is_none() {
            return Ok(());
        }
        let weights = self
            .weights
            .get_or_insert_with(|| Box::new(Weights { without: lowest, ..Weights::default() }));
        if before == 0 {
            weights.scale = scale;
        }
        if weights.scale != scale {
            let text = |scale: Option<f64>| {
                scale.map_or("does not clip it".to_owned(), |scale| format!("clips it by {scale}"))
            };
            return Err(fail!(
                Differs,
                "worker {lowest} {}, and worker {rank} {}: the workers have measured gradients of unequal \
                 rounds; let all make the same calls of set_clipping and push in the same order",
                text(weights.scale),
                text(scale)
            ));
        }
        match scale.filter(|scale| !(0.0..1.0).contains(scale)) {
            Some(scale) => Err(fail!(InvalidArgument, "{scale} of worker {rank} clips nothing")),
            None => Ok(()),
        }
    }

    /// What the sum of the open round is multiplied by.
    pub(super) fn scale(&self) -> Option<f64> {
        self.weights.as_ref()?.scale
    }

    /// Refuses another number of values than that of the first contribution: their positions in the tree would
    /// not be those of the values.
    fn check_leaves(&self, rank: u32, leaves: u32) -> Result<()> {
        if [0, self.leaves].contains(&leaves) || self.leaves == 0 {
            return Ok(());
        }
        Err(fail!(
            Differs,
            "worker {} pushed {} values, and worker {rank} {leaves}: with sum_order=tree all workers push the \
             same number of values",
            self.lowest,
            self.leaves
        ))
    }

    fn weigh(&mut self, before: u32, rank: u32, weight: Option<f64>) -> Result<()> {
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
    use super::{ContributionInfo, RoundWeights};
    use crate::ErrorKind;
    use crate::tensor::DType;

    fn of_weight(weight: Option<f64>) -> ContributionInfo {
        ContributionInfo { weight, ..ContributionInfo::default() }
    }

    fn close(weights: &[Option<f64>], dtype: DType) -> crate::Result<Option<f64>> {
        let mut round = RoundWeights::default();
        for (rank, weight) in (0..).zip(weights) {
            round.add(rank == 0, rank, of_weight(*weight))?;
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
                round.add(rank == 5, rank, of_weight(weight)).unwrap();
            }
            let error = round.close(DType::F32).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Differs);
            let expected =
                format!("worker {with} pushed with a weight, and worker {without} without");
            assert!(error.message().starts_with(&expected), "{error}");
            (0..2).for_each(|rank| round.add(rank == 0, rank, of_weight(None)).unwrap());
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

    #[test]
    fn contributions_of_unequal_numbers_of_values_are_an_error() {
        let mut round = RoundWeights::default();
        let mut add = |rank: u64, leaves| {
            round.add(rank == 3, rank, ContributionInfo { leaves, ..ContributionInfo::default() })
        };
        for leaves in [1, 4, 0, 2] {
            [3, 4, 6].into_iter().for_each(|rank| add(rank, leaves).unwrap());
        }
        // A worker of a release that does not tell.
        for (rank, leaves) in [(3, 2), (4, 0), (5, 2)] {
            add(rank, leaves).unwrap();
        }
        let error = add(7, 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Differs);
        assert!(
            error.message().starts_with("worker 3 pushed 2 values, and worker 7 4: "),
            "{error}"
        );
    }

    #[test]
    fn contributions_of_unequal_scales_are_an_error_and_the_next_round_begins_anew() {
        let add = |round: &mut RoundWeights, rank: u64, scale| {
            let info = ContributionInfo { scale, ..ContributionInfo::default() };
            round.add(rank == 3, rank, info)
        };
        for [one, other] in [[Some(0.5), None], [None, Some(0.5)], [Some(0.5), Some(0.25)]] {
            let mut round = RoundWeights::default();
            add(&mut round, 3, one).unwrap();
            add(&mut round, 4, one).unwrap();
            let error = add(&mut round, 7, other).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Differs);
            let text = error.message();
            assert!(text.contains("worker 3") && text.contains("worker 7"), "{text}");
            for scale in [Some(0.0), None, Some(0.125)] {
                (3..6).for_each(|rank| add(&mut round, rank, scale).unwrap());
                assert_eq!((round.scale(), round.close(DType::F32).unwrap()), (scale, None));
            }
        }
        for bad in [f64::NAN, f64::INFINITY, -0.5, 1.0] {
            assert!(add(&mut RoundWeights::default(), 3, Some(bad)).is_err(), "{bad}");
        }
    }
}
