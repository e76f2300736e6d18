//! The key table: which keys exist, and the value of each under a lock of its own.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::lock::KeyLock;
use crate::error::Result;
use crate::key::Key;
use crate::optim::State;
use crate::sync::{Mutex, RwLock, RwLockReadGuard};
use crate::tensor::{Buffer, DType, text_of};

/// Shards of the table. Keys next to each other share one, so that a list in order changes the
/// shard rarely.
const SHARDS: usize = 16;
const KEYS_IN_A_ROW: u32 = 6;

/// Integer keys below this are found by position in their shard.
const DENSE: u64 = 1 << 22;

/// A key that exists: what it was initialised with, and its value.
pub(crate) struct Slot {
    pub(crate) key: Key,
    /// Place in processing order: integers ascending, then names by init.
    pub(crate) order: u64,
    pub(crate) dtype: DType,
    /// Inside the slot up to four dimensions, where checks find it without another miss.
    pub(crate) shape: SmallVec<[i64; 4]>,
    pub(crate) count: usize,
    /// Held while an updater runs: that is what keeps two updaters of one key apart.
    pub(crate) value: KeyLock<Value>,
    pub(crate) counters: Counters,
}

/// The value of a key.
pub(crate) struct Value {
    pub(crate) buffer: Buffer,
    /// What the optimizer keeps.
    pub(crate) state: Option<Box<State>>,
    /// Set when the key is removed; operations that found the slot before must not use it.
    pub(crate) removed: bool,
}

/// What happened to a key. Read without its lock, so that statistics never wait for an updater.
#[derive(Default)]
pub(crate) struct Counters {
    /// Values pushed.
    pub(crate) pushes: AtomicU64,
    /// Outs filled.
    pub(crate) pulls: AtomicU64,
    pub(crate) updater_calls: AtomicU64,
}

impl Slot {
    /// The value's size.
    pub(crate) fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// Dtype and shape as people write them.
    pub(crate) fn text(&self) -> String {
        text_of(self.dtype, &self.shape)
    }
}

/// Hashes the numbers of keys; names are hashes already, integers only need their bits spread.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // Multiplication by the golden ratio (Knuth, The Art of Computer Programming 3, 6.4).
        let spread = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = spread ^ (spread >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Default)]
struct Shard {
    dense: Vec<Option<Arc<Slot>>>,
    others: HashMap<Key, Arc<Slot>, BuildHasherDefault<KeyHasher>>,
}

pub(crate) struct KeyTable {
    shards: [RwLock<Shard>; SHARDS],
    /// Held while keys are made or removed, so that a list of them appears or goes as one.
    structure: Mutex<Totals>,
    names_made: AtomicU64,
}

/// What removed keys leave behind for the statistics.
#[derive(Default, Clone, Copy)]
pub(crate) struct Totals {
    pub(crate) keys: u64,
    pub(crate) bytes: u64,
    pub(crate) pushes: u64,
    pub(crate) pulls: u64,
    pub(crate) push_bytes: u64,
    pub(crate) pull_bytes: u64,
    pub(crate) updater_calls: u64,
}

/// Where a key lies: its shard, and its position there if it is a small integer.
#[allow(clippy::cast_possible_truncation, reason = "tensor/view.rs asserts a usize of 64 bits")]
fn place(key: Key) -> (usize, Option<usize>) {
    let id = key.id();
    if id >= DENSE {
        let mut hasher = KeyHasher::default();
        hasher.write_u64(id);
        return (hasher.finish() as usize % SHARDS, None);
    }
    let id = id as usize;
    let (row, column) = (id >> KEYS_IN_A_ROW, id & ((1 << KEYS_IN_A_ROW) - 1));
    (row % SHARDS, Some((row / SHARDS) << KEYS_IN_A_ROW | column))
}

impl Shard {
    fn get(&self, key: Key, position: Option<usize>) -> Option<&Arc<Slot>> {
        match position {
            // A dense position may lie beyond the vector and then sits in the map.
            Some(at) => self.dense.get(at).map_or_else(|| self.others.get(&key), Option::as_ref),
            None => self.others.get(&key),
        }
    }

    fn insert(&mut self, slot: Arc<Slot>, position: Option<usize>) {
        // The vector at most doubles at a time: a lone key in the millions goes to the map.
        let reach = (self.dense.len() * 2).max(1 << KEYS_IN_A_ROW);
        match position {
            Some(at) if at < reach => {
                if at >= self.dense.len() {
                    self.grow(reach);
                }
                self.dense[at] = Some(slot);
            }
            _ => {
                self.others.insert(slot.key, slot);
            }
        }
    }

    /// Lengthens the vector and moves the keys that now belong there out of the map.
    fn grow(&mut self, len: usize) {
        self.dense.resize(len, None);
        let moving: Vec<Key> = self.others.keys().copied().filter(|key| key.id() < DENSE).collect();
        for key in moving {
            if let (_, Some(at)) = place(key)
                && at < len
            {
                self.dense[at] = self.others.remove(&key);
            }
        }
    }

    fn remove(&mut self, key: Key, position: Option<usize>) -> Option<Arc<Slot>> {
        match position {
            Some(at) if at < self.dense.len() => self.dense[at].take(),
            _ => self.others.remove(&key),
        }
    }
}

impl KeyTable {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| RwLock::default()),
            structure: Mutex::default(),
            names_made: AtomicU64::new(0),
        }
    }

    /// Looks up many keys, changing the shard's lock only when the shard changes.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { table: self, shard: None }
    }

    pub(crate) fn get(&self, key: Key) -> Option<Arc<Slot>> {
        self.reader().get(key).cloned()
    }

    /// The place of a new key in processing order.
    pub(crate) fn next_order(&self, key: Key) -> u64 {
        if key.is_name() {
            (1 << 63) + self.names_made.fetch_add(1, Ordering::SeqCst)
        } else {
            key.id()
        }
    }

    /// Adds all slots, or none if `refuse` finds a reason against one of them.
    pub(crate) fn add(
        &self,
        slots: impl Iterator<Item = Arc<Slot>> + Clone,
        refuse: impl Fn(Key) -> crate::Error,
    ) -> Result<()> {
        let _structure = self.structure.lock();
        if let Some(known) = slots.clone().find(|slot| self.get(slot.key).is_some()) {
            return Err(refuse(known.key));
        }
        for slot in slots {
            let (shard, position) = place(slot.key);
            self.shards[shard].write().insert(slot, position);
        }
        Ok(())
    }

    /// Runs `mark` with the lock on the structure held, then takes the slots out if it succeeded.
    pub(crate) fn remove(
        &self,
        slots: &[Arc<Slot>],
        mark: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut totals = self.structure.lock();
        mark()?;
        for slot in slots {
            let (shard, position) = place(slot.key);
            self.shards[shard].write().remove(slot.key, position);
            totals.add(slot);
        }
        Ok(())
    }

    /// Every slot, in processing order.
    pub(crate) fn slots(&self) -> Vec<Arc<Slot>> {
        let mut slots = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            slots.extend(shard.dense.iter().flatten().cloned());
            slots.extend(shard.others.values().cloned());
        }
        slots.sort_unstable_by_key(|slot| slot.order);
        slots
    }

    /// Counters over all keys there are and were; keys and bytes only of those there are.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = *self.structure.lock();
        (totals.keys, totals.bytes) = (0, 0);
        for slot in self.slots() {
            totals.add(&slot);
        }
        totals
    }
}

impl Totals {
    fn add(&mut self, slot: &Slot) {
        // Relaxed: each number is exact by itself, which is all that statistics promise.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (bytes, counters) = (slot.bytes() as u64, &slot.counters);
        self.keys += 1;
        self.bytes += bytes;
        self.pushes += read(&counters.pushes);
        self.pulls += read(&counters.pulls);
        self.push_bytes += read(&counters.pushes) * bytes;
        self.pull_bytes += read(&counters.pulls) * bytes;
        self.updater_calls += read(&counters.updater_calls);
    }
}

/// A position in the table that remembers the shard it is in.
pub(crate) struct Reader<'a> {
    table: &'a KeyTable,
    shard: Option<(usize, RwLockReadGuard<'a, Shard>)>,
}

impl Reader<'_> {
    pub(crate) fn get(&mut self, key: Key) -> Option<&Arc<Slot>> {
        let (wanted, position) = place(key);
        if self.shard.as_ref().is_none_or(|(held, _)| *held != wanted) {
            // Never two shards at a time: give one back before the next is taken.
            self.shard = None;
            self.shard = Some((wanted, self.table.shards[wanted].read()));
        }
        self.shard.as_ref().and_then(|(_, shard)| shard.get(key, position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(id: u64) -> Arc<Slot> {
        let value = Value { buffer: Buffer::new(0).unwrap(), state: None, removed: false };
        Arc::new(Slot {
            key: Key::from(id),
            order: id,
            dtype: DType::F32,
            shape: SmallVec::from_slice(&[0]),
            count: 0,
            value: KeyLock::new(value),
            counters: Counters::default(),
        })
    }

    #[test]
    fn keys_are_found_whatever_the_order_they_came_in() {
        let table = KeyTable::new();
        let ids: Vec<u64> =
            (0..3000).map(|i| (i * 7919) % 3000).chain([DENSE - 1, DENSE, 1 << 63]).collect();
        for &id in &ids {
            table.add(std::iter::once(slot(id)), |_| unreachable!()).unwrap();
        }
        for &id in &ids {
            assert_eq!(table.get(Key::from(id)).unwrap().key.id(), id);
        }
        assert!(table.get(Key::from(3000u64)).is_none());
        let orders: Vec<u64> = table.slots().iter().map(|slot| slot.order).collect();
        assert_eq!(orders.len(), ids.len());
        assert!(orders.is_sorted());
        for &id in &ids {
            table.remove(&[slot(id)], || Ok(())).unwrap();
            assert!(table.get(Key::from(id)).is_none());
        }
    }
}
