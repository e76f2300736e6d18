//! State of a key in a worker.

use std::collections::BTreeSet;
use std::sync::Arc;

use smallvec::SmallVec;

use super::operation::OpId;
use crate::job::Data;
use crate::message::{Placement, range};

/// Each step of a call on a list returns to a key after all others, when memory that is not next to the key
/// has left the caches. So a key of one slice has its hot fields inline; many keys share their placement.
#[derive(Debug, Default)]
pub(super) struct WorkerKey {
    generation: u32,
    /// Bytes of the value.
    bytes: u64,
    /// Bytes of each slice but the last.
    slice_bytes: u64,
    /// Number of pushes of this worker.
    pushed: u64,
    /// Per slice, the last round that is known to have closed; without rounds, the known number of pushes of
    /// the slowest worker.
    closed: SmallVec<[u64; 1]>,
    /// Operations on the key, oldest first.
    queue: SmallVec<[OpId; 3]>,
    place: Option<Arc<Placement>>,
    /// Request of the current search of the key, or 0.
    search: OpId,
    /// Operation that initialised the key here, or 0.
    made_by: OpId,
    /// All workers have removed the key, after the program of this one had given its removal up; and the
    /// program has neither initialised it nor pushed to it since.
    gone_unsaid: bool,
}

impl WorkerKey {
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    pub(super) fn place(&self) -> Option<&Arc<Placement>> {
        self.place.as_ref()
    }

    /// Indices of its slices, if their placement is known.
    pub(super) fn slices(&self) -> Option<std::ops::Range<u32>> {
        let servers = &self.place.as_ref()?.servers;
        Some(0..u32::try_from(servers.len()).unwrap_or(u32::MAX))
    }

    /// Bytes of its value; 0 before they are known.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn server_of(&self, slice: u32) -> Option<u32> {
        let server = self.place.as_ref()?.servers.get(slice as usize)?;
        Some(u32::from(*server))
    }

    /// Offset of a slice, and its length.
    pub(super) fn range(&self, slice: u32) -> (u64, u64) {
        range(self.bytes, self.slice_bytes, slice)
    }

    /// What a value, or queries in its place, have for a slice.
    pub(super) fn part<D: Data>(&self, slice: u32, value: &D) -> D {
        let (offset, len) = self.range(slice);
        value.part(offset, len)
    }

    /// Sets the place of the key, whose pushes are numbered from `base` in a new generation.
    pub(super) fn set_place(&mut self, generation: u32, place: Arc<Placement>, base: u64) {
        if generation > self.generation || self.place.is_none() {
            self.bytes = place.spec.bytes().unwrap_or(0);
            self.slice_bytes = place.slice_bytes;
            self.closed = SmallVec::from_elem(base, place.servers.len());
            self.pushed = base;
            self.generation = generation;
            self.place = Some(place);
        }
        self.search = 0;
    }

    /// Goes on from a number of pushes. Its place is forgotten if it may have `changed`, and no operation needs it.
    pub(super) fn go_on_from(&mut self, base: u64, changed: bool) {
        if changed && self.queue.is_empty() {
            return self.forget();
        }
        if self.place.is_some() {
            self.pushed = base;
            self.closed.fill(base);
        }
    }

    /// The key was removed.
    pub(super) fn forget(&mut self) {
        self.place = None;
        self.pushed = 0;
    }

    pub(super) fn note_gone_unsaid(&mut self) {
        self.gone_unsaid = true;
    }

    /// Whether a removal that is called again has taken effect before.
    pub(super) fn take_gone_unsaid(&mut self) -> bool {
        std::mem::take(&mut self.gone_unsaid)
    }

    /// Begins a search of the key; false if there is one.
    pub(super) fn search(&mut self, request: OpId) -> bool {
        self.search == 0 && std::mem::replace(&mut self.search, request) == 0
    }

    pub(super) fn note_made(&mut self, init: OpId) {
        self.made_by = init;
    }

    pub(super) fn is_made_by(&self, init: OpId) -> bool {
        self.made_by == init
    }

    /// Whether a search of the key has no answer yet.
    pub(super) fn is_searched(&self) -> bool {
        self.search != 0
    }

    /// Servers with slices of it.
    pub(super) fn all_servers(&self) -> BTreeSet<u32> {
        self.place
            .iter()
            .flat_map(|place| &place.servers)
            .map(|server| u32::from(*server))
            .collect()
    }

    /// Ends a search without a result; false for another search.
    pub(super) fn stop_search(&mut self, request: OpId) -> bool {
        let is_current = self.is_searched() && self.search == request;
        if is_current {
            self.search = 0;
        }
        is_current
    }

    pub(super) fn next_round(&mut self) -> u64 {
        self.gone_unsaid = false;
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
        self.queue.push(id);
    }

    pub(super) fn leave(&mut self, id: OpId) {
        self.queue.retain(|other| *other != id);
    }

    /// Operations on the key, oldest first.
    pub(super) fn queue(&self) -> impl Iterator<Item = OpId> + '_ {
        self.queue.iter().copied()
    }
}
