//! Pushes of small keys under a rule: without a plan, while the table is held.

use smallvec::SmallVec;

use super::check::{FEW, Lists, with_one};
use super::copy::{MOST_TARGETS, are_small, try_each};
use crate::kernel::{Isa, MAX_STATES, Meter, Pass, Rule, Squares, Traffic};
use crate::local::apply::Applier;
use crate::local::counters::CallTally;
use crate::local::merge::AHEAD_BYTES;
use crate::local::plan::Pairs;
use crate::local::table::{KeyTable, Slot, Value};
use crate::optim::{Optimizer, Passes, RowRule, StateArrays};
use crate::sys::DefaultFloats;
use crate::tensor::Array;

impl Applier {
    /// Makes a push of one key if it takes at most one pass over few bytes. False if it takes more,
    /// if the key is in use or removed, or if there is no memory for its state; nothing has changed
    /// then.
    pub(crate) fn optimize_one(
        &self,
        table: &KeyTable,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
        optimizer: &Optimizer,
    ) -> bool {
        if values.keys.is_empty() || !optimizer.is_elementwise() {
            return false;
        }
        let done = with_one(table, values, outs, |entry, values, outs| {
            let _floats = DefaultFloats::enter();
            let bytes = self.step(&entry.slot, values, outs, optimizer)?;
            Some(CallTally::of(values.len(), outs.len(), bytes))
        });
        done.inspect(|tally| self.counters.add(tally)).is_some()
    }

    /// Makes the pushes of lists with one value for each key, up to one that takes more; gives how
    /// many keys are done.
    pub(crate) fn optimize_lists(&self, lists: &Lists<'_>, optimizer: &Optimizer) -> usize {
        let (values, outs) = (&lists.values[..], &lists.outs[..]);
        if !are_small(lists) || values.is_empty() || !optimizer.is_elementwise() {
            return 0;
        }
        let _floats = DefaultFloats::enter();
        let (done, bytes) = try_each(values, outs, |at, value| {
            let out = outs.get(at).map(|out| out.data);
            self.step(value.slot, &[value.data], out.as_slice(), optimizer)
        });
        let filled = if outs.is_empty() { (0, 0) } else { (done, bytes) };
        self.counters.add(&CallTally::sum((done, bytes), filled));
        done
    }

    /// Merges the values of a key, and fills its outs; gives how many bytes it has.
    fn step(
        &self,
        slot: &Slot,
        values: &[*mut u8],
        outs: &[*mut u8],
        optimizer: &Optimizer,
    ) -> Option<usize> {
        // The stored value, and the state beside it, are read and written.
        let arrays = values.len() + outs.len() + 2 + 2 * (MAX_STATES + 1);
        if arrays * slot.bytes() >= AHEAD_BYTES {
            return None;
        }
        let mut value = self.try_write(slot)?;
        let Value { buffer, state, residuals, .. } = &mut *value;
        *residuals = None;
        let (state, arrays) = self.prepare(slot, optimizer, buffer, state, false).ok()?;
        let stored = Array::of(buffer, slot.dtype);
        let inputs: SmallVec<[_; FEW]> = values.iter().map(|it| it.cast_const()).collect();
        let copy = arrays.has_master().then(|| stored.start_mut());
        let outs: SmallVec<[_; MOST_TARGETS]> =
            copy.into_iter().chain(outs.iter().copied()).collect();
        let (isa, arrays) = (self.team.isa, &arrays);
        let mut pass = OnePass { isa, slot, inputs: &inputs, outs: &outs, stored, arrays };
        optimizer.push(slot.key, state, &mut pass);
        Some(slot.bytes())
    }
}

/// The only pass of a push.
struct OnePass<'a> {
    isa: Isa,
    slot: &'a Slot,
    inputs: &'a [*const u8],
    /// First the stored value, if it is only the rounded copy of a master.
    outs: &'a [*mut u8],
    stored: Array,
    arrays: &'a StateArrays,
}

impl Passes for OnePass<'_> {
    fn merge(&mut self, rule: &dyn Rule) {
        let &mut Self { isa, slot, inputs, outs, ref stored, arrays } = self;
        let (dtype, count, traffic) = (slot.dtype, slot.count, Traffic::Cached);
        let target = arrays.target(stored, &(0..count));
        isa.merge_planned(rule, &Pass { dtype, outs, inputs, count, traffic }, &target);
    }

    fn measure(&mut self, _: &dyn Meter) -> Squares {
        unreachable!("only rules that go element by element are given such a pass")
    }

    fn has_rows(&self) -> bool {
        false
    }

    fn merge_rows(&mut self, _: &dyn RowRule) {
        unreachable!("as above")
    }
}
