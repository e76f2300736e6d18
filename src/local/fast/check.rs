//! The usual calls: every tensor is a plain array of its key's dtype and shape, and no out overlaps
//! anything. They are checked in one pass over their lists, in the order in which these were given,
//! with the table held.
//!
//! A call that fails these checks may still be valid, or must be refused with a text.
//! [`Plan::build`] decides that.

use std::ptr;

use crate::key::Key;
use crate::local::plan::{Pairs, Plan, Tensors};
use crate::local::sort::Sorter;
use crate::local::table::{KeyTable, LockedTable, Slot, TableCell, TableEntry};
use crate::sys;
use crate::tensor::TensorSpec;

/// Keys that are looked up ahead while table entries of the previous ones are being prefetched.
const BLOCK: usize = 16;

/// Of a number that holds the size of a tensor, which is below 4 GiB, and its index.
const INDEX_BITS: u32 = 32;

/// A tensor that fits its key.
#[derive(Clone, Copy)]
pub(crate) struct Fit<'a> {
    pub(crate) slot: &'a Slot,
    pub(crate) data: *mut u8,
}

/// The tensors of a call, each list in processing order.
#[derive(Default)]
pub(crate) struct Lists<'a> {
    pub(crate) values: Vec<Fit<'a>>,
    pub(crate) outs: Vec<Fit<'a>>,
    /// Bytes of the largest tensor.
    pub(crate) largest: usize,
    /// Whether all keys have one value, or all one out, or all one of each.
    pub(crate) uniform: bool,
}

/// The result of the check of a list.
struct Findings {
    /// Each tensor lies beyond the one before it.
    apart: bool,
    /// If so: first byte, and one past the last byte, of all tensors.
    reach: (usize, usize),
    /// Bytes of the largest tensor.
    largest: usize,
}

/// The memory of the checks. Each thread keeps one.
#[derive(Default)]
pub(crate) struct CheckMemory {
    lists: Lists<'static>,
    spare: Vec<Fit<'static>>,
    sorter: Sorter,
}

/// Empties a list and makes it one of another lifetime. Its memory stays, because the standard
/// library collects a list in place.
fn emptied<'a>(mut list: Vec<Fit<'_>>) -> Vec<Fit<'a>> {
    list.clear();
    list.into_iter().map(|_| unreachable!("it is empty")).collect()
}

/// Most tensors of a call with one key that are checked without a list.
pub(crate) const FEW: usize = 16;

/// Calls `work` with the table entry of the only key of a call, and the places of its values and
/// outs. They must be few and need no full check.
#[inline]
pub(crate) fn with_one<T>(
    table: &KeyTable,
    values: &Pairs<'_>,
    outs: &Pairs<'_>,
    work: impl FnOnce(&TableEntry, &[*mut u8], &[*mut u8]) -> Option<T>,
) -> Option<T> {
    let mut keys = values.keys.iter().chain(outs.keys);
    let key = *keys.next()?;
    let count = values.keys.len() + outs.keys.len();
    if count > FEW || !keys.all(|&other| other == key) {
        return None;
    }
    table.with(key, |entry| {
        let spec = entry.spec.as_ref()?;
        let mut places = [ptr::null_mut(); FEW];
        let (value_places, rest) = places.split_at_mut(values.keys.len());
        let out_places = &mut rest[..outs.keys.len()];
        for (index, place) in value_places.iter_mut().enumerate() {
            *place = values.fits(index, spec)?;
        }
        for (index, place) in out_places.iter_mut().enumerate() {
            *place = outs.fits(index, spec)?;
        }
        outs_are_apart(value_places, out_places, spec.bytes())
            .then(|| work(entry, value_places, out_places))?
    })
}

/// Whether no out overlaps another, or a value other than exactly.
fn outs_are_apart(values: &[*mut u8], outs: &[*mut u8], bytes: usize) -> bool {
    let distance = |a: *mut u8, b: *mut u8| a.addr().abs_diff(b.addr());
    outs.iter().enumerate().all(|(index, &out)| {
        outs[..index].iter().all(|&other| distance(out, other) >= bytes)
            && values.iter().all(|&value| value == out || distance(out, value) >= bytes)
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
        (self.lists.values, self.lists.outs) = (emptied(lists.values), emptied(lists.outs));
        self.spare = emptied(spare);
        result
    }
}

impl<'a> Lists<'a> {
    /// Fills the lists; false if they need a full check.
    fn check(
        &mut self,
        held: &'a LockedTable<'_>,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
        spare: &mut Vec<Fit<'a>>,
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
        let one_value = put_in_order(&mut self.values, values.keys, spare, sorter);
        let one_out = if same_keys {
            put_in_same_order(&mut self.outs, spare, sorter);
            one_value
        } else {
            put_in_order(&mut self.outs, outs.keys, spare, sorter)
        };
        self.largest = of_values.largest.max(of_outs.largest);
        self.uniform = one_value && one_out && (same_keys || self.have_same_keys());
        true
    }

    /// Whether both lists have the same keys, or one of them has none.
    fn have_same_keys(&self) -> bool {
        let mut pairs = self.values.iter().zip(&self.outs);
        let (values, outs) = (self.values.len(), self.outs.len());
        values * outs == 0
            || (values == outs && pairs.all(|(value, out)| ptr::eq(value.slot, out.slot)))
    }

    /// Whether no out overlaps another tensor, unless that is a value of the same key at the same
    /// place.
    fn outs_are_apart(&self, values: &Findings, outs: &Findings, sorter: &mut Sorter) -> bool {
        let beside =
            || values.apart && (values.reach.1 <= outs.reach.0 || outs.reach.1 <= values.reach.0);
        let twins = || {
            let mut pairs = self.values.iter().zip(&self.outs);
            self.values.len() == self.outs.len() && pairs.all(|(value, out)| value.is_twin(out))
        };
        if self.outs.is_empty() || (outs.apart && (beside() || twins())) {
            return true;
        }
        // In address order; a value at the place of an out of its key sorts after it.
        sorter.items.clear();
        let tensors = self.outs.iter().chain(&self.values).enumerate();
        let full = tensors.filter(|(_, tensor)| tensor.slot.bytes() > 0);
        let item = |(index, tensor): (usize, &Fit<'_>)| {
            (tensor.start() as u64, tensor.slot.bytes() << INDEX_BITS | index)
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
            start >= end_of_outs || self.values[value].is_twin(&self.outs[last_out])
        })
    }

    /// Plans the keys of the lists; of uniform lists, from the `done`-th on.
    pub(crate) fn plan(&self, held: &LockedTable<'_>, done: usize, plan: &mut Plan) {
        let mut values = self.values.get(done..).unwrap_or_default();
        let mut outs = self.outs.get(done..).unwrap_or_default();
        while let Some(slot) = first_of(values, outs) {
            let (mine, other_values) = values.split_at(count_of(slot, values));
            let (my_outs, other_outs) = outs.split_at(count_of(slot, outs));
            // The key was found in this table, which has been held since.
            if let Some(entry) = held.get(slot.key) {
                let data = |fit: &Fit<'_>| fit.data;
                plan.add_plain(&entry.slot, mine.iter().map(data), my_outs.iter().map(data));
            }
            (values, outs) = (other_values, other_outs);
        }
    }
}

impl Fit<'_> {
    fn start(&self) -> usize {
        self.data.addr()
    }

    /// Whether the other tensor belongs to this key and has this address.
    fn is_twin(&self, other: &Fit<'_>) -> bool {
        self.data == other.data && ptr::eq(self.slot, other.slot)
    }
}

/// Number of tensors at the start of a list that belong to this key.
fn count_of(slot: &Slot, fits: &[Fit<'_>]) -> usize {
    fits.iter().take_while(|fit| ptr::eq(fit.slot, slot)).count()
}

/// The slot of the key that comes first.
fn first_of<'a>(values: &[Fit<'a>], outs: &[Fit<'a>]) -> Option<&'a Slot> {
    match (values.first(), outs.first()) {
        (Some(value), Some(out)) if out.slot.order < value.slot.order => Some(out.slot),
        (Some(fit), _) | (None, Some(fit)) => Some(fit.slot),
        (None, None) => None,
    }
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
        Self { apart: true, reach: (0, 0), largest: 0 }
    }

    /// Adds tensors of a list, from the `from`-th on, to those that fit; false if one needs a full
    /// check.
    fn add<'a>(
        &mut self,
        list: &Pairs<'_>,
        from: usize,
        places: &[Option<&'a TableCell>],
        fits: &mut Vec<Fit<'a>>,
    ) -> bool {
        // One loop for each kind of list, instead of a decision for each tensor.
        match list.tensors {
            Tensors::Values(of) => self.add_all(places, fits, |at, spec| of[from + at].fits(spec)),
            Tensors::Outs(of) => {
                self.add_all(places, fits, |at, spec| of[from + at].as_tensor().fits(spec))
            }
            Tensors::Raw(of) => self.add_all(places, fits, |at, spec| of.fits(from + at, spec)),
        }
        .is_some()
    }

    #[inline]
    fn add_all<'a>(
        &mut self,
        places: &[Option<&'a TableCell>],
        fits: &mut Vec<Fit<'a>>,
        fit: impl Fn(usize, &TensorSpec) -> Option<*mut u8>,
    ) -> Option<()> {
        let (mut apart, mut end, mut largest) = (self.apart, self.reach.1, self.largest);
        fits.reserve(places.len());
        for (at, place) in places.iter().enumerate() {
            let entry = place.as_ref()?.as_ref()?;
            let spec = entry.spec.as_ref()?;
            let data = fit(at, spec)?;
            apart &= data.addr() >= end;
            end = data.addr() + spec.bytes();
            largest = largest.max(spec.bytes());
            fits.push(Fit { slot: &entry.slot, data });
        }
        let start = fits.first().map_or(0, Fit::start);
        *self = Self { apart, reach: (start, end), largest };
        Some(())
    }
}

/// Puts a list in processing order; gives whether its keys are distinct. If it was in order, the
/// sorter is left empty.
fn put_in_order<'a>(
    fits: &mut Vec<Fit<'a>>,
    keys: &[Key],
    spare: &mut Vec<Fit<'a>>,
    sorter: &mut Sorter,
) -> bool {
    sorter.items.clear();
    if keys.is_sorted_by(|one, next| one < next) && keys.last().is_none_or(|key| !key.is_name()) {
        return true;
    }
    let order = |key: &Key, slot: &Slot| if key.is_name() { slot.order } else { key.id() };
    let orders = keys.iter().zip(&*fits).map(|(key, fit)| order(key, fit.slot));
    sorter.items.extend(orders.zip(0..));
    sorter.sort();
    put_in_same_order(fits, spare, sorter);
    fits.windows(2).all(|pair| !ptr::eq(pair[0].slot, pair[1].slot))
}

/// Puts a list in the order that the sorter has found for another one with the same keys.
fn put_in_same_order<'a>(fits: &mut Vec<Fit<'a>>, spare: &mut Vec<Fit<'a>>, sorter: &Sorter) {
    if !sorter.items.is_empty() {
        spare.clear();
        spare.extend(sorter.items.iter().map(|&(_, index)| fits[index]));
        std::mem::swap(fits, spare);
    }
}
