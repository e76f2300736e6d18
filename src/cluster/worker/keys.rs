//! What a worker knows of a key.

use std::collections::VecDeque;

use super::operation::OpId;
use crate::cluster::wire::Place;

#[derive(Debug, Default)]
pub(super) struct Key {
    generation: u32,
    place: Option<Place>,
    /// The number under which this worker asks where the key is.
    search: Option<OpId>,
    /// Pushes of this worker so far.
    pushed: u64,
    /// Per slice, the last round that is known to have closed; without rounds, how many pushes even
    /// the slowest worker is known to have made.
    closed: Vec<u64>,
    /// Operations on the key, oldest first.
    queue: VecDeque<OpId>,
}

impl Key {
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    pub(super) fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    pub(super) fn server_of(&self, slice: u32) -> Option<u32> {
        self.place()?.servers.get(slice as usize).map(|server| u32::from(*server))
    }

    pub(super) fn set_place(&mut self, generation: u32, place: Place) {
        if generation > self.generation || self.place.is_none() {
            self.closed = vec![0; place.servers.len()];
            self.pushed = 0;
            self.generation = generation;
            self.place = Some(place);
        }
        self.search = None;
    }

    /// The key was removed.
    pub(super) fn forget(&mut self) {
        self.place = None;
        self.pushed = 0;
    }

    /// Begins to ask for the place, unless that has happened.
    pub(super) fn search(&mut self, request: OpId) -> bool {
        self.search.is_none() && self.search.replace(request).is_none()
    }

    /// The search had no result.
    pub(super) fn stop_search(&mut self, request: OpId) -> bool {
        self.search.take_if(|search| *search == request).is_some()
    }

    pub(super) fn next_round(&mut self) -> u64 {
        self.pushed += 1;
        self.pushed
    }

    pub(super) fn pushed(&self) -> u64 {
        self.pushed
    }

    pub(super) fn closed(&self, slice: u32) -> u64 {
        self.closed.get(slice as usize).copied().unwrap_or(0)
    }

    pub(super) fn note_closed(&mut self, slice: u32, round: u64) {
        if let Some(closed) = self.closed.get_mut(slice as usize) {
            *closed = round.max(*closed);
        }
    }

    pub(super) fn enter(&mut self, id: OpId) {
        self.queue.push_back(id);
    }

    pub(super) fn leave(&mut self, id: OpId) {
        self.queue.retain(|other| *other != id);
    }

    /// The operations on the key, oldest first.
    pub(super) fn queue(&self) -> impl Iterator<Item = OpId> + '_ {
        self.queue.iter().copied()
    }
}
