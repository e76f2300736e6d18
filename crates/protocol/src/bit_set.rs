//! Set of slices of a key (also: bit set).

const BITS: u32 = u64::BITS;

/// A set of slices. The first 64 are inline: most keys have one.
#[derive(Debug, Default)]
pub(super) struct Slices {
    low: u64,
    /// Later slices, in words of 64.
    high: Vec<u64>,
    len: u32,
}

impl Slices {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn contains(&self, slice: u32) -> bool {
        self.word(slice / BITS) & bit(slice) != 0
    }

    pub(super) fn insert(&mut self, slice: u32) {
        if !self.contains(slice) {
            *self.word_mut(slice / BITS) |= bit(slice);
            self.len += 1;
        }
    }

    pub(super) fn remove(&mut self, slice: u32) {
        if self.contains(slice) {
            *self.word_mut(slice / BITS) &= !bit(slice);
            self.len -= 1;
        }
    }

    pub(super) fn first(&self) -> Option<u32> {
        let words = std::iter::once(&self.low).chain(&self.high);
        let (at, word) = (0..).zip(words).find(|(_, word)| **word != 0)?;
        Some(at * BITS + word.trailing_zeros())
    }

    fn word(&self, at: u32) -> u64 {
        match at.checked_sub(1) {
            None => self.low,
            Some(at) => self.high.get(at as usize).copied().unwrap_or(0),
        }
    }

    fn word_mut(&mut self, at: u32) -> &mut u64 {
        let Some(at) = at.checked_sub(1).map(|at| at as usize) else { return &mut self.low };
        if at >= self.high.len() {
            self.high.resize(at + 1, 0);
        }
        &mut self.high[at]
    }
}

impl FromIterator<u32> for Slices {
    fn from_iter<I: IntoIterator<Item = u32>>(slices: I) -> Self {
        let mut all = Self::default();
        slices.into_iter().for_each(|slice| all.insert(slice));
        all
    }
}

fn bit(slice: u32) -> u64 {
    1 << (slice % BITS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Slices;
    use crate::sim::Random;

    #[test]
    fn it_holds_what_a_set_holds() {
        for most in [1, 3, 64, 65, 500] {
            let mut random = Random::new(most);
            let (mut slices, mut set): (Slices, _) = ((0..0).collect(), BTreeSet::new());
            for _ in 0..2_000 {
                let slice = u32::try_from(random.below(most)).unwrap();
                if random.one_in(2) {
                    slices.insert(slice);
                    set.insert(slice);
                } else {
                    slices.remove(slice);
                    set.remove(&slice);
                }
                assert_eq!(slices.first(), set.first().copied());
                assert_eq!(slices.is_empty(), set.is_empty());
                assert!((0..600).all(|slice| slices.contains(slice) == set.contains(&slice)));
            }
        }
    }
}
