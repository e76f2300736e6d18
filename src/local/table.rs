//! The key table: which keys exist, and the value of each under a lock of its own.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use smallvec::SmallVec;

use super::lock::{KeyLock, WriteGuard};
use super::merger::ShortMerge;
use super::transaction::kept::KeptValue;
use crate::codec::Residuals;
#[cfg(feature = "cuda")]
use crate::device::KeyMemory;
use crate::error::Result;
use crate::key::Key;
use crate::optim::OptimizerState;
use crate::search;
use crate::sys;
use crate::sys::sync::{Mutex, RwLock, RwLockReadGuard};
use crate::tensor::{Buffer, DType, TensorSpec, text_of};

/// Shards of the table. Neighbouring keys share one, so that a list in order rarely changes the
/// shard.
const SHARDS: usize = 16;
const KEYS_IN_A_ROW: u32 = 6;

/// Integer keys below this are found by position in their shard.
const DENSE: u64 = 1 << 22;

/// A key that exists: what it was initialised with, and its value.
///
/// Fields touched by each call are first: with a small value that is three cache lines.
#[repr(C)]
pub(crate) struct Slot {
    pub(crate) dtype: DType,
    /// The device on which the value is; changes with the value's place, under its lock.
    #[cfg(feature = "cuda")]
    device: AtomicU32,
    bytes: usize,
    pub(crate) count: usize,
    /// Held while an updater runs, which excludes a second updater of this key.
    pub(crate) value: KeyLock<Value>,
    /// Where the arrays of the optimizer's state were described at the last push: a hint for
    /// prefetching.
    state_at: AtomicPtr<u8>,
    pub(crate) key: Key,
    /// Place in processing order: integers ascending, then names by init.
    pub(crate) order: u64,
    /// Inside the slot up to four dimensions.
    pub(crate) shape: SmallVec<[i64; 4]>,
}

/// Stands for host memory.
#[cfg(feature = "cuda")]
const NO_DEVICE: u32 = u32::MAX;

/// Where the value of a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValuePlace {
    Host,
    #[cfg(feature = "cuda")]
    Device,
    /// The key is removed; operations that found the slot earlier must not use it.
    Removed,
}

/// The value of a key, in the order in which calls need its fields.
#[repr(C)]
pub(crate) struct Value {
    pub(crate) place: ValuePlace,
    /// The residuals of a codec.
    pub(crate) residuals: Option<Box<Residuals>>,
    pub(crate) buffer: Buffer,
    /// Pushes of the key since its init; not counted on a server.
    pub(crate) merges: u64,
    /// The optimizer's state of the key.
    pub(crate) state: Option<OptimizerState>,
    /// The memory of a key on a device; the buffer is empty then.
    #[cfg(feature = "cuda")]
    pub(crate) device: Option<Box<KeyMemory>>,
    /// The last weight of a push, and the push by its number: pushes without a weight write nothing here.
    pub(super) weighed: Option<Box<(u64, f64)>>,
    /// What a transaction keeps of it, or memory for that.
    pub(super) kept: Option<Box<KeptValue>>,
}

impl Value {
    pub(crate) fn new(buffer: Buffer) -> Self {
        Self {
            place: ValuePlace::Host,
            residuals: None,
            buffer,
            merges: 0,
            state: None,
            #[cfg(feature = "cuda")]
            device: None,
            weighed: None,
            kept: None,
        }
    }

    /// Keeps the weight of the push that has just been counted, if it has one.
    pub(crate) fn note_weight(&mut self, weight: Option<f64>) {
        if let Some(weight) = weight {
            let noted = (self.merges, weight);
            match &mut self.weighed {
                Some(weighed) => **weighed = noted,
                None => self.weighed = Some(Box::new(noted)),
            }
        }
    }

    /// The weight of the last push; 0 if it had none.
    pub(crate) fn weight(&self) -> f64 {
        let last = self.weighed.as_ref().filter(|it| it.0 == self.merges);
        last.map_or(0.0, |it| it.1)
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.place == ValuePlace::Removed
    }

    /// Takes memory on a device, where the value is from now on.
    #[cfg(feature = "cuda")]
    pub(crate) fn give(&mut self, memory: KeyMemory) {
        self.device = Some(Box::new(memory));
        self.place = ValuePlace::Device;
    }

    /// Whether it is in host memory, and its key is there.
    pub(crate) fn is_here(&self) -> bool {
        self.place == ValuePlace::Host
    }

    /// Frees what belongs to a key that is removed.
    pub(super) fn remove(&mut self) -> Result<()> {
        *self = Self { place: ValuePlace::Removed, ..Self::new(Buffer::new(0)?) };
        Ok(())
    }
}

impl Slot {
    /// A slot whose value has no memory yet.
    pub(crate) fn new(
        key: Key,
        order: u64,
        dtype: DType,
        shape: &[i64],
        count: usize,
    ) -> Result<Self> {
        let buffer = Buffer::new(0)?;
        let value = KeyLock::new(Value::new(buffer));
        let bytes = count * dtype.size();
        let (state_at, shape) = (AtomicPtr::default(), SmallVec::from_slice(shape));
        Ok(Self {
            dtype,
            #[cfg(feature = "cuda")]
            device: AtomicU32::new(NO_DEVICE),
            bytes,
            count,
            value,
            state_at,
            key,
            order,
            shape,
        })
    }

    /// The device on which the value is.
    #[cfg(feature = "cuda")]
    pub(crate) fn device(&self) -> Option<u16> {
        // Relaxed: a value that may move meanwhile is looked at again under its lock.
        u16::try_from(self.device.load(Ordering::Relaxed)).ok()
    }

    /// Notes that the value has moved to device memory; its lock is held, or no call sees it yet.
    #[cfg(feature = "cuda")]
    pub(crate) fn note_device(&self, ordinal: u16) {
        self.device.store(ordinal.into(), Ordering::Relaxed);
    }

    /// No build without devices has a value on one.
    #[cfg(not(feature = "cuda"))]
    #[allow(clippy::unused_self, reason = "the other build reads it")]
    pub(crate) fn device(&self) -> Option<u16> {
        None
    }

    /// Prefetches what describes the arrays of the optimizer's state.
    #[inline]
    pub(crate) fn prefetch_state(&self) {
        // Relaxed: a hint.
        let state = self.state_at.load(Ordering::Relaxed);
        if !state.is_null() {
            sys::prefetch_lines::<2>(state);
        }
    }

    /// Notes where the arrays of the optimizer's state are described.
    #[inline]
    pub(crate) fn note_state(&self, state: &OptimizerState) {
        let state = state.arrays_at().cast_mut();
        if self.state_at.load(Ordering::Relaxed) != state {
            self.state_at.store(state, Ordering::Relaxed);
        }
    }

    /// The value's size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Rows of the first axis, if there are elements; a scalar is one.
    pub(crate) fn rows(&self) -> usize {
        let first = self.shape.first().map_or(1, |&extent| extent);
        if self.count == 0 { 0 } else { usize::try_from(first).unwrap_or(0) }
    }

    /// Elements of a row: an index into the first axis. 0 for a scalar, which has no rows.
    pub(crate) fn row_length(&self) -> usize {
        let first = self.shape.first().map_or(0, |&extent| extent);
        usize::try_from(first).ok().and_then(|rows| self.count.checked_div(rows)).unwrap_or(0)
    }

    /// Dtype and shape as error texts show them.
    pub(crate) fn text(&self) -> String {
        text_of(self.dtype, &self.shape)
    }
}

/// The table's entry of a key.
pub(crate) struct TableEntry {
    pub(crate) slot: Arc<Slot>,
    /// The slot's dtype and shape, if they fit here and the value was in host memory at first: checks
    /// then need not touch the slot.
    pub(crate) spec: Option<TensorSpec>,
}

/// Where a key is or may be.
pub(crate) type TableCell = Option<TableEntry>;

impl TableEntry {
    fn new(slot: Arc<Slot>) -> Self {
        // Short calls are of host memory.
        let is_on_host = slot.device().is_none();
        let spec = TensorSpec::new(slot.dtype, &slot.shape).filter(|_| is_on_host);
        Self { slot, spec }
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

struct TableShard {
    /// See [`KeyTable::set_short_merge`].
    merge: Option<ShortMerge>,
    dense: Vec<TableCell>,
    /// None of these is empty.
    others: HashMap<Key, TableCell, BuildHasherDefault<KeyHasher>>,
}

pub(crate) struct KeyTable {
    shards: [RwLock<TableShard>; SHARDS],
    /// Held while keys are added or removed, so that a list of them changes as one. Its holder
    /// waits for no value: calls on other keys would wait with it, beyond their deadlines.
    structure: Mutex<()>,
    names_made: AtomicU64,
    /// How often keys have been removed.
    removals: AtomicU64,
}

/// Where a key lies: its shard, and its position there if it is a small integer.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "tensor/view.rs asserts a usize of 64 bits")]
fn locate(key: Key) -> (usize, Option<usize>) {
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

impl TableShard {
    fn new() -> Self {
        let merge = Some(ShortMerge::Assign);
        Self { merge, dense: Vec::new(), others: HashMap::default() }
    }

    /// The place of a key, without reading its entry.
    #[inline]
    fn find(&self, key: Key, position: Option<usize>) -> Option<&TableCell> {
        search::step();
        // A dense position may lie beyond the vector; the key then sits in the map.
        let dense = position.and_then(|at| self.dense.get(at));
        if dense.is_some() { dense } else { self.find_other(key) }
    }

    #[inline(never)]
    fn find_other(&self, key: Key) -> Option<&TableCell> {
        self.others.get(&key)
    }

    fn insert(&mut self, entry: TableEntry, position: Option<usize>) {
        // The vector at most doubles at a time: a lone key in the millions goes to the map.
        let reach = (self.dense.len() * 2).max(1 << KEYS_IN_A_ROW);
        match position {
            Some(at) if at < reach => {
                if at >= self.dense.len() {
                    self.grow(reach);
                }
                self.dense[at] = Some(entry);
            }
            _ => {
                self.others.insert(entry.slot.key, Some(entry));
            }
        }
    }

    /// Lengthens the vector and moves the keys that now belong there out of the map.
    fn grow(&mut self, len: usize) {
        self.dense.resize_with(len, || None);
        let moving: Vec<Key> = self.others.keys().copied().filter(|key| key.id() < DENSE).collect();
        for key in moving {
            if let (_, Some(at)) = locate(key)
                && at < len
            {
                self.dense[at] = self.others.remove(&key).flatten();
            }
        }
    }

    fn remove(&mut self, key: Key, position: Option<usize>) {
        match position {
            Some(at) if at < self.dense.len() => self.dense[at] = None,
            _ => _ = self.others.remove(&key),
        }
    }
}

impl KeyTable {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| RwLock::new(TableShard::new())),
            structure: Mutex::default(),
            names_made: AtomicU64::new(0),
            removals: AtomicU64::new(0),
        }
    }

    /// Holds the table for looking up many keys.
    pub(crate) fn hold(&self) -> LockedTable<'_> {
        LockedTable { table: self, shards: std::array::from_fn(|_| OnceCell::new()) }
    }

    /// Looks up one key, and calls `work` with its table entry and the merge of short calls. `work`
    /// must not wait.
    #[inline]
    pub(crate) fn with<T>(
        &self,
        key: Key,
        work: impl FnOnce(&TableEntry, Option<&ShortMerge>) -> Option<T>,
    ) -> Option<T> {
        let (shard, position) = locate(key);
        let shard = self.shards[shard].read();
        work(shard.find(key, position)?.as_ref()?, shard.merge.as_ref())
    }

    pub(crate) fn get(&self, key: Key) -> Option<Arc<Slot>> {
        self.with(key, |entry, _| Some(Arc::clone(&entry.slot)))
    }

    /// Sets how short calls merge from now on; with None there are none.
    pub(crate) fn set_short_merge(&self, merge: Option<&ShortMerge>) {
        self.shards.iter().for_each(|shard| shard.write().merge = merge.cloned());
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
            let (shard, position) = locate(slot.key);
            self.shards[shard].write().insert(TableEntry::new(slot), position);
        }
        Ok(())
    }

    /// Runs `mark` with the lock on the structure held, then takes the slots out if it succeeded.
    /// `mark` must not wait.
    pub(crate) fn remove(
        &self,
        slots: &[Arc<Slot>],
        mark: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _structure = self.structure.lock();
        // Before the first key goes, so that no call takes it for one that is there.
        self.removals.fetch_add(1, Ordering::SeqCst);
        mark()?;
        for slot in slots {
            let (shard, position) = locate(slot.key);
            self.shards[shard].write().remove(slot.key, position);
        }
        Ok(())
    }

    /// Replaces the values of existing keys by those of `slots`, and adds the other slots at the
    /// end of the processing order: all, or none if `ready` fails. `known` has the table entry of
    /// each key, and `locked` its value, locked for change. Returns false, and changes nothing, if
    /// keys have been added or removed since.
    pub(crate) fn put(
        &self,
        slots: &mut Vec<Slot>,
        known: &[Option<Arc<Slot>>],
        locked: Vec<Option<WriteGuard<'_, Value>>>,
        ready: impl FnOnce() -> Result<()>,
    ) -> Result<bool> {
        let _structure = self.structure.lock();
        let is_as_known = |(slot, known): (&Slot, &Option<Arc<Slot>>)| {
            self.get(slot.key).as_ref().map(Arc::as_ptr) == known.as_ref().map(Arc::as_ptr)
        };
        // A value may have moved to a device since.
        let is_in_place = |(slot, known): (&Slot, &Option<Arc<Slot>>)| {
            known.as_ref().is_none_or(|known| known.device() == slot.device())
        };
        let mut pairs = slots.iter().zip(known);
        if !pairs.clone().all(is_as_known) || !pairs.all(is_in_place) {
            return Ok(false);
        }
        ready()?;
        for (mut slot, locked) in slots.drain(..).zip(locked) {
            if let Some(mut value) = locked {
                slot.value.get_mut().merges = value.merges;
                std::mem::swap(&mut *value, slot.value.get_mut());
            } else {
                slot.order = self.next_order(slot.key);
                let (shard, position) = locate(slot.key);
                self.shards[shard].write().insert(TableEntry::new(Arc::new(slot)), position);
            }
        }
        Ok(true)
    }

    /// How often keys have been removed: slots that were found since the last time are in the table.
    #[inline]
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::SeqCst)
    }

    /// Every slot, in processing order.
    pub(crate) fn slots(&self) -> Vec<Arc<Slot>> {
        let mut slots = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            let entries = shard.dense.iter().chain(shard.others.values()).flatten();
            slots.extend(entries.map(|entry| Arc::clone(&entry.slot)));
        }
        slots.sort_unstable_by_key(|slot| slot.order);
        slots
    }

    /// Number of keys, and the bytes of their values.
    pub(crate) fn size(&self) -> (usize, usize) {
        let slots = self.slots();
        (slots.len(), slots.iter().map(|slot| slot.bytes()).sum())
    }
}

/// The table during one call: shards are locked for reading on first access, and stay locked.
///
/// That cannot block for ever, and never on another thread that does the same. Only one thread at a
/// time writes to a shard, the one with the lock on the structure. It waits for nothing else
/// meanwhile. The holder of this view must not wait for anything either.
pub(crate) struct LockedTable<'a> {
    table: &'a KeyTable,
    shards: [OnceCell<RwLockReadGuard<'a, TableShard>>; SHARDS],
}

impl LockedTable<'_> {
    /// The place of a key, without reading its entry.
    #[inline]
    pub(crate) fn find(&self, key: Key) -> Option<&TableCell> {
        let (shard, position) = locate(key);
        self.shard(shard).find(key, position)
    }

    #[inline]
    fn shard(&self, index: usize) -> &TableShard {
        self.shards[index].get_or_init(|| self.table.shards[index].read())
    }

    /// The merge of a short call that begins with a key.
    pub(crate) fn short_merge(&self, first: Key) -> Option<ShortMerge> {
        self.shard(locate(first).0).merge.clone()
    }

    pub(crate) fn get(&self, key: Key) -> Option<&TableEntry> {
        self.find(key)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(id: u64) -> Arc<Slot> {
        Arc::new(Slot::new(Key::from(id), id, DType::F32, &[0], 0).unwrap())
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
