//! Set of small numbers (also: bit set): slices of a key, or ranks.

const BITS: u32 = u64::BITS;

/// A set of small numbers. The first 64 are inline: most keys have one slice, most jobs fewer workers.
#[derive(Debug, Default)]
pub(super) struct BitSet {
    low: u64,
    /// Later numbers, in words of 64. Behind one pointer: a server has several sets for each key.
    #[expect(clippy::box_collection, reason = "a third of the size of a vector")]
    high: Option<Box<Vec<u64>>>,
}

impl BitSet {
    pub(super) fn is_empty(&self) -> bool {
        self.words().all(|word| word == 0)
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        self.words().nth((number / BITS) as usize).is_some_and(|word| word & bit(number) != 0)
    }

    /// Inserts a number; false if it is there.
    pub(super) fn insert(&mut self, number: u32) -> bool {
        let word = self.word_mut(number / BITS);
        let is_new = *word & bit(number) == 0;
        *word |= bit(number);
        is_new
    }

    pub(super) fn remove(&mut self, number: u32) {
        if self.contains(number) {
            *self.word_mut(number / BITS) &= !bit(number);
        }
    }

    pub(super) fn first(&self) -> Option<u32> {
        let (at, word) = (0..).zip(self.words()).find(|(_, word)| *word != 0)?;
        Some(at * BITS + word.trailing_zeros())
    }

    /// All numbers, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let of_word = |(at, word): (u32, u64)| {
            (0..BITS).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * BITS + bit)
        };
        (0..).zip(self.words()).flat_map(of_word)
    }

    fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let high = self.high.iter().flat_map(|high| high.iter());
        std::iter::once(self.low).chain(high.copied())
    }

    fn word_mut(&mut self, at: u32) -> &mut u64 {
        let Some(at) = at.checked_sub(1).map(|at| at as usize) else { return &mut self.low };
        let high = self.high.get_or_insert_default();
        if at >= high.len() {
            high.resize(at + 1, 0);
        }
        &mut high[at]
    }
}

impl FromIterator<u32> for BitSet {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut all = Self::default();
        numbers.into_iter().for_each(|number| {
            all.insert(number);
        });
        all
    }
}

fn bit(number: u32) -> u64 {
    1 << (number % BITS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::BitSet;
    use crate::sim::Random;

    #[test]
    fn it_holds_what_a_set_holds() {
        for most in [1, 3, 64, 65, 500] {
            let mut random = Random::new(most);
            let (mut slices, mut set): (BitSet, _) = ((0..0).collect(), BTreeSet::new());
            for _ in 0..2_000 {
                let slice = u32::try_from(random.below(most)).unwrap();
                if random.one_in(2) {
                    assert_eq!(slices.insert(slice), set.insert(slice));
                } else {
                    slices.remove(slice);
                    set.remove(&slice);
                }
                assert_eq!(slices.first(), set.first().copied());
                assert_eq!(slices.is_empty(), set.is_empty());
                assert!(slices.iter().eq(set.iter().copied()));
                assert!((0..600).all(|slice| slices.contains(slice) == set.contains(&slice)));
            }
        }
    }
}
