//! The usual calls: every tensor is a plain array of its key's dtype and shape, and no out overlaps
//! anything. They are checked in one pass over their lists, in the order in which these were given,
//! with the table held.
//!
//! A call that fails these checks may still be valid, or must be refused with a text.
//! [`Plan::build`] decides that.

use std::ptr;

use super::keys::{KeyTensors, KeyWalk, TensorList};
use crate::key::Key;
use crate::local::merger::ShortMerge;
use crate::local::plan::{Pairs, Plan, Tensors};
use crate::local::sort::Sorter;
use crate::local::table::{KeyTable, LockedTable, Slot, TableCell, TableEntry};
use crate::sys;
use crate::tensor::{Place, TensorSpec};

/// Keys that are looked up ahead while table entries of the previous ones are being prefetched.
const BLOCK: usize = 16;

/// Of a number that holds the size of a tensor, which is below 4 GiB, and its index.
const INDEX_BITS: u32 = 32;

/// The tensors of a call, each list in processing order.
#[derive(Default)]
pub(crate) struct Lists<'a> {
    pub(super) values: TensorList<'a>,
    pub(super) outs: TensorList<'a>,
    /// Bytes of the largest tensor.
    pub(crate) largest: usize,
    /// Bytes of all tensors.
    pub(crate) bytes: usize,
}

/// The result of the check of a list.
struct Findings {
    /// Each tensor lies beyond the one before it.
    apart: bool,
    /// If so: first byte, and one past the last byte, of all tensors.
    reach: (usize, usize),
    /// Bytes of the largest tensor.
    largest: usize,
    /// Bytes of all tensors.
    bytes: usize,
}

/// The memory of the checks. Each thread keeps one.
#[derive(Default)]
pub(crate) struct CheckMemory {
    pub(super) lists: Lists<'static>,
    spare: TensorList<'static>,
    sorter: Sorter,
}

/// Most tensors of a call with one key that are checked without a list.
pub(crate) const FEW: usize = 16;

/// Calls `work` with the table entry of the only key of a call, its tensors, and the merge of short
/// calls. The tensors must be few and need no full check.
#[inline]
pub(crate) fn with_one<T>(
    table: &KeyTable,
    values: &Pairs<'_>,
    outs: &Pairs<'_>,
    work: impl FnOnce(&TableEntry, &KeyTensors<'_>, Option<&ShortMerge>) -> Option<T>,
) -> Option<T> {
    let mut keys = values.keys.iter().chain(outs.keys);
    let key = *keys.next()?;
    let count = values.keys.len() + outs.keys.len();
    if count > FEW || !keys.all(|&other| other == key) {
        return None;
    }
    table.with(key, |entry, merge| {
        let spec = entry.spec.as_ref()?;
        let mut places = [Place::NOWHERE; FEW];
        let (value_places, rest) = places.split_at_mut(values.keys.len());
        let out_places = &mut rest[..outs.keys.len()];
        for (index, place) in value_places.iter_mut().enumerate() {
            *place = Place::of(values.fits(index, spec)?);
        }
        for (index, place) in out_places.iter_mut().enumerate() {
            *place = Place::of(outs.fits(index, spec)?);
        }
        let tensors = KeyTensors { slot: &entry.slot, values: value_places, outs: out_places };
        tensors.outs_are_apart(spec.bytes()).then(|| work(entry, &tensors, merge))?
    })
}

impl CheckMemory {
    /// Calls `work` with the lists of a call, unless they need a full check.
    pub(crate) fn with_lists<T>(
        &mut self,
        held: &LockedTable<'_>,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
        work: impl FnOnce(&Lists<'_>) -> T,
    ) -> Option<T> {
        let (mut lists, mut spare) =
            (std::mem::take(&mut self.lists), std::mem::take(&mut self.spare));
        let plain = lists.check(held, values, outs, &mut spare, &mut self.sorter);
        let result = plain.then(|| work(&lists));
        (self.lists.values, self.lists.outs) = (lists.values.emptied(), lists.outs.emptied());
        self.spare = spare.emptied();
        result
    }
}

impl<'a> Lists<'a> {
    /// How many tensors there are.
    pub(crate) fn tensors(&self) -> usize {
        self.values.len() + self.outs.len()
    }

    /// The keys of the call, in processing order.
    pub(crate) fn keys(&self) -> KeyWalk<'_> {
        KeyWalk::new(&self.values, &self.outs)
    }

    /// Fills the lists; false if they need a full check.
    fn check(
        &mut self,
        held: &'a LockedTable<'_>,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
        spare: &mut TensorList<'a>,
        sorter: &mut Sorter,
    ) -> bool {
        if (values.keys.len() + outs.keys.len()) >> INDEX_BITS > 0 {
            return false;
        }
        let same_keys = values.keys == outs.keys;
        let (mut of_values, mut of_outs) = (Findings::new(), Findings::new());
        let mut value = |from, places: &[_]| of_values.add(values, from, places, &mut self.values);
        let mut out = |from, places: &[_]| of_outs.add(outs, from, places, &mut self.outs);
        let fit = if same_keys {
            look_up(held, values.keys, |from, places| value(from, places) && out(from, places))
        } else {
            look_up(held, values.keys, value) && look_up(held, outs.keys, out)
        };
        if !fit || !self.outs_are_apart(&of_values, &of_outs, sorter) {
            return false;
        }
        put_in_order(&mut self.values, values.keys, spare, sorter);
        if same_keys {
            put_in_same_order(&mut self.outs, spare, sorter);
        } else {
            put_in_order(&mut self.outs, outs.keys, spare, sorter);
        }
        self.largest = of_values.largest.max(of_outs.largest);
        self.bytes = of_values.bytes + of_outs.bytes;
        true
    }

    /// Whether no out overlaps another tensor, unless that is a value of the same key at the same
    /// place.
    fn outs_are_apart(&self, values: &Findings, outs: &Findings, sorter: &mut Sorter) -> bool {
        let beside =
            || values.apart && (values.reach.1 <= outs.reach.0 || outs.reach.1 <= values.reach.0);
        let twins = || {
            let mut pairs = self.values.iter().zip(self.outs.iter());
            self.values.len() == self.outs.len() && pairs.all(is_twin)
        };
        if self.outs.len() == 0 || (outs.apart && (beside() || twins())) {
            return true;
        }
        // In address order; a value at the place of an out of its key sorts after it.
        sorter.items.clear();
        let tensors = self.outs.iter().chain(self.values.iter()).enumerate();
        let full = tensors.filter(|(_, (slot, _))| slot.bytes() > 0);
        let item = |(index, (slot, place)): (usize, (&Slot, Place))| {
            (place.addr() as u64, slot.bytes() << INDEX_BITS | index)
        };
        sorter.items.extend(full.map(item));
        sorter.sort();
        let (mut end_of_outs, mut end_of_values, mut last_out) = (0, 0, 0);
        sorter.items.iter().all(|&(start, about)| {
            let index = about & ((1 << INDEX_BITS) - 1);
            let end = start + (about >> INDEX_BITS) as u64;
            let Some(value) = index.checked_sub(self.outs.len()) else {
                let apart = start >= end_of_outs && start >= end_of_values;
                (end_of_outs, last_out) = (end, index);
                return apart;
            };
            end_of_values = end_of_values.max(end);
            // Outs are apart so far, so that it can only be the last one.
            start >= end_of_outs || is_twin((self.values.get(value), self.outs.get(last_out)))
        })
    }
}

/// Plans keys that have been found in this table, which has been held since.
pub(crate) fn plan(keys: KeyWalk<'_>, held: &LockedTable<'_>, plan: &mut Plan) {
    for key in keys {
        if let Some(entry) = held.get(key.slot.key) {
            plan.add_plain(&entry.slot, key.values, key.outs);
        }
    }
}

/// Whether two tensors belong to the same key and have the same address.
fn is_twin(((one, place), (other, other_place)): ((&Slot, Place), (&Slot, Place))) -> bool {
    place == other_place && ptr::eq(one, other)
}

/// Looks up keys block by block, and passes the index of the first and the places of all to `take`
/// until `take` returns false.
fn look_up<'a>(
    held: &'a LockedTable<'_>,
    keys: &[Key],
    mut take: impl FnMut(usize, &[Option<&'a TableCell>]) -> bool,
) -> bool {
    let find = |keys: Option<&[Key]>, places: &mut [Option<&'a TableCell>; BLOCK]| {
        for (place, &key) in places.iter_mut().zip(keys.unwrap_or_default()) {
            *place = held.find(key);
            place.inspect(|place| sys::prefetch(ptr::from_ref(*place).cast()));
        }
    };
    let (mut one, mut other) = ([None; BLOCK], [None; BLOCK]);
    let (mut places, mut coming) = (&mut one, &mut other);
    let mut ahead = keys.chunks(BLOCK);
    find(ahead.next(), coming);
    for (index, block) in keys.chunks(BLOCK).enumerate() {
        std::mem::swap(&mut places, &mut coming);
        find(ahead.next(), coming);
        if !take(index * BLOCK, &places[..block.len()]) {
            return false;
        }
    }
    true
}

impl Findings {
    fn new() -> Self {
        Self { apart: true, reach: (0, 0), largest: 0, bytes: 0 }
    }

    /// Adds tensors of a list, from the `from`-th on, to those that fit; false if one needs a full
    /// check.
    fn add<'a>(
        &mut self,
        list: &Pairs<'_>,
        from: usize,
        cells: &[Option<&'a TableCell>],
        to: &mut TensorList<'a>,
    ) -> bool {
        // One loop for each kind of list, instead of a decision for each tensor.
        match list.tensors {
            Tensors::Values(of) => self.add_all(cells, to, |at, spec| of[from + at].fits(spec)),
            Tensors::Outs(of) => {
                self.add_all(cells, to, |at, spec| of[from + at].as_tensor().fits(spec))
            }
            Tensors::Raw(of) => self.add_all(cells, to, |at, spec| of.fits(from + at, spec)),
        }
        .is_some()
    }

    #[inline]
    fn add_all<'a>(
        &mut self,
        cells: &[Option<&'a TableCell>],
        to: &mut TensorList<'a>,
        fit: impl Fn(usize, &TensorSpec) -> Option<*mut u8>,
    ) -> Option<()> {
        let Self { mut apart, reach: (_, mut end), mut largest, mut bytes } = *self;
        to.reserve(cells.len());
        for (at, cell) in cells.iter().enumerate() {
            let entry = cell.as_ref()?.as_ref()?;
            let spec = entry.spec.as_ref()?;
            let place = Place::of(fit(at, spec)?);
            apart &= place.addr() >= end;
            end = place.addr() + spec.bytes();
            largest = largest.max(spec.bytes());
            bytes = bytes.saturating_add(spec.bytes());
            to.push(&entry.slot, place);
        }
        let start = if to.len() > 0 { to.get(0).1.addr() } else { 0 };
        *self = Self { apart, reach: (start, end), largest, bytes };
        Some(())
    }
}

/// Puts a list in processing order, and tensors of one key in call order. If it was in order, the
/// sorter is left empty.
fn put_in_order<'a>(
    list: &mut TensorList<'a>,
    keys: &[Key],
    spare: &mut TensorList<'a>,
    sorter: &mut Sorter,
) {
    sorter.items.clear();
    if keys.is_sorted() && keys.last().is_none_or(|key| !key.is_name()) {
        return;
    }
    let order = |key: &Key, slot: &Slot| if key.is_name() { slot.order } else { key.id() };
    let orders = keys.iter().zip(list.iter()).map(|(key, (slot, _))| order(key, slot));
    sorter.items.extend(orders.zip(0..));
    sorter.sort();
    put_in_same_order(list, spare, sorter);
}

/// Puts a list in the order that the sorter has found for another one with the same keys.
fn put_in_same_order<'a>(list: &mut TensorList<'a>, spare: &mut TensorList<'a>, sorter: &Sorter) {
    if !sorter.items.is_empty() {
        spare.clear();
        sorter.items.iter().for_each(|&(_, index)| {
            let (slot, place) = list.get(index);
            spare.push(slot, place);
        });
        std::mem::swap(list, spare);
    }
}
