//! Small values that are only copied, in and out, while the table is held: without a plan, and
//! without a reference to each key.

use std::ptr;

use smallvec::SmallVec;

use super::check::{FEW, Fit, Lists, with_one};
use crate::kernel::{Pass, Traffic};
use crate::local::apply::Applier;
use crate::local::counters::CallTally;
use crate::local::lock::{ReadGuard, WriteGuard};
use crate::local::merge::AHEAD_BYTES;
use crate::local::plan::Pairs;
use crate::local::table::{KeyTable, Slot, Value};
use crate::sys::{self, DefaultFloats};
use crate::tensor::{Array, DType, LINE, Lent, PageOffset};

/// Largest tensor of a list, and maximum bytes of a call, that are copied this way. No key is added
/// or removed while the table is held.
const SMALL_BYTES: usize = 8 << 10;
const MOST_BYTES: usize = 64 << 20;

/// The largest tensor of a call with one key that is copied so.
const ONE_BYTES: usize = 256 << 10;

/// The most arrays that a call with one key writes: its outs, and the stored value.
pub(crate) const MOST_TARGETS: usize = FEW + 1;

/// Prefetch distance in keys.
const AHEAD: usize = 16;

impl Applier {
    /// Does a call of one key if it takes no more than a copy; false if it does, or if the key is in
    /// use or has been removed.
    pub(crate) fn copy_one(&self, table: &KeyTable, values: &Pairs<'_>, outs: &Pairs<'_>) -> bool {
        let copied = with_one(table, values, outs, |entry, values, outs| {
            let slot = &*entry.slot;
            let bytes = match (values, outs) {
                _ if slot.bytes() > ONE_BYTES => None,
                (&[data], []) => self.put(&Fit { slot, data }, None),
                (&[data], &[out]) => self.put(&Fit { slot, data }, Some(out)),
                ([], &[data]) => self.fetch(&Fit { slot, data }),
                _ => self.sum(slot, values, outs),
            };
            bytes.map(|bytes| CallTally::of(values.len(), outs.len(), bytes))
        });
        copied.inspect(|tally| self.counters.add(tally)).is_some()
    }

    /// Copies lists that are uniform and small enough, up to a key that is in use or has been
    /// removed; gives how many keys are done.
    pub(crate) fn copy(&self, lists: &Lists<'_>) -> usize {
        let (values, outs) = (&lists.values[..], &lists.outs[..]);
        if !are_small(lists) {
            return 0;
        }
        let (done, bytes) = if outs.is_empty() {
            try_each(values, &[], |_, value| self.put(value, None))
        } else if values.is_empty() {
            try_each(outs, &[], |_, out| self.fetch(out))
        } else {
            try_each(values, outs, |at, value| self.put(value, Some(outs[at].data)))
        };
        let count = |list: &[Fit<'_>]| if list.is_empty() { (0, 0) } else { (done, bytes) };
        self.counters.add(&CallTally::sum(count(values), count(outs)));
        done
    }

    /// Replaces a stored value by the sum of values, if there are any, and copies it to outs; gives
    /// how many bytes it has. None if that is too much, or the key is in use or has been removed.
    fn sum(&self, slot: &Slot, values: &[*mut u8], outs: &[*mut u8]) -> Option<usize> {
        let arrays = values.len() + outs.len() + 1;
        if arrays * slot.bytes() >= AHEAD_BYTES {
            return None;
        }
        let pass = |inputs: &[*const u8], outs: &[*mut u8]| {
            let (dtype, count, traffic) = (slot.dtype, slot.count, Traffic::Cached);
            self.team.isa.sum_planned(&Pass { dtype, outs, inputs, count, traffic });
        };
        if values.is_empty() {
            let stored = self.try_read(slot)?;
            pass(&[stored.buffer.as_ptr()], outs);
        } else {
            let mut stored = self.try_write(slot)?;
            stored.buffer.place(outs.first().map_or(values[0], |&out| out), PageOffset::Stored);
            let inputs: SmallVec<[_; FEW]> = values.iter().map(|it| it.cast_const()).collect();
            let stored = [stored.buffer.as_ptr()];
            let targets: SmallVec<[_; MOST_TARGETS]> = stored.iter().chain(outs).copied().collect();
            let _floats = DefaultFloats::enter();
            pass(&inputs, &targets);
        }
        Some(slot.bytes())
    }

    /// Replaces a stored value, and copies it to an out; gives how many bytes it has. None if the
    /// key is in use or has been removed.
    #[inline]
    fn put(&self, value: &Fit<'_>, out: Option<*mut u8>) -> Option<usize> {
        let slot = value.slot;
        let stored = self.try_write(slot)?;
        let out = out.filter(|&out| out != value.data);
        self.copy_bytes(value.data, stored.buffer.as_ptr(), out, slot.bytes());
        Some(slot.bytes())
    }

    /// Copies a stored value to an out; gives how many bytes it has. None if the key is in use or
    /// has been removed.
    #[inline]
    fn fetch(&self, out: &Fit<'_>) -> Option<usize> {
        let slot = out.slot;
        let stored = self.try_read(slot)?;
        self.copy_bytes(stored.buffer.as_ptr(), out.data, None, slot.bytes());
        Some(slot.bytes())
    }

    /// The value of a key that is not in use and has not been removed.
    #[inline]
    fn try_read<'a>(&'a self, slot: &'a Slot) -> Option<ReadGuard<'a, Value>> {
        slot.value.try_read(&self.released).filter(|value| !value.removed)
    }

    /// The writable value of a key that is not in use and has not been removed.
    #[inline]
    pub(crate) fn try_write<'a>(&'a self, slot: &'a Slot) -> Option<WriteGuard<'a, Value>> {
        slot.value.try_write(&self.released).filter(|value| !value.removed)
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "a few instructions for the sizes that matter here")]
    fn copy_bytes(&self, from: *mut u8, to: *mut u8, and_to: Option<*mut u8>, bytes: usize) {
        if bytes > Array::FEW {
            return self.copy_many(from, to, and_to, bytes);
        }
        array(to).copy_few(&array(from), bytes);
        if let Some(and_to) = and_to {
            array(and_to).copy_few(&array(from), bytes);
        }
    }

    fn copy_many(&self, from: *mut u8, to: *mut u8, and_to: Option<*mut u8>, bytes: usize) {
        let (inputs, outs) = ([from.cast_const()], [to, and_to.unwrap_or(to)]);
        let outs = if and_to.is_some() { &outs[..] } else { &outs[..1] };
        let (dtype, traffic) = (DType::U8, Traffic::Cached);
        self.team.isa.sum_planned(&Pass { dtype, outs, inputs: &inputs, count: bytes, traffic });
    }
}

/// Whether lists are uniform, and short and small enough that the table is not held for long.
pub(crate) fn are_small(lists: &Lists<'_>) -> bool {
    let most = lists.largest.saturating_mul(lists.values.len() + lists.outs.len());
    lists.uniform && lists.largest <= SMALL_BYTES && most <= MOST_BYTES
}

/// The bytes at an address.
fn array(data: *mut u8) -> Array {
    Lent::plain(data, DType::U8).array()
}

/// Calls `work` with each tensor and its index until it returns None; returns the number of other
/// results and their sum. Memory is prefetched, also that of `others`, which are used alongside.
#[inline]
pub(crate) fn try_each(
    fits: &[Fit<'_>],
    others: &[Fit<'_>],
    mut work: impl FnMut(usize, &Fit<'_>) -> Option<usize>,
) -> (usize, usize) {
    let mut bytes = 0;
    for (at, fit) in fits.iter().enumerate() {
        if let Some(ahead) = fits.get(at + AHEAD) {
            ask_for(ptr::from_ref(ahead.slot).cast());
            ask_for(ahead.data);
        }
        if let Some(ahead) = others.get(at + AHEAD) {
            ask_for(ahead.data);
        }
        match work(at, fit) {
            Some(done) => bytes += done,
            None => return (at, bytes),
        }
    }
    (fits.len(), bytes)
}

/// Prefetches the line of an address, and the next one.
fn ask_for(start: *const u8) {
    sys::prefetch(start);
    sys::prefetch(start.wrapping_add(LINE));
}
