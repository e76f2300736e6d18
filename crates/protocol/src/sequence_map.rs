//! Things under numbers that ascend.

use std::collections::{BTreeMap, VecDeque};

/// So many numbers may be empty between the first and the last before the first is put aside.
const SPARSE: usize = 1_024;

/// A map whose numbers are given in their order and mostly go in it. What is next to each other in number
/// is so in memory: when answers come in the order of their requests, the processor has fetched it.
#[derive(Debug)]
pub struct Recent<T> {
    /// The number of the first place; it is taken if there is one.
    first: u64,
    places: VecDeque<Option<T>>,
    taken: usize,
    /// Those that stayed while many behind them went.
    old: BTreeMap<u64, T>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { first: 0, places: VecDeque::new(), taken: 0, old: BTreeMap::new() }
    }
}

impl<T> Recent<T> {
    /// Puts a thing under a number that is greater than all before it.
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

    /// Drops empty places in front, and puts what is first aside if too many behind it are empty.
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
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

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

    pub fn remove(&mut self, number: u64) -> Option<T> {
        let Some(at) = self.place(number) else { return self.old.remove(&number) };
        let thing = self.places.get_mut(at)?.take()?;
        self.taken -= 1;
        self.tidy();
        Some(thing)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken == 0 && self.old.is_empty()
    }

    /// All of them, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let old = self.old.iter().map(|(number, thing)| (*number, thing));
        let places = (self.first..).zip(&self.places);
        old.chain(places.filter_map(|(number, place)| Some((number, place.as_ref()?))))
    }

    /// Those under smaller numbers, in their order.
    pub(crate) fn before(&self, end: u64) -> impl Iterator<Item = &T> {
        self.iter().take_while(move |(number, _)| *number < end).map(|(_, thing)| thing)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.old.values_mut().chain(self.places.iter_mut().flatten())
    }

    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.old.into_values().chain(self.places.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Recent, SPARSE};
    use crate::sim::Random;

    #[test]
    fn it_holds_what_a_map_holds_and_no_more_places_than_it_needs() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let (mut recent, mut map, mut next) = (Recent::default(), BTreeMap::new(), 1);
            for _ in 0..20_000 {
                if random.below(2) == 0 {
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
