//! The tensors of a call, key by key.

use std::ptr;
use std::sync::Arc;

use crate::local::table::Slot;
use crate::sys;
use crate::tensor::Place;

/// Prefetch distance in tensors.
const AHEAD: usize = 16;

/// The tensors of one key in a call, in call order.
#[derive(Clone, Copy)]
pub(crate) struct KeyTensors<'a> {
    pub(crate) slot: &'a Slot,
    pub(crate) values: &'a [Place],
    pub(crate) outs: &'a [Place],
}

impl KeyTensors<'_> {
    /// Whether no out overlaps another, or a value other than exactly, if each has so many bytes.
    pub(super) fn outs_are_apart(&self, bytes: usize) -> bool {
        let apart = |a: Place, b: Place| a.addr().abs_diff(b.addr()) >= bytes;
        self.outs.iter().enumerate().all(|(index, &out)| {
            self.outs[..index].iter().all(|&other| apart(out, other))
                && self.values.iter().all(|&value| value == out || apart(out, value))
        })
    }
}

/// Tensors with their keys.
#[derive(Default)]
pub(crate) struct TensorList<'a> {
    slots: Vec<&'a Slot>,
    places: Vec<Place>,
}

impl<'a> TensorList<'a> {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn reserve(&mut self, more: usize) {
        self.slots.reserve(more);
        self.places.reserve(more);
    }

    #[inline]
    pub(super) fn push(&mut self, slot: &'a Slot, place: Place) {
        self.slots.push(slot);
        self.places.push(place);
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> (&'a Slot, Place) {
        (self.slots[index], self.places[index])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a Slot, Place)> {
        self.slots.iter().copied().zip(self.places.iter().copied())
    }

    /// Adds a tensor of each of these keys.
    pub(super) fn fill(&mut self, slots: &'a [Arc<Slot>], places: &[Place]) {
        self.slots.extend(slots.iter().map(|slot| &**slot));
        self.places.extend_from_slice(places);
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.places.clear();
    }

    /// An empty list of another lifetime with the memory of this one.
    pub(super) fn emptied<'b>(mut self) -> TensorList<'b> {
        self.clear();
        TensorList { slots: emptied(self.slots), places: self.places }
    }
}

/// Empties a list and makes it one of another lifetime. Its memory stays, because the standard
/// library collects a list in place.
pub(super) fn emptied<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    list.into_iter().map(|_| unreachable!("it is empty")).collect()
}

/// Goes through the keys of two lists, of values and of outs, in processing order.
#[derive(Clone)]
pub(crate) struct KeyWalk<'a> {
    values: ListRest<'a>,
    outs: ListRest<'a>,
}

/// The tensors of a list that are left.
#[derive(Clone, Copy)]
struct ListRest<'a> {
    slots: &'a [&'a Slot],
    places: &'a [Place],
}

impl<'a> ListRest<'a> {
    /// The tensors of a key, which are the next ones or none.
    #[inline]
    fn of(&self, slot: &Slot) -> &'a [Place] {
        let count = self.slots.iter().take_while(|it| ptr::eq(**it, slot)).count();
        &self.places[..count]
    }

    /// Skips so many tensors, and prefetches as many.
    #[inline]
    fn skip(&mut self, count: usize) {
        for ahead in self.places.iter().skip(AHEAD).take(count) {
            sys::prefetch_lines::<2>(ahead.start());
        }
        if let Some(ahead) = self.slots.get(AHEAD) {
            sys::prefetch_lines::<3>(ptr::from_ref(*ahead).cast());
        }
        if let Some(ahead) = self.slots.get(AHEAD / 2) {
            ahead.prefetch_state();
        }
        self.slots = &self.slots[count..];
        self.places = &self.places[count..];
    }
}

impl<'a> KeyWalk<'a> {
    pub(super) fn new(values: &'a TensorList<'a>, outs: &'a TensorList<'a>) -> Self {
        let rest = |list: &'a TensorList<'a>| ListRest { slots: &list.slots, places: &list.places };
        Self { values: rest(values), outs: rest(outs) }
    }

    /// The next key.
    #[inline]
    pub(super) fn first(&self) -> Option<KeyTensors<'a>> {
        let slot = match (self.values.slots.first(), self.outs.slots.first()) {
            (Some(value), Some(out)) if !ptr::eq(*value, *out) && out.order < value.order => *out,
            (Some(slot), _) | (None, Some(slot)) => *slot,
            (None, None) => return None,
        };
        Some(KeyTensors { slot, values: self.values.of(slot), outs: self.outs.of(slot) })
    }

    /// Goes on to the key after the first one, which is given.
    #[inline]
    pub(super) fn skip_first(&mut self, key: &KeyTensors<'_>) {
        self.values.skip(key.values.len());
        self.outs.skip(key.outs.len());
    }
}

impl KeyWalk<'_> {
    /// What is left after so many keys.
    pub(super) fn after(mut self, keys: usize) -> Self {
        (0..keys).for_each(|_| _ = self.next());
        self
    }
}

impl<'a> Iterator for KeyWalk<'a> {
    type Item = KeyTensors<'a>;

    #[inline]
    fn next(&mut self) -> Option<KeyTensors<'a>> {
        let key = self.first()?;
        self.skip_first(&key);
        Some(key)
    }
}
