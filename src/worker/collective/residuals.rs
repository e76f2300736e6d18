//! Transfer of codec residuals into a checkpoint and back (also called: error-feedback state). Workers have
//! no links to each other, so one deposits a residual on the servers, slice by slice, and another fetches it.
//!
//! One worker's residuals at a time, which bounds the memory of the servers.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Collective, StepResults};
use crate::codec::{Codec, Residuals};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::job::slice_state::StateUpdate;
use crate::local::table::Slot;
use crate::runtime::Block;
use crate::tensor::{Buffer, DType};
use crate::worker::WorkerStore;
use kvstore_protocol::Placement;

/// Number of pushes that marks a failed deposit.
const NOTHING: u64 = u64::MAX;

/// Direction of a transfer: the leader is one side, each other rank the other.
#[derive(Clone, Copy)]
enum TransferDirection {
    To(u32),
    From(u32),
}

impl TransferDirection {
    /// Rank of the leader.
    fn leader(self) -> u32 {
        let (Self::To(leader) | Self::From(leader)) = self;
        leader
    }
}

/// Residual of one worker for one key: its pushes so far, and the array, if there is one.
struct ResidualDeposit {
    pushes: u64,
    array: Block,
}

/// Residuals of the other workers, by key and rank.
#[derive(Default)]
pub(super) struct GatheredResiduals(HashMap<u64, HashMap<u32, ResidualDeposit>>);

impl WorkerStore {
    /// Transfers the residuals of all workers to the leader: all of them call it.
    pub(super) fn gather_unsent(&self, leader: u32, collective: &mut Collective) -> Result<()> {
        let Some(codec) = self.local.handling.read().codec.clone() else { return Ok(()) };
        let slots = self.encoded_slots();
        self.relay(
            TransferDirection::To(leader),
            collective,
            |rank, kept, deadline| self.lay_down_own(&slots, rank, &codec, kept, deadline),
            |rank, kept, deadline| self.find_all(&slots, rank, kept, deadline),
            |rank, kept, deadline| {
                kept.each(&slots, |_, slot| self.take_away(slot, rank, deadline))
            },
        )
    }

    /// Stores the residuals of all workers for a key in the table of the leader, for the file.
    pub(super) fn join_unsent(
        &self,
        slot: &Slot,
        gathered: &GatheredResiduals,
        stored: *const u8,
    ) -> Result<Option<Box<Residuals>>> {
        let codec = self.local.handling.read().codec.clone();
        let Some(codec) = codec.filter(|_| is_encoded(slot)) else { return Ok(None) };
        let none = HashMap::new();
        let others = gathered.0.get(&slot.key.id()).unwrap_or(&none);
        let unsent = self.unsent.lock();
        let own = unsent.residual(slot.key.id(), &codec);
        let any = own.is_some() || others.values().any(|left| !left.array.bytes().is_empty());
        let (mut rank, slots) = (0, if any { self.workers as usize } else { 0 });
        let fill = |room: &mut [u8]| {
            let of_other = || others.get(&rank).map(|left| left.array.bytes());
            let array = if rank == self.rank { own } else { of_other() };
            // A key without a push has no residual.
            let array = array.filter(|array| !array.is_empty());
            array.into_iter().for_each(|array| room.copy_from_slice(array));
            rank += 1;
            Ok(())
        };
        let mut residuals = Residuals::restore(&codec, slots, slot.count, stored, fill)?;
        let pushes = self.pushes(slot.key)?.wrapping_add(unsent.ahead(slot.key.id()));
        let of_other = |rank| others.get(&rank).map_or(0, |left: &ResidualDeposit| left.pushes);
        let of = |rank| if rank == self.rank { pushes } else { of_other(rank) };
        let rounds: Vec<u64> = (0..self.workers).map(of).collect();
        residuals.set_rounds(&rounds);
        Ok(Some(residuals))
    }

    /// Keys in this worker's table with residuals of exactly this many workers.
    pub(super) fn keys_with_unsent(&self) -> Vec<u64> {
        let fits = |slot: &Arc<Slot>| {
            let value = slot.value.try_write(&self.local.applier.released)?;
            let residuals = value.residuals.as_ref().filter(|_| is_encoded(slot))?;
            let whole = [0, self.workers as usize].contains(&residuals.buffers().len());
            (whole && residuals.rounds().len() == self.workers as usize).then(|| slot.key.id())
        };
        self.local.keys.table.slots().iter().filter_map(fits).collect()
    }

    /// Transfers the residuals in the leader's table to the workers: all of them call it.
    pub(super) fn spread_unsent(
        &self,
        keys: &[u64],
        leader: u32,
        collective: &mut Collective,
    ) -> Result<()> {
        let Some(codec) = self.local.handling.read().codec.clone() else { return Ok(()) };
        let slots = self.found_slots("load", keys);
        let each = |kept: &mut StepResults, work: &dyn Fn(&Arc<Slot>) -> Result<()>| match &slots {
            Ok(slots) => kept.each(slots, |_, slot| work(slot)),
            Err(error) => Err(Error::clone(error)),
        };
        let own = |kept: &mut StepResults, deadline| {
            each(kept, &|slot| {
                let take_up =
                    |pushes, array: &[u8]| self.take_up(slot, &codec, pushes, array, deadline);
                self.with_left_in_table(slot, leader, take_up)
            })
        };
        let is_leader = self.rank == leader;
        let first = collective.step(|kept, end| if is_leader { own(kept, end) } else { Ok(()) });
        let others = self.relay(
            TransferDirection::From(leader),
            collective,
            |rank, kept, deadline| {
                each(kept, &|slot| {
                    let lay_down =
                        |pushes, array: &[u8]| self.lay_down(slot, rank, pushes, array, deadline);
                    self.with_left_in_table(slot, rank, lay_down)
                })
            },
            |rank, kept, deadline| {
                each(kept, &|slot| match self.find_left(slot, rank, deadline)? {
                    Some(ResidualDeposit { pushes, array }) => {
                        self.take_up(slot, &codec, pushes, array.bytes(), deadline)
                    }
                    None => Ok(()),
                })
            },
            |rank, kept, deadline| each(kept, &|slot| self.take_away(slot, rank, deadline)),
        );
        first.and(others)
    }

    /// For each rank but the leader: one side deposits, the other fetches, and the first side frees the
    /// deposit. A worker that fails still makes all rendezvous, as the other workers wait there.
    fn relay(
        &self,
        way: TransferDirection,
        collective: &mut Collective,
        lay_down: impl Fn(u32, &mut StepResults, Deadline) -> Result<()>,
        find: impl Fn(u32, &mut StepResults, Deadline) -> Result<()>,
        take_away: impl Fn(u32, &mut StepResults, Deadline) -> Result<()>,
    ) -> Result<()> {
        let mut result = Ok(());
        let leader = way.leader();
        let others = (0..self.workers).filter(|rank| *rank != leader && self.has_worker(*rank));
        for rank in others {
            let (giver, finder) = match way {
                TransferDirection::To(_) => (rank, leader),
                TransferDirection::From(_) => (leader, rank),
            };
            let is = |role: u32| role == self.rank;
            let laid_down = collective
                .step(|kept, end| if is(giver) { lay_down(rank, kept, end) } else { Ok(()) });
            collective
                .step(|_, deadline| self.request(deadline, kvstore_protocol::Worker::barrier))?;
            let found = collective
                .step(|kept, end| if is(finder) { find(rank, kept, end) } else { Ok(()) });
            collective
                .step(|_, deadline| self.request(deadline, kvstore_protocol::Worker::barrier))?;
            let taken = collective
                .step(|kept, end| if is(giver) { take_away(rank, kept, end) } else { Ok(()) });
            result = result.and(laid_down).and(found).and(taken);
        }
        result
    }

    /// Keys of this worker of which pushes are encoded.
    fn encoded_slots(&self) -> Vec<Arc<Slot>> {
        let mut slots = self.local.keys.table.slots();
        slots.retain(|slot| is_encoded(slot));
        slots
    }

    fn lay_down_own(
        &self,
        slots: &[Arc<Slot>],
        rank: u32,
        codec: &Codec,
        kept: &mut StepResults,
        deadline: Deadline,
    ) -> Result<()> {
        let all = kept.each(slots, |_, slot| {
            let key = slot.key.id();
            let (array, ahead) = {
                let unsent = self.unsent.lock();
                (unsent.residual(key, codec).unwrap_or_default().to_vec(), unsent.ahead(key))
            };
            let pushes = self.pushes(slot.key)?.wrapping_add(ahead);
            self.lay_down(slot, rank, pushes, &array, deadline)
        });
        if let (Err(error), Some(first)) = (&all, slots.first())
            && error.kind() != ErrorKind::Timeout
        {
            self.lay_down(first, rank, NOTHING, &[], deadline)?;
        }
        all
    }

    /// Deposits the residual of a worker, or none, on the servers of a key.
    fn lay_down(
        &self,
        slot: &Arc<Slot>,
        rank: u32,
        pushes: u64,
        array: &[u8],
        deadline: Deadline,
    ) -> Result<()> {
        let part = |place: &Placement, slice| {
            let array = array.get(in_array(place, slot, slice)).unwrap_or_default();
            (StateUpdate::Laid { rank, pushes }, array)
        };
        self.bring_each(slot, part, deadline)
    }

    /// Frees on the servers the deposit of `lay_down`.
    fn take_away(&self, slot: &Arc<Slot>, rank: u32, deadline: Deadline) -> Result<()> {
        self.bring_each(slot, |_, _| (StateUpdate::Taken { rank }, &[]), deadline)
    }

    /// Fetches all deposits of a worker for these keys. Deposits of a lost worker are left over from an
    /// earlier save, and are freed.
    fn find_all(
        &self,
        slots: &[Arc<Slot>],
        rank: u32,
        kept: &mut StepResults,
        deadline: Deadline,
    ) -> Result<()> {
        if self.step(|worker, _| worker.is_lost(rank))? {
            return kept.each(slots, |_, slot| self.take_away(slot, rank, deadline));
        }
        kept.each(slots, |kept, slot| {
            if let Some(left) = self.find_left(slot, rank, deadline)? {
                kept.gathered.0.entry(slot.key.id()).or_default().insert(rank, left);
            }
            Ok(())
        })
    }

    /// Fetches the deposit of a worker for a key; None if the worker does not use the key, or is lost.
    fn find_left(
        &self,
        slot: &Arc<Slot>,
        rank: u32,
        deadline: Deadline,
    ) -> Result<Option<ResidualDeposit>> {
        let place = self.place(slot.key)?;
        let slices = self.fetch(slot, &place, &StateUpdate::wanted(rank), deadline)?;
        let mut pushes = 0;
        for slice in &slices {
            let number = slice.read(|bytes| bytes.first_chunk().map(|it| u64::from_le_bytes(*it)));
            let Some(number) = number.flatten() else { return Ok(None) };
            if number == NOTHING {
                return Err(fail!(
                    OutOfMemory,
                    "worker {rank} could not bring what its codec has left unsent"
                ));
            }
            pushes = number;
        }
        let array = self.joined(&slices, size_of_val(&pushes) as u64)?;
        if ![0, slot.count * DType::F32.size()].contains(&array.bytes().len()) {
            return Err(fail!(Corrupt, "what worker {rank} has left unsent does not fit its key"));
        }
        Ok(Some(ResidualDeposit { pushes, array }))
    }

    /// Runs `work` on the residual of a worker in the table of the leader: its pushes, and the array or an
    /// empty one.
    fn with_left_in_table(
        &self,
        slot: &Slot,
        rank: u32,
        work: impl FnOnce(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let value = slot.value.try_write(&self.local.applier.released);
        let value = value.ok_or_else(|| fail!(Timeout, "load: a key stays in use"))?;
        let rank = rank as usize;
        let residuals = value.residuals.as_ref();
        let array = residuals.and_then(|it| it.buffers().get(rank)).map(Buffer::bytes);
        let pushes = residuals.and_then(|it| it.rounds().get(rank)).copied().unwrap_or(0);
        work(pushes, array.unwrap_or_default())
    }

    /// Restores the residual of this worker from a file, and its push counts on the servers.
    fn take_up(
        &self,
        slot: &Arc<Slot>,
        codec: &Codec,
        pushes: u64,
        array: &[u8],
        deadline: Deadline,
    ) -> Result<()> {
        let arrays = usize::from(!array.is_empty());
        let fill = |room: &mut [u8]| {
            room.copy_from_slice(array);
            Ok(())
        };
        let residuals = Residuals::restore(codec, arrays, slot.count, std::ptr::null(), fill)?;
        let ahead = pushes.wrapping_sub(self.pushes(slot.key)?);
        self.unsent.lock().take_up(slot.key.id(), residuals, ahead);
        self.count_ahead(slot, ahead, deadline)
    }
}

/// Whether pushes of a key are encoded.
fn is_encoded(slot: &Slot) -> bool {
    slot.dtype.is_float() && slot.count > 0
}

/// Range of a slice in the float32 residual array of its key.
fn in_array(place: &Placement, slot: &Slot, slice: u32) -> std::ops::Range<usize> {
    let (start, len) = place.range(slice);
    let at = |byte: u64| {
        let element = byte / slot.dtype.size() as u64;
        usize::try_from(element).unwrap_or(usize::MAX).saturating_mul(DType::F32.size())
    };
    at(start)..at(start + len)
}
