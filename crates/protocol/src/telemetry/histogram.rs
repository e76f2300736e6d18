//! Latency histogram with logarithmic buckets (also: HDR histogram).

use crate::job::Time;

/// Buckets: four for each doubling, from a microsecond to more than an hour.
pub(crate) const BUCKETS: usize = 128;
const PARTS: u32 = 4;

/// Counts of latencies: the end of each bucket is a seventh to a quarter above its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    pub(crate) counts: [u64; BUCKETS],
    /// Sum of all latencies, in microseconds.
    pub sum: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum: 0 }
    }
}

impl Histogram {
    pub(crate) fn add(&mut self, time: Time) {
        self.counts[bucket(time)] += 1;
        self.sum = self.sum.saturating_add(time);
    }

    /// Number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Difference to an earlier state of this histogram.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut more = self.clone();
        for (count, old) in more.counts.iter_mut().zip(&before.counts) {
            *count = count.saturating_sub(*old);
        }
        more.sum = more.sum.saturating_sub(before.sum);
        more
    }

    /// Quantile, from 0 to 1,000 per mille: the end of its bucket in microseconds. None without latencies.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> Option<Time> {
        let count = self.count();
        let rank = (u128::from(count) * u128::from(per_mille)).div_ceil(1000).max(1);
        let mut below = 0;
        for (at, bucket) in self.counts.iter().enumerate() {
            below += u128::from(*bucket);
            if below >= rank {
                return Some(end(at));
            }
        }
        None
    }

    /// Number of latencies below 2 to the power of `power`, at most 31, in microseconds.
    #[must_use]
    pub fn below(&self, power: u32) -> u64 {
        let end = bucket(1 << power);
        self.counts[..end].iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

fn bucket(time: Time) -> usize {
    let power = time.max(1).ilog2();
    // The two bits behind the leading one.
    let part = ((time.max(1) << 2) >> power) & u64::from(PARTS - 1);
    let at = u64::from(power * PARTS) + part;
    usize::try_from(at).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// End of a bucket, exclusive.
fn end(bucket: usize) -> Time {
    let next = u32::try_from(bucket + 1).unwrap_or(u32::MAX);
    let (power, part) = (next / PARTS, next % PARTS);
    ((u64::from(PARTS + part)) << power).div_ceil(u64::from(PARTS))
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, Histogram, bucket, end};

    #[test]
    fn every_time_is_in_a_bucket_that_ends_close_above_it() {
        let times = (1..2_000).chain((11..32).flat_map(|power| {
            let around = 1u64 << power;
            [around - 1, around, around + 1, around + around / 3]
        }));
        let mut last = 0;
        for time in times {
            let at = bucket(time);
            assert!(at >= last, "{time}");
            last = at;
            assert!(end(at) > time, "{time} is not below {}", end(at));
            assert!(end(at) <= time + time / 4 + 1, "{time} is far below {}", end(at));
        }
        assert_eq!(bucket(u64::MAX >> 2), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_a_sorted_list_up_to_a_bucket() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(500), None);
        (1..=1_000).for_each(|time| histogram.add(time * 10));
        let near = |found: Option<u64>, exact: u64| {
            let found = found.unwrap();
            assert!(found > exact && found <= exact + exact / 4 + 1, "{found} for {exact}");
        };
        near(histogram.quantile(500), 5_000);
        near(histogram.quantile(990), 9_900);
        assert_eq!(histogram.count(), 1_000);
        let before = histogram.clone();
        histogram.add(7);
        let more = histogram.since(&before);
        assert_eq!((more.count(), more.sum, more.quantile(990)), (1, 7, Some(8)));
        assert_eq!(histogram.below(13), before.below(13) + 1);
        assert_eq!(before.below(13), 819, "10, 20, ..., 8190");
    }
}
