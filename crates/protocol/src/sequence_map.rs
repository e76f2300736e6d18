//! A map with ascending numbers as keys (also: sliding window, ring of requests).

use std::collections::{BTreeMap, VecDeque};

/// Maximum empty places, beside one for each entry, before the first entry moves to the map of old ones.
const SPARSE: usize = 1_024;
/// Maximum number of places whose memory an empty map keeps.
const MOST_KEPT: usize = 16_384;

/// A map whose numbers are inserted in ascending order and mostly removed in it. Entries are in the order of
/// their numbers in memory: when answers arrive in the order of their requests, the processor has prefetched
/// them.
#[derive(Debug)]
pub struct SequenceMap<T> {
    /// Number of the first place, which is never empty.
    first: u64,
    places: VecDeque<Option<T>>,
    taken: usize,
    /// Entries that outlived many behind them.
    old: BTreeMap<u64, T>,
}

impl<T> Default for SequenceMap<T> {
    fn default() -> Self {
        Self { first: 0, places: VecDeque::new(), taken: 0, old: BTreeMap::new() }
    }
}

impl<T> SequenceMap<T> {
    /// Inserts an entry under a number that is greater than every one before.
    pub fn insert(&mut self, number: u64, thing: T) {
        if self.places.is_empty() {
            self.first = number;
        }
        let next = self.first + self.places.len() as u64;
        debug_assert!(number >= next, "numbers ascend");
        self.places.extend((next..number).map(|_| None));
        self.places.push_back(Some(thing));
        self.taken += 1;
    }

    /// Drops empty places in front, and moves the first entry to the old ones if too many behind it are
    /// empty.
    fn tidy(&mut self) {
        let is_sparse = |this: &Self| this.places.len() > 2 * this.taken + SPARSE;
        while let Some(first) = self.places.front()
            && (first.is_none() || is_sparse(self))
        {
            if let Some(thing) = self.places.pop_front().flatten() {
                self.old.insert(self.first, thing);
                self.taken -= 1;
            }
            self.first += 1;
        }
        if self.places.is_empty() {
            self.places.shrink_to(MOST_KEPT);
        }
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    /// Entry of a number.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&T> {
        match self.place(number) {
            Some(at) => self.places.get(at)?.as_ref(),
            None => self.old.get(&number),
        }
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        match self.place(number) {
            Some(at) => self.places.get_mut(at)?.as_mut(),
            None => self.old.get_mut(&number),
        }
    }

    /// Removes the entry of a number.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let Some(at) = self.place(number) else { return self.old.remove(&number) };
        let thing = self.places.get_mut(at)?.take()?;
        self.taken -= 1;
        self.tidy();
        Some(thing)
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken == 0 && self.old.is_empty()
    }

    /// Entries, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let old = self.old.iter().map(|(number, thing)| (*number, thing));
        let places = (self.first..).zip(&self.places);
        old.chain(places.filter_map(|(number, place)| Some((number, place.as_ref()?))))
    }

    /// Entries with smaller numbers, in their order.
    pub(crate) fn before(&self, end: u64) -> impl Iterator<Item = &T> {
        self.iter().take_while(move |(number, _)| *number < end).map(|(_, thing)| thing)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.old.values_mut().chain(self.places.iter_mut().flatten())
    }

    /// Entries without their numbers, in their order.
    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.old.into_values().chain(self.places.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{SPARSE, SequenceMap};
    use crate::sim::Random;

    #[test]
    fn it_holds_what_a_map_holds_and_no_more_places_than_it_needs() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let (mut recent, mut map, mut next) = (SequenceMap::default(), BTreeMap::new(), 1);
            for _ in 0..20_000 {
                if random.one_in(2) {
                    next += 1 + random.below(3) / 2;
                    recent.insert(next, next * 7);
                    map.insert(next, next * 7);
                } else if let Some(number) = {
                    // One of the first, mostly, and seldom one of the very first.
                    let at = if seed % 2 == 0 { 3 + random.below(5) } else { random.below(4) };
                    map.keys().nth(usize::try_from(at).unwrap()).copied()
                } {
                    assert_eq!(recent.remove(number), map.remove(&number));
                    assert_eq!(recent.remove(number), None);
                }
                let probe = next - random.below(next);
                assert_eq!(recent.get(probe), map.get(&probe));
                assert_eq!(recent.get_mut(probe), map.get_mut(&probe));
                assert!(recent.places.len() <= 2 * map.len() + SPARSE);
            }
            let half = next / 2;
            assert!(recent.before(half).eq(map.range(..half).map(|(_, thing)| thing)));
            recent.values_mut().for_each(|thing| *thing += 1);
            map.values_mut().for_each(|thing| *thing += 1);
            assert!(recent.iter().eq(map.iter().map(|(number, thing)| (*number, thing))));
            assert_eq!(recent.is_empty(), map.is_empty());
            assert_eq!(recent.get(next + 1), None);
            assert!(recent.into_values().eq(map.into_values()));
        }
    }
}
