//! What the codecs of workers have left unsent, on its way into a checkpoint and back. Workers do not
//! know each other: one lays it down on the servers, slice by slice, where another one finds it.
//!
//! One worker's at a time, so that servers need no more memory than for that.

use std::collections::HashMap;
use std::sync::Arc;

use super::call::{Call, Part, Target};
use super::sending::{Order, What};
use super::state::Brought;
use super::worker::WorkerStore;
use crate::cluster::{self, Data as _, Place};
use crate::codec::{Codec, Residuals};
use crate::deadline::Deadline;
use crate::driver::Bytes;
use crate::error::{Error, Result, fail};
use crate::key::Key;
use crate::store::plan::Plan;
use crate::store::table::Slot;
use crate::tensor::{Buffer, DType};

/// Stands for pushes where a worker could not lay down what it has.
const NOTHING: u64 = u64::MAX;

/// Who lays down, and who finds it: rank 0 on one side, another rank on the other.
#[derive(Clone, Copy)]
enum Way {
    ToRank0,
    FromRank0,
}

/// What one worker has left of one key: its pushes so far, and the array, slice by slice, if there is one.
struct Left {
    pushes: u64,
    array: Vec<Bytes>,
}

/// What the other workers have left, by key and rank.
#[derive(Default)]
pub(super) struct Gathered(HashMap<u64, HashMap<u32, Left>>);

impl WorkerStore {
    /// Brings what all workers have left unsent to rank 0: all of them call it.
    pub(super) fn gather_unsent(&self, deadline: Deadline) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        let Some(codec) = self.local.handling.read().codec.clone() else { return Ok(gathered) };
        let slots = self.encoded_slots();
        self.relay(
            Way::ToRank0,
            deadline,
            |rank| self.lay_down_own(&slots, rank, &codec, deadline),
            |rank| self.find_all(&slots, rank, &mut gathered, deadline),
            |rank| slots.iter().try_for_each(|slot| self.take_away(slot, rank, deadline)),
        )?;
        Ok(gathered)
    }

    /// Puts what all workers have left of a key where a file takes it from; on rank 0.
    pub(super) fn join_unsent(
        &self,
        slot: &Slot,
        gathered: &mut Gathered,
        stored: *const u8,
    ) -> Result<Option<Box<Residuals>>> {
        let codec = self.local.handling.read().codec.clone();
        let Some(codec) = codec.filter(|_| is_encoded(slot)) else { return Ok(None) };
        let others = gathered.0.remove(&slot.key.id()).unwrap_or_default();
        let unsent = self.unsent.lock();
        let own = unsent.residual(slot.key.id(), &codec);
        let any = own.is_some() || others.values().any(|left| !left.array.is_empty());
        let (mut rank, slots) = (0, if any { self.workers as usize } else { 0 });
        let fill = |room: &mut [u8]| {
            match (rank, others.get(&rank)) {
                (0, _) => own.iter().for_each(|own| room.copy_from_slice(own)),
                (_, Some(left)) => left.fill(room)?,
                (_, None) => {}
            }
            rank += 1;
            Ok(())
        };
        let mut residuals = Residuals::restore(&codec, slots, slot.count, stored, fill)?;
        let mut rounds = vec![self.pushes(slot.key)?.wrapping_add(unsent.ahead(slot.key.id()))];
        let of_others = |rank| others.get(&rank).map_or(0, |left: &Left| left.pushes);
        rounds.extend((1..self.workers).map(of_others));
        residuals.set_rounds(&rounds);
        Ok(Some(residuals))
    }

    /// The keys of this worker's table of which a file has what as many workers have left.
    pub(super) fn keys_with_unsent(&self) -> Vec<u64> {
        let fits = |slot: &Arc<Slot>| {
            let value = slot.value.try_write(&self.local.applier.released)?;
            let residuals = value.residuals.as_ref().filter(|_| is_encoded(slot))?;
            let whole = [0, self.workers as usize].contains(&residuals.buffers().len());
            (whole && residuals.rounds().len() == self.workers as usize).then(|| slot.key.id())
        };
        self.local.keys.table.slots().iter().filter_map(fits).collect()
    }

    /// Gives every worker what a file has of it, which is in the table of rank 0: all of them call it.
    pub(super) fn spread_unsent(&self, keys: &[u64], deadline: Deadline) -> Result<()> {
        let Some(codec) = self.local.handling.read().codec.clone() else { return Ok(()) };
        let slots = self.found_slots("load", keys);
        let each = |work: &dyn Fn(&Arc<Slot>) -> Result<()>| match &slots {
            Ok(slots) => slots.iter().try_for_each(work),
            Err(error) => Err(Error::clone(error)),
        };
        let own = |slot: &Arc<Slot>| {
            let left = self.left_in_table(slot, 0)?;
            self.take_up(slot, &codec, &left, deadline)
        };
        let first = if self.rank == 0 { each(&own) } else { Ok(()) };
        let others = self.relay(
            Way::FromRank0,
            deadline,
            |rank| {
                each(&|slot| {
                    let left = self.left_in_table(slot, rank)?;
                    self.lay_down(slot, rank, left.pushes, &left.whole(slot)?, deadline)
                })
            },
            |rank| {
                each(&|slot| match self.find_left(slot, rank, deadline)? {
                    Some(left) => self.take_up(slot, &codec, &left, deadline),
                    None => Ok(()),
                })
            },
            |rank| each(&|slot| self.take_away(slot, rank, deadline)),
        );
        first.and(others)
    }

    /// For each rank but the first one: one side lays something down, the other one finds it, and the
    /// first takes it away. Who fails goes on meeting the others, who wait for it.
    fn relay(
        &self,
        way: Way,
        deadline: Deadline,
        mut lay_down: impl FnMut(u32) -> Result<()>,
        mut find: impl FnMut(u32) -> Result<()>,
        mut take_away: impl FnMut(u32) -> Result<()>,
    ) -> Result<()> {
        let mut result = Ok(());
        for rank in 1..self.workers {
            let (giver, finder) = match way {
                Way::ToRank0 => (rank, 0),
                Way::FromRank0 => (0, rank),
            };
            let is = |role: u32| role == self.rank;
            let laid_down = if is(giver) { lay_down(rank) } else { Ok(()) };
            self.request(deadline, cluster::Worker::barrier)?;
            let found = if is(finder) { find(rank) } else { Ok(()) };
            self.request(deadline, cluster::Worker::barrier)?;
            let taken = if is(giver) { take_away(rank) } else { Ok(()) };
            result = result.and(laid_down).and(found).and(taken);
        }
        result
    }

    /// The keys of this worker whose pushes go through a codec.
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
        deadline: Deadline,
    ) -> Result<()> {
        let all = slots.iter().try_for_each(|slot| {
            let key = slot.key.id();
            let (array, ahead) = {
                let unsent = self.unsent.lock();
                (unsent.residual(key, codec).unwrap_or_default().to_vec(), unsent.ahead(key))
            };
            let pushes = self.pushes(slot.key)?.wrapping_add(ahead);
            self.lay_down(slot, rank, pushes, &array, deadline)
        });
        if let (Err(_), Some(first)) = (&all, slots.first()) {
            self.lay_down(first, rank, NOTHING, &[], deadline)?;
        }
        all
    }

    /// Puts the array of a worker, or none, on the servers of a key.
    fn lay_down(
        &self,
        slot: &Arc<Slot>,
        rank: u32,
        pushes: u64,
        array: &[u8],
        deadline: Deadline,
    ) -> Result<()> {
        let place = self.place(slot.key)?;
        let part = |slice| {
            let part = array.get(in_array(&place, slot, slice)).unwrap_or_default();
            Brought::Laid { rank, pushes, array: part }
        };
        self.bring_slices(slot, &place, part, deadline)
    }

    /// Frees on the servers what `lay_down` has put there.
    fn take_away(&self, slot: &Arc<Slot>, rank: u32, deadline: Deadline) -> Result<()> {
        let place = self.place(slot.key)?;
        self.bring_slices(slot, &place, |_| Brought::Taken { rank }, deadline)
    }

    pub(super) fn bring_slices<'a>(
        &self,
        slot: &Arc<Slot>,
        place: &Place,
        part: impl Fn(u32) -> Brought<'a>,
        deadline: Deadline,
    ) -> Result<()> {
        let slices = 0..u32::try_from(place.servers.len()).unwrap_or(0);
        let join = |slice| part(slice).join(&self.driver.blocks);
        let slices = slices.map(join).collect::<Result<_>>()?;
        self.restore(slot, slices, deadline)
    }

    /// Everything that a worker has laid down of these keys.
    fn find_all(
        &self,
        slots: &[Arc<Slot>],
        rank: u32,
        gathered: &mut Gathered,
        deadline: Deadline,
    ) -> Result<()> {
        for slot in slots {
            if let Some(left) = self.find_left(slot, rank, deadline)? {
                gathered.0.entry(slot.key.id()).or_default().insert(rank, left);
            }
        }
        Ok(())
    }

    /// What a worker has laid down of a key; None if it does not use the key, or is gone.
    fn find_left(&self, slot: &Arc<Slot>, rank: u32, deadline: Deadline) -> Result<Option<Left>> {
        let place = self.place(slot.key)?;
        let slices = self.fetch(slot, &place, &Brought::wanted(rank), deadline)?;
        let mut left = Left { pushes: 0, array: Vec::new() };
        for slice in slices {
            let pushes = slice.read(|bytes| bytes.first_chunk().map(|it| u64::from_le_bytes(*it)));
            let Some(pushes) = pushes.flatten() else { return Ok(None) };
            if pushes == NOTHING {
                return Err(fail!(
                    OutOfMemory,
                    "worker {rank} could not bring what its codec has left unsent"
                ));
            }
            left.pushes = pushes;
            let head = size_of::<u64>() as u64;
            if slice.len() > head {
                let len = slice.len() - head;
                left.array.push(slice.part(head, len));
            }
        }
        Ok(Some(left))
    }

    /// What a file has of a worker, in the table of rank 0.
    fn left_in_table(&self, slot: &Slot, rank: u32) -> Result<Left> {
        let value = slot.value.try_write(&self.local.applier.released);
        let value = value.ok_or_else(|| fail!(Timeout, "load: a key stays in use"))?;
        let rank = rank as usize;
        let residuals = value.residuals.as_ref();
        let array = residuals.and_then(|it| it.buffers().get(rank)).map(Buffer::bytes);
        let pushes = residuals.and_then(|it| it.rounds().get(rank)).copied().unwrap_or(0);
        let array = array.map(|array| self.driver.blocks.join(&[array])).transpose()?;
        Ok(Left {
            pushes,
            array: array.map(|it| Bytes::of_block(Arc::new(it))).into_iter().collect(),
        })
    }

    /// Goes on with what a file has of this worker, here and on the servers.
    fn take_up(
        &self,
        slot: &Arc<Slot>,
        codec: &Codec,
        left: &Left,
        deadline: Deadline,
    ) -> Result<()> {
        let arrays = usize::from(!left.array.is_empty());
        let fill = |room: &mut [u8]| left.fill(room);
        let residuals = Residuals::restore(codec, arrays, slot.count, std::ptr::null(), fill)?;
        let ahead = left.pushes.wrapping_sub(self.pushes(slot.key)?);
        self.unsent.lock().take_up(slot.key.id(), residuals, ahead);
        let place = self.place(slot.key)?;
        let part = |_| Brought::Ahead { rank: self.rank, ahead };
        self.bring_slices(slot, &place, part, deadline)
    }

    /// Pushes of this worker in the present life of a key.
    pub(super) fn pushes(&self, key: Key) -> Result<u64> {
        self.step(|worker, _, _| Ok(worker.pushes_before_next(key.id())))
    }

    /// Everything of one kind that the servers have of a key, by slice.
    pub(super) fn fetch(
        &self,
        slot: &Arc<Slot>,
        place: &Place,
        wanted: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<Bytes>> {
        let slices = u32::try_from(place.servers.len()).unwrap_or(u32::MAX);
        let what = What::Want((0..slices).map(|slice| (slice, wanted.to_vec())).collect());
        let target = Target::Slices(crate::sync::Mutex::default());
        let came = self.run_one(slot, target, what, deadline)?.slices(0);
        if came.len() == place.servers.len() {
            return Ok(came.into_values().collect());
        }
        Err(fail!(Internal, "a bug of this library: slices are missing"))
    }

    /// Gives every slice of a key what is brought for it.
    pub(super) fn restore(
        &self,
        slot: &Arc<Slot>,
        slices: Vec<Bytes>,
        deadline: Deadline,
    ) -> Result<()> {
        self.run_one(slot, Target::Nowhere, What::Restore(slices), deadline).map(drop)
    }

    fn run_one(
        &self,
        slot: &Arc<Slot>,
        target: Target,
        what: What,
        deadline: Deadline,
    ) -> Result<Arc<Call>> {
        let part = Part { slot: Arc::clone(slot), loan: None, target, outs: 0..0 };
        let order = Order { key: slot.key.id(), what };
        let call = Call::new(None, Plan::default(), vec![part]);
        let call = self.launch(call, vec![order], 0, deadline)?;
        call.wait()?;
        Ok(call)
    }
}

impl Left {
    /// Puts the array where there is room for all of it.
    fn fill(&self, room: &mut [u8]) -> Result<()> {
        let mut rest = room;
        for part in &self.array {
            let short = || fail!(Corrupt, "what is unsent of a slice is too long");
            let len = usize::try_from(part.len()).unwrap_or(usize::MAX);
            let (place, others) =
                std::mem::take(&mut rest).split_at_mut_checked(len).ok_or_else(short)?;
            part.read(|bytes| place.copy_from_slice(bytes));
            rest = others;
        }
        Ok(())
    }

    fn whole(&self, slot: &Slot) -> Result<Vec<u8>> {
        let mut whole =
            vec![0; if self.array.is_empty() { 0 } else { slot.count * DType::F32.size() }];
        self.fill(&mut whole).map(|()| whole)
    }
}

/// Whether pushes of a key go through a codec.
fn is_encoded(slot: &Slot) -> bool {
    slot.dtype.is_float() && slot.count > 0
}

/// Where in the array of a key, of float32, the part of a slice is.
fn in_array(place: &Place, slot: &Slot, slice: u32) -> std::ops::Range<usize> {
    let (start, len) = place.range(slice);
    let at = |byte: u64| {
        let element = byte / slot.dtype.size() as u64;
        usize::try_from(element).unwrap_or(usize::MAX).saturating_mul(DType::F32.size())
    };
    at(start)..at(start + len)
}
