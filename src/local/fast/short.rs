//! Short calls: each key is one pass over few bytes, while the table is held, without a plan and
//! without a reference to each key.
#![allow(
    clippy::inline_always,
    reason = "a guard that a function returns goes through memory, for a third of a call's time"
)]

use smallvec::SmallVec;

use super::check::{FEW, Lists};
use super::keys::{KeyTensors, KeyWalk};
use crate::kernel::{Pass, Rule, Traffic};
use crate::local::apply::Applier;
use crate::local::counters::CallTally;
use crate::local::lock::{ReadGuard, WriteGuard};
use crate::local::merge::{STREAM_BYTES, Team};
use crate::local::merger::ShortMerge;
use crate::local::table::{Slot, Value};
use crate::optim::{KeyRule, Optimizer, Passes, RowRule, StateArrays};
use crate::sys::DefaultFloats;
use crate::sys::caches::CacheSizes;
use crate::tensor::{Array, DType, Lent, PageOffset, Place};

/// Maximum bytes of a call that is made this way: no key is added or removed while the table is held.
const MOST_BYTES: usize = 256 << 20;

/// Maximum bytes of the largest tensor of a list whose passes leave it to the processor what to load before.
const LOADED_BYTES: usize = 8 << 10;

/// The arrays that a pass writes: mostly the stored value, and outs.
type Targets = SmallVec<[*mut u8; FEW + 1]>;

/// How the passes of a call on lists treat the caches. None for a call that is planned: its table would be held for
/// long, or its stores may go past the caches.
pub(super) fn traffic(lists: &Lists<'_>) -> Option<Traffic> {
    let is_short = lists.largest < STREAM_BYTES && lists.bytes <= MOST_BYTES;
    let loads = lists.largest > LOADED_BYTES && CacheSizes::get().looks_ahead(lists.bytes);
    is_short.then_some(if loads { Traffic::Ahead } else { Traffic::Cached })
}

impl Applier {
    /// Makes a call on one key. None if that is more than a short pass, if the key is in use or has
    /// been removed, or if there is no memory for its state; nothing has changed then.
    #[inline]
    pub(crate) fn make_one(&self, key: &KeyTensors<'_>, merge: &ShortMerge) -> Option<()> {
        let arrays = key.values.len() + key.outs.len() + merge.kept();
        if !self.team.is_short(arrays * key.slot.bytes()) {
            return None;
        }
        // Copies do not calculate.
        let calculates = key.values.len() > 1 || matches!(merge, ShortMerge::Rule(_));
        let _floats = calculates.then(DefaultFloats::enter);
        self.make(key, merge, Traffic::Cached)?;
        self.counters.add(&tally(key));
        Some(())
    }

    /// Makes a call on lists, key by key, up to one for which [`Applier::make_one`] gives None; gives
    /// the keys that are left.
    pub(crate) fn make_each<'a>(
        &self,
        mut keys: KeyWalk<'a>,
        merge: &ShortMerge,
        traffic: Traffic,
    ) -> KeyWalk<'a> {
        let _floats = DefaultFloats::enter();
        let mut done = CallTally::default();
        while let Some(key) = keys.first()
            && self.make(&key, merge, traffic).is_some()
        {
            done.add(&tally(&key));
            keys.skip_first(&key);
        }
        self.counters.add(&done);
        keys
    }

    #[inline(always)]
    fn make(&self, key: &KeyTensors<'_>, merge: &ShortMerge, traffic: Traffic) -> Option<()> {
        if key.values.is_empty() {
            return self.fetch(key, traffic);
        }
        let mut value = self.try_write(key.slot)?;
        self.merge_short(key, &mut value, merge, traffic)
    }

    /// Copies a stored value to the outs. None if the key is in use or has been removed.
    #[inline(always)]
    pub(super) fn fetch(&self, key: &KeyTensors<'_>, traffic: Traffic) -> Option<()> {
        let stored = self.try_read(key.slot)?;
        let from = stored.buffer.as_ptr().cast_const();
        self.copy(key.slot, from, Place::outs(key.outs), traffic);
        Some(())
    }

    /// Merges the values of a key that the caller has locked, and fills its outs; the thread has the
    /// default floating-point state. None if there is no memory for the key's state.
    #[inline(always)]
    pub(super) fn merge_short(
        &self,
        key: &KeyTensors<'_>,
        value: &mut Value,
        merge: &ShortMerge,
        traffic: Traffic,
    ) -> Option<()> {
        match merge {
            ShortMerge::Assign => self.assign(key, value, traffic),
            ShortMerge::Rule(optimizer) => self.optimize_short(key, value, optimizer, traffic)?,
        }
        value.residuals = None;
        value.merges += 1;
        Some(())
    }

    /// Replaces a stored value by the sum of the values, and fills the outs.
    #[inline(always)]
    fn assign(&self, key: &KeyTensors<'_>, value: &mut Value, traffic: Traffic) {
        let &KeyTensors { slot, values, outs } = key;
        let stored = value.buffer.as_ptr();
        if let (&[from], [] | [_], true) = (values, outs, slot.bytes() <= Array::FEW) {
            let (from, bytes) = (array(from.start()), slot.bytes());
            array(stored).copy_few(&from, bytes);
            // An out may be the value.
            if let Some(out) = outs.first().filter(|out| **out != values[0]) {
                array(out.start()).copy_few(&from, bytes);
            }
            return;
        }
        value.buffer.place(outs.first().unwrap_or(&values[0]).start(), PageOffset::Stored);
        let mut targets: Targets = SmallVec::new();
        targets.push(value.buffer.as_ptr());
        let needless = |out: &Place| matches!(values, [from] if from == out);
        targets.extend(outs.iter().filter(|out| !needless(out)).map(|out| out.start()));
        self.pass(slot, Place::inputs(values), &targets, traffic);
    }

    /// Copies the elements of a key from one array to others.
    #[inline]
    fn copy(&self, slot: &Slot, from: *const u8, outs: &[*mut u8], traffic: Traffic) {
        match outs {
            [] => {}
            &[out] if slot.bytes() <= Array::FEW => {
                array(out).copy_few(&array(from.cast_mut()), slot.bytes());
            }
            _ => self.pass(slot, &[from], outs, traffic),
        }
    }

    /// Adds arrays up, or copies the only one.
    #[inline]
    fn pass(&self, slot: &Slot, inputs: &[*const u8], outs: &[*mut u8], traffic: Traffic) {
        let (dtype, count) = (slot.dtype, slot.count);
        let Team { isa, order, .. } = self.team;
        isa.sum_planned(&Pass { dtype, outs, inputs, count, traffic, order, divisor: None });
    }

    /// Merges the values by a rule, and fills the outs.
    fn optimize_short(
        &self,
        key: &KeyTensors<'_>,
        value: &mut Value,
        optimizer: &Optimizer,
        traffic: Traffic,
    ) -> Option<()> {
        let &KeyTensors { slot, values, outs } = key;
        let Value { buffer, state, .. } = value;
        let (state, arrays) = self.prepare(slot, optimizer, buffer, state, false).ok()?;
        let (stored, mut outs) = (Array::of(buffer, slot.dtype), Place::outs(outs));
        let mut with_stored: Targets = SmallVec::new();
        if arrays.has_master() {
            with_stored.push(stored.start_mut());
            with_stored.extend_from_slice(outs);
            outs = &with_stored;
        }
        let (team, inputs, arrays) = (self.team, Place::inputs(values), &arrays);
        let mut pass = OnePass { team, slot, inputs, outs, stored, arrays, traffic };
        optimizer.push(slot.key, 1.0, state, &mut pass);
        Some(())
    }

    /// The value of a key that is not in use, and is in host memory.
    #[inline(always)]
    fn try_read<'a>(&'a self, slot: &'a Slot) -> Option<ReadGuard<'a, Value>> {
        slot.value.try_read(&self.released).filter(|value| value.is_here())
    }

    /// The writable value of a key that is not in use, and is in host memory.
    #[inline(always)]
    pub(super) fn try_write<'a>(&'a self, slot: &'a Slot) -> Option<WriteGuard<'a, Value>> {
        slot.value.try_write(&self.released).filter(|value| value.is_here())
    }
}

/// What a call counts for a key.
pub(super) fn tally(key: &KeyTensors<'_>) -> CallTally {
    CallTally::of(key.values.len(), key.outs.len(), key.slot.bytes())
}

/// The bytes at an address.
fn array(data: *mut u8) -> Array {
    Lent::plain(data, DType::U8).array()
}

/// The only pass of a push.
struct OnePass<'a> {
    team: Team<'static>,
    slot: &'a Slot,
    inputs: &'a [*const u8],
    /// First the stored value, if it is only the rounded copy of a master.
    outs: &'a [*mut u8],
    stored: Array,
    arrays: &'a StateArrays,
    traffic: Traffic,
}

impl Passes for OnePass<'_> {
    fn merge(&mut self, rule: &dyn Rule) {
        let &mut Self { team, slot, inputs, outs, ref stored, arrays, traffic } = self;
        let (Team { isa, order, .. }, dtype, count) = (team, slot.dtype, slot.count);
        let target = arrays.target(stored, &(0..count));
        let pass = Pass { dtype, outs, inputs, count, traffic, order, divisor: None };
        isa.merge_planned(rule, &pass, &target);
    }

    fn merge_key(&mut self, _: &dyn KeyRule) {
        unreachable!("only rules that go element by element are given such a pass")
    }

    fn has_rows(&self) -> bool {
        false
    }

    fn merge_rows(&mut self, _: &dyn RowRule) {
        unreachable!("as above")
    }
}
