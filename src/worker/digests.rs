//! Digests of keys, from the servers.

use std::sync::Arc;

use super::WorkerStore;
use super::call::{PendingCall, PendingKey, PullTarget};
use super::collective::LOOK_AGAIN;
use super::inputs::CallInputs;
use super::memory::CallMemory;
use super::requests::{KeyOperation, KeyRequest};
use crate::deadline::Deadline;
use crate::digest::KeyDigest;
use crate::error::{Result, fail};
use crate::job::slice_digest;
use crate::job::wanted::WANT_DIGEST;
use crate::key::Key;
use crate::local::plan::Plan;
use crate::local::table::Slot;
use kvstore_protocol::PullDependency;

/// Answers to the query for one key: its slices are of these rounds.
enum Answered {
    Whole(KeyDigest),
    /// The first and the last round of the slices.
    Apart(u64, u64),
}

impl WorkerStore {
    /// Round and digests of keys, after this worker's pushes. A key whose slices are of different rounds is
    /// queried again: the job has no common round for a worker that is done, and for `dist_async`.
    pub(super) fn digests(&self, keys: &[Key]) -> Result<Vec<KeyDigest>> {
        let call = "digest";
        self.find(call, keys.iter().copied())?;
        let scene = self.local.keys.scene(call);
        let slot = |&key: &Key| self.local.keys.table.get(key).ok_or_else(|| scene.unknown(key));
        let slots = keys.iter().map(slot).collect::<Result<Vec<_>>>()?;
        let deadline = self.local.deadline();
        let mut digests = vec![KeyDigest::default(); slots.len()];
        let mut left: Vec<usize> = (0..slots.len()).collect();
        while !left.is_empty() {
            let some: Vec<_> = left.iter().map(|&at| Arc::clone(&slots[at])).collect();
            let answers = self.query_digests(&some, deadline).map_err(|error| error.at(call))?;
            let mut apart = None;
            left = left
                .into_iter()
                .zip(answers)
                .filter_map(|(at, answer)| match answer {
                    Answered::Whole(digest) => {
                        digests[at] = digest;
                        None
                    }
                    Answered::Apart(first, last) => {
                        apart.get_or_insert((slots[at].key, first, last));
                        Some(at)
                    }
                })
                .collect();
            let Some((key, first, last)) = apart else { break };
            if deadline.is_over() {
                let key = self.local.keys.names.label(key);
                return Err(fail!(
                    Timeout,
                    "{call}: {key}: its slices are of rounds {first} to {last}, because other workers push \
                     all the time; call it between two rounds, after a barrier"
                ));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(digests)
    }

    /// Queries all slices of keys once, in one call.
    fn query_digests(&self, slots: &[Arc<Slot>], deadline: Deadline) -> Result<Vec<Answered>> {
        let mut memory = CallMemory::default();
        let (mut parts, mut servers) = (Vec::new(), Vec::new());
        for slot in slots {
            let count = self.of_place(slot.key, |place| place.servers.len())?;
            let wanted = (0..).take(count).map(|slice| (slice, vec![WANT_DIGEST])).collect();
            let what = KeyOperation::Want(wanted, PullDependency::Own);
            memory.requests.push_back(KeyRequest { key: slot.key.id(), what });
            let target = PullTarget::Slices(crate::sys::sync::Mutex::default());
            parts.push(PendingKey::new(Arc::clone(slot), target, 0..0));
            servers.push(count);
        }
        let call = PendingCall::new(self.home(), None, Plan::default(), parts);
        let call = self.launch(&mut memory, call, CallInputs::default(), 0, deadline)?;
        self.wait(&call)?;
        let of_key = |(part, (slot, count)): (usize, (&Arc<Slot>, usize))| {
            let came = call.slices(part);
            if came.len() != count {
                return Err(fail!(Internal, "a bug of this library: slices are missing"));
            }
            let rounds = || came.values().map(|(round, _)| *round);
            let (first, last) = (rounds().min().unwrap_or(0), rounds().max().unwrap_or(0));
            if first != last {
                return Ok(Answered::Apart(first, last));
            }
            let data = came.values().map(|(_, data)| data.read(<[u8]>::to_vec).unwrap_or_default());
            let slices: Vec<Vec<u8>> = data.collect();
            let digest = slice_digest::joined(first, slot.bytes() as u64, &slices);
            let label = || self.local.keys.names.label(slot.key);
            digest.map(Answered::Whole).map_err(|error| error.at(label()))
        };
        slots.iter().zip(servers).enumerate().map(of_key).collect()
    }
}
