//! Access to the state of one key, slice by slice: queries to its servers, and restore requests.

use std::sync::Arc;

use crate::deadline::Deadline;
use crate::error::{Result, fail};
use crate::job::slice_state::StateUpdate;
use crate::job::wanted::{WANT_VALUE, query_of_first};
use crate::key::Key;
use crate::local::plan::Plan;
use crate::local::table::Slot;
use crate::runtime::{Block, Bytes};
use crate::sys::sync::Mutex;
use crate::worker::WorkerStore;
use crate::worker::call::{PendingCall, PendingKey, PullTarget};
use crate::worker::inputs::CallInputs;
use crate::worker::memory::CallMemory;
use crate::worker::requests::{KeyOperation, KeyRequest};
use kvstore_protocol::{Data, Placement, PullDependency};

impl WorkerStore {
    /// Table entries of keys that this worker may not have used yet.
    pub(super) fn found_slots(&self, call: &'static str, keys: &[u64]) -> Result<Vec<Arc<Slot>>> {
        let keys = keys.iter().copied().map(Key::from);
        self.find(call, keys.clone())?;
        Ok(keys.filter_map(|key| self.local.keys.table.get(key)).collect())
    }

    /// Pushes of this worker in the present generation of a key.
    pub(crate) fn pushes(&self, key: Key) -> Result<u64> {
        self.step(|worker, _| worker.pushes_before_next(key.id()))
    }

    /// Answers to one query, by slice, after this worker's pushes.
    pub(super) fn fetch(
        &self,
        slot: &Arc<Slot>,
        place: &Placement,
        wanted: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<Bytes>> {
        let came = self.fetch_after(PullDependency::Own, slot, place, wanted, deadline)?;
        Ok(came.into_iter().map(|(_, slice)| slice).collect())
    }

    /// Like `fetch`, after another condition; each answer with the last round in it.
    pub(super) fn fetch_after(
        &self,
        after: PullDependency,
        slot: &Arc<Slot>,
        place: &Placement,
        wanted: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<(u64, Bytes)>> {
        let count = place.servers.len();
        let query = query_of_first(count, wanted, place, &self.driver.blocks)?;
        let what = KeyOperation::Want(query, after);
        let target = PullTarget::Slices(Mutex::default());
        let came = self.run_one(slot, target, what, deadline)?.slices(0);
        if came.len() == count {
            return Ok(came.into_values().collect());
        }
        Err(fail!(Internal, "a bug of this library: slices are missing"))
    }

    /// Waits until all workers have finished their pushes.
    pub(super) fn wait_for_all_pushes(&self, deadline: Deadline) -> Result<()> {
        let Some(slot) = self.local.keys.table.slots().into_iter().next() else { return Ok(()) };
        let place = self.place(slot.key)?;
        let query = query_of_first(1, &[WANT_VALUE], &place, &self.driver.blocks)?;
        let one = KeyOperation::Want(query, PullDependency::All);
        self.run_one(&slot, PullTarget::Nowhere, one, deadline).map(drop)
    }

    /// Sends its restore request to every slice of a key.
    pub(super) fn restore(
        &self,
        slot: &Arc<Slot>,
        slices: Vec<Bytes>,
        deadline: Deadline,
    ) -> Result<()> {
        self.run_one(slot, PullTarget::Nowhere, KeyOperation::Restore(slices), deadline).map(drop)
    }

    fn run_one(
        &self,
        slot: &Arc<Slot>,
        target: PullTarget,
        what: KeyOperation,
        deadline: Deadline,
    ) -> Result<Arc<PendingCall>> {
        let part = PendingKey::new(Arc::clone(slot), target, 0..0);
        let order = KeyRequest { key: slot.key.id(), part: 0, scale: 0, what };
        let call = PendingCall::new(self.group.clone(), None, Plan::default(), vec![part]);
        let mut memory = CallMemory::default();
        memory.requests.push_back(order);
        let call = self.launch(&mut memory, call, CallInputs::default(), 0, deadline)?;
        self.wait(&call)?;
        Ok(call)
    }

    /// Sends a restore request, made for each slice, to every slice of a key.
    pub(super) fn bring_each<'a>(
        &self,
        slot: &Arc<Slot>,
        part: impl Fn(&Placement, u32) -> (StateUpdate, &'a [u8]),
        deadline: Deadline,
    ) -> Result<()> {
        let place = self.place(slot.key)?;
        let slices = 0..u32::try_from(place.servers.len()).unwrap_or(0);
        let join = |slice| {
            let (update, array) = part(&place, slice);
            update.join(&[array], &self.driver.blocks)
        };
        let slices = slices.map(join).collect::<Result<_>>()?;
        self.restore(slot, slices, deadline)
    }

    /// Tells the servers of a key how many further pushes of this worker count for its codec.
    pub(super) fn count_ahead(
        &self,
        slot: &Arc<Slot>,
        ahead: u64,
        deadline: Deadline,
    ) -> Result<()> {
        let rank = self.rank;
        self.bring_each(slot, |_, _| (StateUpdate::Ahead { rank, ahead }, &[]), deadline)
    }

    /// Joins the slices without the first `front` bytes of each.
    pub(super) fn joined(&self, slices: &[Bytes], front: u64) -> Result<Block> {
        let behind = |slice: &Bytes| slice.part(front, slice.len().saturating_sub(front));
        let parts: Vec<Bytes> = slices.iter().map(behind).collect();
        let len: u64 = parts.iter().map(Data::len).sum();
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.driver.blocks.make(len, |room| {
            for part in &parts {
                part.read(|bytes| room.put(bytes.into()));
            }
        })
    }
}
