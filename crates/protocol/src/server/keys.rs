//! The keys of a server, each in its last generation.

use std::sync::Arc;

use smallvec::SmallVec;

use super::SliceName;
use super::rounds::Slice;
use crate::bit_set::BitSet;
use crate::message::Placement;
use crate::table::Table;

#[derive(Debug)]
pub(super) struct ServerKey<D> {
    pub(super) generation: u32,
    pub(super) place: Arc<Placement>,
    /// Slices on this server, by index.
    pub(super) slices: SmallVec<[Option<Slice<D>>; 1]>,
    /// By rank, the announced pushes of workers that are done.
    pub(super) pushes: SmallVec<[u64; 2]>,
    pub(super) removed_by: BitSet,
}

/// Keys of this server: insertion, removal and lookup take constant time.
#[derive(Debug)]
pub(super) struct ServerKeys<D>(Table<u64, ServerKey<D>>);

impl<D> Default for ServerKeys<D> {
    fn default() -> Self {
        Self(Table::default())
    }
}

impl<D> ServerKeys<D> {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Current generation of a key.
    pub(super) fn generation_of(&self, key: u64) -> Option<u32> {
        self.0.get(&key).map(|key| key.generation)
    }

    pub(super) fn get(&self, key: u64, generation: u32) -> Option<&ServerKey<D>> {
        self.0.get(&key).filter(|key| key.generation == generation)
    }

    pub(super) fn get_mut(&mut self, key: u64, generation: u32) -> Option<&mut ServerKey<D>> {
        self.0.get_mut(&key).filter(|key| key.generation == generation)
    }

    pub(super) fn slice_mut(&mut self, name: SliceName) -> Option<&mut Slice<D>> {
        let key = self.get_mut(name.key, name.generation)?;
        key.slices.get_mut(name.slice as usize)?.as_mut()
    }

    pub(super) fn insert(&mut self, key: u64, state: ServerKey<D>) {
        self.0.insert(key, state);
    }

    pub(super) fn remove(&mut self, key: u64, generation: u32) -> Option<ServerKey<D>> {
        self.get(key, generation)?;
        self.0.remove(&key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &ServerKey<D>)> {
        self.0.iter().map(|(key, state)| (*key, state))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut ServerKey<D>> {
        self.0.values_mut()
    }

    /// Names of all slices on this server.
    pub(super) fn slice_names(&self) -> impl Iterator<Item = SliceName> + '_ {
        self.iter().flat_map(|(key, state)| {
            let here = (0..).zip(&state.slices).filter(|(_, slice)| slice.is_some());
            here.map(move |(slice, _)| SliceName { key, generation: state.generation, slice })
        })
    }
}
