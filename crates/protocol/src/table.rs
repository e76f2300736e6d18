//! A hash table whose entries lie next to each other, in insertion order (also: index map).

use std::cell::Cell;
use std::hash::Hash;
use std::ops::Range;

use foldhash::fast::RandomState;
use indexmap::IndexMap;

/// Entries behind the last one that are compared before the hash: with several servers the answers of one
/// skip the keys of the others.
const AHEAD: usize = 4;

/// A hash table for keys that are looked up in insertion order, as calls on lists do: sequential lookups are
/// prefetched by the processor and compute no hash, each of which is a cache miss in a large table.
#[derive(Debug)]
pub struct Table<K, V> {
    entries: IndexMap<K, V, RandomState>,
    /// Position of the last lookup.
    last: Cell<usize>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { entries: IndexMap::default(), last: Cell::new(0) }
    }
}

impl<K, V> Table<K, V> {
    /// Number of entries.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "positions are counted, and nothing else")]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter()
    }

    /// Entries at these positions, each of which must be in the table.
    pub fn range(&self, positions: Range<usize>) -> impl Iterator<Item = (&K, &V)> {
        self.entries.get_range(positions).into_iter().flatten()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.values()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.values_mut()
    }
}

impl<K: Hash + Eq, V> Table<K, V> {
    /// Position of an entry; valid until an entry is removed.
    pub fn position(&self, key: &K) -> Option<usize> {
        let last = self.last.get();
        let mut near = (last..=last + AHEAD).chain(last.checked_sub(1));
        let is_there =
            |at: &usize| self.entries.get_index(*at).is_some_and(|(other, _)| other == key);
        let at = near.find(is_there).or_else(|| self.entries.get_index_of(key))?;
        self.last.set(at);
        Some(at)
    }

    /// Value at a position.
    pub fn at(&self, position: usize) -> Option<&V> {
        self.entries.get_index(position).map(|(_, value)| value)
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.at(self.position(key)?)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.position(key)?;
        self.entries.get_index_mut(at).map(|(_, value)| value)
    }

    /// Value of a key, inserted as the default if there was none.
    pub(crate) fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let at = self.position(&key).unwrap_or_else(|| self.put(key, V::default()));
        &mut self.entries[at]
    }

    /// Inserts an entry, or replaces its value.
    pub fn insert(&mut self, key: K, value: V) {
        self.put(key, value);
    }

    fn put(&mut self, key: K, value: V) -> usize {
        let (at, _) = self.entries.insert_full(key, value);
        self.last.set(at);
        at
    }

    /// Removes an entry; the last one takes its position.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.position(key)?;
        self.entries.swap_remove_index(at).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Table;
    use crate::sim::Random;

    /// Steps in order, back, far away and out of the table, beside a plain table.
    #[test]
    fn a_table_holds_what_a_plain_one_does() {
        let mut random = Random::new(7);
        for keys in [1, 2, 7, 100] {
            let (mut table, mut plain) = (Table::default(), BTreeMap::new());
            let mut key = 0;
            for step in 0..20_000u64 {
                key = match random.below(4) {
                    0 => random.below(keys),
                    1 => key.saturating_sub(1),
                    _ => (key + 1) % keys,
                };
                match random.below(6) {
                    0 => {
                        table.insert(key, step);
                        plain.insert(key, step);
                    }
                    1 => assert_eq!(table.remove(&key), plain.remove(&key)),
                    2 => {
                        *table.get_or_default(key) += 1;
                        *plain.entry(key).or_default() += 1;
                    }
                    3 => assert_eq!(table.get_mut(&key), plain.get_mut(&key)),
                    _ => assert_eq!(table.get(&key), plain.get(&key)),
                }
                assert_eq!(table.len(), plain.len());
            }
            let mut all: Vec<_> = table.iter().map(|(key, value)| (*key, *value)).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(plain));
        }
    }
}
