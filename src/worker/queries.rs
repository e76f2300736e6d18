//! Queries of keys, of one round each: digests, and who took part in the round.

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
use crate::job::wanted::{WANT_DIGEST, WANT_ROUND};
use crate::job::{round_info, slice_digest};
use crate::key::{Key, KeyRound};
use crate::local::plan::Plan;
use crate::local::table::Slot;
use kvstore_protocol::{Machine as _, Peer, PullDependency, WEIGHTS};

/// A query of slices: the call, and the byte on the wire.
type Query = (&'static str, u8);

/// The answers of all slices of a key.
enum Answered {
    /// Their round, and what each has answered.
    Whole(u64, Vec<Vec<u8>>),
    /// The first and the last round of the slices.
    Apart(u64, u64),
}

impl WorkerStore {
    /// Round and digests of keys, after this worker's pushes.
    pub(super) fn digests(&self, keys: &[Key]) -> Result<Vec<KeyDigest>> {
        self.query(("digest", WANT_DIGEST), keys, |slot, round, slices| {
            slice_digest::joined(round, slot.bytes() as u64, slices)
        })
    }

    /// Who took part in the last round of a key, after this worker's pushes.
    pub(super) fn round_of(&self, key: Key) -> Result<KeyRound> {
        let call = "last_round";
        self.check_knows_weights(call)?;
        let of_key = |_: &Slot, round, slices: &[Vec<u8>]| round_info::joined(round, slices);
        let rounds = self.query((call, WANT_ROUND), &[key], of_key)?;
        rounds.first().copied().ok_or_else(|| fail!(Internal, "a bug of this library: no round"))
    }

    /// Refuses a call that a server of an earlier release does not know.
    pub(super) fn check_knows_weights(&self, call: &str) -> Result<()> {
        let is_old = |node: &kvstore_protocol::Node<_, _>| {
            (0..self.servers).find(|rank| node.features(Peer::server(*rank)) & WEIGHTS == 0)
        };
        match self.driver.peek(is_old).flatten() {
            Some(server) => Err(fail!(
                Unsupported,
                "{call}: server {server} is of an earlier release, which does not know weights; use the same \
                 release everywhere"
            )),
            None => Ok(()),
        }
    }

    /// Queries all slices of keys. A key whose slices are of different rounds is queried again: the job has no
    /// common round for a worker that is done, and for `dist_async`.
    fn query<T: Clone + Default>(
        &self,
        query: Query,
        keys: &[Key],
        of_key: impl Fn(&Slot, u64, &[Vec<u8>]) -> Result<T>,
    ) -> Result<Vec<T>> {
        let call = query.0;
        self.find(call, keys.iter().copied())?;
        let scene = self.local.keys.scene(call);
        let slot = |&key: &Key| self.local.keys.table.get(key).ok_or_else(|| scene.unknown(key));
        let slots = keys.iter().map(slot).collect::<Result<Vec<_>>>()?;
        let deadline = self.local.deadline();
        let mut found = vec![T::default(); slots.len()];
        let mut left: Vec<usize> = (0..slots.len()).collect();
        while !left.is_empty() {
            let some: Vec<_> = left.iter().map(|&at| Arc::clone(&slots[at])).collect();
            let answers =
                self.query_slices(query, &some, deadline).map_err(|error| error.at(call))?;
            let (mut apart, mut again) = (None, Vec::new());
            for (at, answer) in left.into_iter().zip(answers) {
                let key = slots[at].key;
                match answer {
                    Answered::Whole(round, slices) => {
                        let label = || self.local.keys.names.label(key);
                        let of_key = of_key(&slots[at], round, &slices);
                        found[at] = of_key
                            .map_err(|error| error.at(format_args!("{call}: {}", label())))?;
                    }
                    Answered::Apart(first, last) => {
                        apart.get_or_insert((key, first, last));
                        again.push(at);
                    }
                }
            }
            left = again;
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
        Ok(found)
    }

    /// Queries all slices of keys once, in one call.
    fn query_slices(
        &self,
        (_, wanted): Query,
        slots: &[Arc<Slot>],
        deadline: Deadline,
    ) -> Result<Vec<Answered>> {
        let mut memory = CallMemory::default();
        let (mut parts, mut servers) = (Vec::new(), Vec::new());
        for slot in slots {
            let count = self.of_place(slot.key, |place| place.servers.len())?;
            let wanted = (0..).take(count).map(|slice| (slice, vec![wanted])).collect();
            let what = KeyOperation::Want(wanted, PullDependency::Own);
            memory.requests.push_back(KeyRequest { key: slot.key.id(), what });
            let target = PullTarget::Slices(crate::sys::sync::Mutex::default());
            parts.push(PendingKey::new(Arc::clone(slot), target, 0..0));
            servers.push(count);
        }
        let call = PendingCall::new(self.home(), None, Plan::default(), parts);
        let call = self.launch(&mut memory, call, CallInputs::default(), 0, deadline)?;
        self.wait(&call)?;
        let of_key = |(part, count): (usize, usize)| {
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
            Ok(Answered::Whole(first, data.collect()))
        };
        servers.into_iter().enumerate().map(of_key).collect()
    }
}
