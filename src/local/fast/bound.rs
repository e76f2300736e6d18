//! Lists that were checked when they were bound: a call takes their keys and places as they are.

use std::ptr;
use std::sync::Arc;

use super::check::{CheckMemory, Lists};
use super::keys::{KeyWalk, TensorList};
use crate::local::plan::Plan;
use crate::local::table::{LockedTable, Slot};
use crate::tensor::Place;

/// Values and outs that every later call may use: each is a plain array of its key's dtype and shape,
/// and no out overlaps another tensor but a value of its key at the same place.
pub(crate) struct BoundLists {
    values: BoundTensors,
    outs: BoundTensors,
    /// Bytes of the largest tensor.
    largest: usize,
}

/// Tensors in processing order.
struct BoundTensors {
    /// The key of each: a slot that is removed stays, and is marked.
    slots: Vec<Arc<Slot>>,
    places: Vec<Place>,
    bytes: usize,
}

impl BoundTensors {
    fn of(list: &TensorList<'_>, held: &LockedTable<'_>) -> Option<Self> {
        let slot = |(slot, _): (&Slot, Place)| held.get(slot.key).map(|it| Arc::clone(&it.slot));
        let slots = list.iter().map(slot).collect::<Option<Vec<_>>>()?;
        let bytes = slots.iter().map(|slot| slot.bytes()).fold(0, usize::saturating_add);
        Some(Self { slots, places: list.iter().map(|(_, place)| place).collect(), bytes })
    }
}

impl BoundLists {
    /// Keeps the lists of a call that has been checked with this table, which is held since.
    pub(crate) fn of(lists: &Lists<'_>, held: &LockedTable<'_>) -> Option<Self> {
        let values = BoundTensors::of(&lists.values, held)?;
        let outs = BoundTensors::of(&lists.outs, held)?;
        Some(Self { values, outs, largest: lists.largest })
    }

    /// The first key of the values in processing order.
    pub(crate) fn first_pushed(&self) -> Option<&Slot> {
        self.values.slots.first().map(|slot| &**slot)
    }

    /// Plans the keys that are left of a call.
    pub(crate) fn plan(&self, left: KeyWalk<'_>, plan: &mut Plan) {
        let (mut values, mut outs) = (&*self.values.slots, &*self.outs.slots);
        for key in left {
            let found = find(&mut values, key.slot).or_else(|| find(&mut outs, key.slot));
            if let Some(slot) = found {
                plan.add_plain(slot, key.values, key.outs);
            }
        }
    }
}

/// A slot of a list in processing order, whose slots before it are skipped.
fn find<'a>(rest: &mut &'a [Arc<Slot>], wanted: &Slot) -> Option<&'a Arc<Slot>> {
    let before = rest.iter().take_while(|slot| slot.order < wanted.order).count();
    *rest = &rest[before..];
    rest.first().filter(|slot| ptr::eq(Arc::as_ptr(slot), wanted))
}

impl CheckMemory {
    /// Calls `work` with the bound values and outs, or either of them only.
    pub(crate) fn with_bound<T>(
        &mut self,
        bound: &BoundLists,
        (values, outs): (bool, bool),
        work: impl FnOnce(&Lists<'_>) -> T,
    ) -> T {
        let mut lists: Lists<'_> = std::mem::take(&mut self.lists);
        (lists.largest, lists.bytes) = (bound.largest, 0);
        let used =
            [(values, &bound.values, &mut lists.values), (outs, &bound.outs, &mut lists.outs)];
        for (_, from, to) in used.into_iter().filter(|(is_used, ..)| *is_used) {
            to.fill(&from.slots, &from.places);
            lists.bytes = lists.bytes.saturating_add(from.bytes);
        }
        let result = work(&lists);
        (self.lists.values, self.lists.outs) = (lists.values.emptied(), lists.outs.emptied());
        result
    }
}
