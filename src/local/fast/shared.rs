//! Short calls on long lists: their keys are shared out among threads.

use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::check::Lists;
use super::keys::{KeyTensors, KeyWalk, emptied};
use super::short::{tally, traffic};
use crate::kernel::Traffic;
use crate::local::apply::Applier;
use crate::local::counters::CallTally;
use crate::local::lock::WriteGuard;
use crate::local::merger::ShortMerge;
use crate::local::table::Value;
use crate::pool::{Help, SPLIT_BYTES, pool};
use crate::sys::DefaultFloats;
use crate::sys::sync::Mutex;

/// Runs of keys for each thread: the last ones even out what threads are behind.
const RUNS: usize = 8;

/// Bytes of an average tensor from which sharing the keys out pays. All are locked first then, and what is known of
/// a key moves from one processor's caches to another's.
const LEAST_BYTES: usize = 512;

/// Bytes of the tensors that are shared out at a time: a push has their keys locked meanwhile, for some milliseconds.
const PORTION_BYTES: usize = 64 << 20;

/// The memory of a call whose keys are shared out. Each thread keeps one.
#[derive(Default)]
pub(crate) struct SharedMemory {
    keys: Vec<KeyTensors<'static>>,
    guards: Vec<WriteGuard<'static, Value>>,
    work: Vec<SharedKey<'static>>,
    runs: Vec<SharedRun<'static, 'static>>,
}

/// Neighbouring keys, which one thread takes.
type SharedRun<'r, 'a> = Mutex<&'r mut [SharedKey<'a>]>;

/// A key of the call, and its value if the call changes it.
struct SharedKey<'a> {
    key: KeyTensors<'a>,
    value: Option<&'a mut Value>,
}

/// Bytes that a call touches, if all keys have as many tensors as the first one; none where values and outs alone bring
/// no helper a gain, as handing a list over takes longer than a key.
fn touched(lists: &Lists<'_>, merge: &ShortMerge) -> usize {
    let tensors = lists.keys().first().map_or(1, |key| key.values.len() + key.outs.len());
    if lists.bytes < SPLIT_BYTES { 0 } else { lists.bytes / tensors * (tensors + merge.kept()) }
}

impl Applier {
    /// Makes a call on lists, if it is short enough, up to a key that is in use or has been removed,
    /// or for whose state there is no memory; gives the keys that are left.
    pub(crate) fn make_lists<'a>(
        &self,
        lists: &'a Lists<'_>,
        merge: &ShortMerge,
        memory: &mut SharedMemory,
    ) -> KeyWalk<'a> {
        let mut keys = lists.keys();
        let Some(traffic) = traffic(lists) else { return keys };
        let pays = lists.bytes >= lists.tensors() * LEAST_BYTES;
        let help = Help::ask(if pays { self.team.threads - 1 } else { 0 }, touched(lists, merge));
        let mut goes_on = help.helpers > 0;
        while goes_on {
            (keys, goes_on) = self.make_shared(keys, (merge, traffic), help.helpers, memory);
        }
        self.make_each(keys, merge, traffic)
    }

    /// Makes a portion of a call with helpers, of keys that all have values or all have none; gives the keys that are
    /// left, and whether they are another portion.
    ///
    /// A push first locks every key of the portion, in order: where one is in use, the keys before it are done and
    /// those after it are not, as without helpers.
    fn make_shared<'a>(
        &self,
        keys: KeyWalk<'a>,
        (merge, traffic): (&ShortMerge, Traffic),
        helpers: usize,
        memory: &mut SharedMemory,
    ) -> (KeyWalk<'a>, bool) {
        let mut taken = emptied(std::mem::take(&mut memory.keys));
        let mut guards = emptied(std::mem::take(&mut memory.guards));
        let (rest, is_full) = self.take_keys(keys.clone(), merge, &mut taken, &mut guards);
        let mut work = emptied(std::mem::take(&mut memory.work));
        let values = guards.iter_mut().map(|guard| Some(&mut **guard));
        let all = taken.iter().zip(values.chain(iter::repeat_with(|| None)));
        work.extend(all.map(|(&key, value)| SharedKey { key, value }));
        let done = self.share(&mut work, (merge, traffic), helpers, &mut memory.runs);
        memory.work = emptied(work);
        let mut tallies = CallTally::default();
        taken[..done].iter().for_each(|key| tallies.add(&tally(key)));
        self.counters.add(&tallies);
        let is_whole = done == taken.len();
        let left = if is_whole { rest } else { keys.after(done) };
        (memory.keys, memory.guards) = (emptied(taken), emptied(guards));
        (left, is_whole && is_full)
    }

    /// Takes the keys of a portion, and locks those with values; gives the keys that are left, and whether the portion
    /// is full.
    fn take_keys<'a, 'b>(
        &'b self,
        mut keys: KeyWalk<'a>,
        merge: &ShortMerge,
        taken: &mut Vec<KeyTensors<'a>>,
        guards: &mut Vec<WriteGuard<'b, Value>>,
    ) -> (KeyWalk<'a>, bool)
    where
        'a: 'b,
    {
        let pulls = keys.first().is_some_and(|key| key.values.is_empty());
        let mut bytes = 0;
        while bytes < PORTION_BYTES
            && let Some(key) = keys.first().filter(|key| key.values.is_empty() == pulls)
        {
            bytes += (key.values.len() + key.outs.len()) * key.slot.bytes();
            if !pulls {
                let Some(guard) = self.take_ready(&key, merge) else { break };
                guards.push(guard);
            }
            taken.push(key);
            keys.skip_first(&key);
        }
        (keys, bytes >= PORTION_BYTES)
    }

    /// Locks a key, and makes its state. None if it is in use or has been removed, or if there is no
    /// memory.
    fn take_ready<'a>(
        &'a self,
        key: &KeyTensors<'a>,
        merge: &ShortMerge,
    ) -> Option<WriteGuard<'a, Value>> {
        let mut guard = self.try_write(key.slot)?;
        if let ShortMerge::Rule(optimizer) = merge {
            let Value { buffer, state, .. } = &mut *guard;
            self.prepare(key.slot, optimizer, buffer, state, false).ok()?;
        }
        Some(guard)
    }

    /// Merges and copies on this thread and helpers; gives how many keys from the first on are done.
    /// Only pulls may leave some.
    fn share(
        &self,
        work: &mut [SharedKey<'_>],
        (merge, traffic): (&ShortMerge, Traffic),
        helpers: usize,
        memory: &mut Vec<SharedRun<'static, 'static>>,
    ) -> usize {
        let all = work.len();
        let length = all.div_ceil(RUNS * (1 + helpers)).max(1);
        let mut runs = emptied(std::mem::take(memory));
        runs.extend(work.chunks_mut(length).map(Mutex::new));
        let done = AtomicUsize::new(all);
        pool().split(helpers, runs.len(), &|index| {
            let _floats = DefaultFloats::enter();
            for (at, SharedKey { key, value }) in runs[index].lock().iter_mut().enumerate() {
                match value {
                    Some(value) => {
                        let is_done = self.merge_short(key, value, merge, traffic);
                        is_done.expect("its state is there");
                    }
                    None if self.fetch(key, traffic).is_some() => {}
                    None => {
                        // Relaxed: the end of the split orders it.
                        done.fetch_min(index * length + at, Ordering::Relaxed);
                        return;
                    }
                }
            }
        });
        *memory = emptied(runs);
        done.into_inner()
    }
}
