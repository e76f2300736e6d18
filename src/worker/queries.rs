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
use crate::error::{Error, Result, fail};
use crate::job::wanted::{WANT_DIGEST, WANT_ROUND, query_of_first};
use crate::job::{round_info, slice_digest};
use crate::key::{Key, KeyRound};
use crate::local::plan::Plan;
use crate::local::table::Slot;
use kvstore_protocol::{Machine as _, Peer, PullDependency, WEIGHTS};

/// A query of slices: the call, and the byte on the wire.
type Query = (&'static str, u8);

/// A key, the round of its slices, and what each of them has answered.
type OfKey = (Arc<Slot>, u64, Vec<Vec<u8>>);

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
        let call = "digest";
        let joined = |(slot, round, slices): OfKey| {
            let digest = slice_digest::joined(round, slot.bytes() as u64, &slices);
            digest.map_err(|error| self.unfit(call, &slot, &error))
        };
        self.query((call, WANT_DIGEST), keys)?.into_iter().map(joined).collect()
    }

    /// Who took part in the last round of a key, after this worker's pushes.
    pub(super) fn round_of(&self, key: Key) -> Result<KeyRound> {
        let call = "last_round";
        self.check_knows(call, WEIGHTS)?;
        let found = self.query((call, WANT_ROUND), &[key])?.pop();
        let (slot, round, slices) =
            found.ok_or_else(|| fail!(Internal, "a bug of this library: no round"))?;
        round_info::joined(round, &slices).map_err(|error| self.unfit(call, &slot, &error))
    }

    /// The error of answers that do not fit a key.
    fn unfit(&self, call: &str, slot: &Slot, error: &Error) -> Error {
        error.at(format_args!("{call}: {}", self.local.keys.names.label(slot.key)))
    }

    /// Refuses a call that a server or the scheduler does not know, as it lacks a feature.
    pub(super) fn check_knows(&self, call: &str, feature: u64) -> Result<()> {
        let is_old = |node: &kvstore_protocol::Node<_, _>| {
            let mut all = (0..self.servers).map(Peer::server).chain([Peer::SCHEDULER]);
            // A peer without a stream has ended: the call says so.
            let has_stream = |peer: &Peer| node.linked(*peer).is_some();
            all.find(|peer| has_stream(peer) && node.features(*peer) & feature == 0)
        };
        match self.driver.peek(is_old).flatten() {
            Some(peer) => Err(fail!(
                Unsupported,
                "{call}: {peer} is of an earlier release, which does not know this call; use the same \
                 release everywhere"
            )),
            None => Ok(()),
        }
    }

    /// Queries all slices of keys. A key whose slices are of different rounds is queried again: the job has no
    /// common round for a worker that is done, and for `dist_async`.
    fn query(&self, query: Query, keys: &[Key]) -> Result<Vec<OfKey>> {
        let call = query.0;
        self.find(call, keys.iter().copied())?;
        let scene = self.local.keys.scene(call);
        let slot = |&key: &Key| self.local.keys.table.get(key).ok_or_else(|| scene.unknown(key));
        let slots = keys.iter().map(slot).collect::<Result<Vec<_>>>()?;
        let deadline = self.local.deadline();
        let mut found: Vec<OfKey> =
            slots.iter().map(|slot| (Arc::clone(slot), 0, Vec::new())).collect();
        let mut left: Vec<usize> = (0..slots.len()).collect();
        while !left.is_empty() {
            let some: Vec<_> = left.iter().map(|&at| Arc::clone(&slots[at])).collect();
            let answers =
                self.query_slices(query, &some, deadline).map_err(|error| error.at(call))?;
            let (mut apart, mut again) = (None, Vec::new());
            for (at, answer) in left.into_iter().zip(answers) {
                match answer {
                    Answered::Whole(round, slices) => (found[at].1, found[at].2) = (round, slices),
                    Answered::Apart(first, last) => {
                        apart.get_or_insert((slots[at].key, first, last));
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
            let (place, blocks) = (self.place(slot.key)?, &self.driver.blocks);
            let count = place.servers.len();
            let wanted = query_of_first(count, &[wanted], &place, blocks)?;
            let what = KeyOperation::Want(wanted, PullDependency::Own);
            let key = slot.key.id();
            memory.requests.push_back(KeyRequest { key, part: 0, scale: 0, what });
            let target = PullTarget::Slices(crate::sys::sync::Mutex::default());
            parts.push(PendingKey::new(Arc::clone(slot), target, 0..0));
            servers.push(count);
        }
        let call = PendingCall::new(self.group.clone(), None, Plan::default(), parts);
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
