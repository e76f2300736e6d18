//! Calls on keys whose values are on the device.

use smallvec::SmallVec;

use super::staging::Staging;
use super::{DeviceCall, EMPTY, outs_of};
use crate::device::{CallQueue, Mark, Spares, Wait, piece_bytes};
use crate::device::{DevicePasses, KeyArrays, NormLayout, Stage, WantedSpans};
use crate::error::{Error, Result};
use crate::local::apply::{Applier, KeyPush, with_default_floats};
use crate::local::counters::CallTally;
use crate::local::lock::WriteGuard;
use crate::local::merger::Merger;
use crate::local::plan::{KeyGroup, PlannedOut};
use crate::local::table::{Slot, Value};
use crate::optim::{Optimizer, OptimizerState};
use crate::tensor::{Array, DType, Lent, Memory};

/// Addresses of a key's arrays in a call.
type Addresses = SmallVec<[u64; 8]>;

/// A key's state before the call.
struct Before {
    /// The numbers of its optimizer's state.
    progress: Option<(u64, f64)>,
    has_master: bool,
}

impl Before {
    fn of(value: &Value) -> Self {
        let progress = value.state.as_ref().map(OptimizerState::progress);
        let has_master = value.device.as_ref().is_some_and(|it| it.master().is_some());
        Self { progress, has_master }
    }
}

/// The lists of a call, whose memory later calls use.
#[derive(Default)]
struct KeyLists {
    before: Vec<Before>,
    /// Keys with outs in host memory, and the downloads of their values.
    copies: Vec<(usize, usize)>,
}

/// Keys that a call has locked.
type LockedKeys<'a> = Vec<WriteGuard<'a, Value>>;

thread_local! {
    static LISTS: Spares<KeyLists> = const { Spares::new() };
    static LOCKED: Spares<LockedKeys<'static>> = const { Spares::new() };
}

/// Unlocks keys, and keeps the memory of their list.
fn unlock(mut locked: LockedKeys<'_>) {
    locked.clear();
    // An empty list in the same memory, which lends nothing.
    let empty = locked.into_iter().map(|_| -> WriteGuard<'static, Value> { unreachable!() });
    Spares::put(&LOCKED, empty.collect());
}

impl Applier {
    /// Queues a call on keys on the device, as one launch for each kind of work.
    pub(super) fn run_keys(
        &self,
        work: &DeviceCall<'_>,
        groups: &[KeyGroup],
        outs: &[PlannedOut],
        tally: &mut CallTally,
    ) -> Result<()> {
        let mut locked: LockedKeys<'_> = Spares::take(&LOCKED);
        locked.reserve(groups.len());
        for group in groups {
            if work.limits.is_cancelled() {
                return Err(self.cancelled(work.name, &group.slot));
            }
            locked.push(self.lock(work.name, &group.slot, work.limits)?);
        }
        self.run_locked(work, groups, outs, locked, tally)
    }

    /// The same with the keys locked.
    pub(super) fn run_locked(
        &self,
        work: &DeviceCall<'_>,
        groups: &[KeyGroup],
        outs: &[PlannedOut],
        mut locked: LockedKeys<'_>,
        tally: &mut CallTally,
    ) -> Result<()> {
        let mut staging = self.staging(work);
        staging.lends = true;
        let KeyLists { mut before, mut copies } = Spares::take(&LISTS);
        before.extend(locked.iter().map(|value| Before::of(value)));
        let queued = self.add_keys(work, groups, outs, &mut locked, &mut staging, &mut copies);
        let queue = |staging: &mut Staging<'_>| staging.prepare().and_then(|()| staging.queue());
        let first = &groups[0].slot;
        let named = |()| queue(&mut staging).map_err(self.naming(work, first));
        let mark = queued.and_then(named).inspect_err(|_| {
            go_back(work, &mut locked, &before);
        })?;
        for (group, value) in groups.iter().zip(&mut locked) {
            let memory = value.device.as_mut().expect(EMPTY);
            if group.values.is_empty() {
                memory.marks.note_reader(&mark);
            } else {
                memory.marks.note_writer(&mark);
                value.merges += 1;
            }
            tally.add(&CallTally::of(group.values.len(), group.outs.len(), group.slot.bytes()));
        }
        let mut locked = Some(locked);
        if staging.is_queued() {
            locked.take().into_iter().for_each(unlock);
        }
        let filled = self.fill_host_outs(work, groups, outs, &mut staging, &copies, &mut locked);
        unlock_behind(work.queue, &copies, &mut locked);
        // A ticket is done behind them.
        let is_lent = staging.has_lent() && !work.queue.has_ticket();
        let rest = if groups[0].values.is_empty() {
            "outs are undefined, and the GPU writes them when it comes to it"
        } else {
            "it is applied when the GPU comes to it, which uses the tensors until then"
        };
        let returned = || if is_lent { self.wait_for(work, first, &mark, rest) } else { Ok(()) };
        let filled = filled.and_then(|()| returned());
        before.clear();
        copies.clear();
        Spares::put(&LISTS, KeyLists { before, copies });
        filled
    }

    /// Adds the work of all keys. `copies` gets the keys with outs in host memory, and the downloads
    /// of their values.
    fn add_keys(
        &self,
        work: &DeviceCall<'_>,
        groups: &[KeyGroup],
        outs: &[PlannedOut],
        locked: &mut [WriteGuard<'_, Value>],
        staging: &mut Staging<'_>,
        copies: &mut Vec<(usize, usize)>,
    ) -> Result<()> {
        let here =
            |group: &KeyGroup| Staging::bytes_here(&group.slot, &work.values[group.values.clone()]);
        let reserved = staging.reserve(groups.iter().map(here).sum());
        reserved.map_err(self.naming(work, &groups[0].slot))?;
        for (index, (group, value)) in groups.iter().zip(locked).enumerate() {
            let slot = &*group.slot;
            if slot.count == 0 {
                continue;
            }
            let (values, outs) = (&work.values[group.values.clone()], outs_of(group, outs));
            let push = KeyPush {
                call: work.name,
                slot,
                values,
                outs,
                limits: work.limits,
                touched: work.touched,
                digester: None,
                divisor: None,
                scale: 1.0,
                keeping: None,
            };
            let mut add = || -> Result<()> {
                self.add_key(work, &push, value, staging)?;
                let is_host =
                    |out: &&PlannedOut| !out.shadowed && out.lent.memory() == Memory::Host;
                let here = outs.iter().filter(is_host).map(|out| &out.lent);
                let stored = value.device.as_ref().expect(EMPTY).value();
                if here.clone().next().is_some() && !staging.download_there(slot, stored, here) {
                    copies.push((index, staging.download(stored, slot.bytes())));
                }
                Ok(())
            };
            add().map_err(|error: Error| self.at(&push, &error))?;
        }
        Ok(())
    }

    /// Adds the work of one key.
    fn add_key(
        &self,
        work: &DeviceCall<'_>,
        push: &KeyPush<'_>,
        value: &mut Value,
        staging: &mut Staging<'_>,
    ) -> Result<()> {
        let &KeyPush { slot, values, outs, .. } = push;
        let (dtype, stream) = (slot.dtype, &work.queue.stream);
        let memory = value.device.as_mut().expect(EMPTY);
        let stored = memory.value();
        let seen = || outs.iter().filter(|out| !out.shadowed).map(|out| &out.lent);
        let plain = seen().filter(|out| staging.is_own(out.memory()) && out.is_plain(dtype));
        let plain = plain.map(|out| out.data().addr() as u64).collect::<Addresses>();
        if values.is_empty() {
            memory.marks.order_reader(stream)?;
            if !plain.is_empty() {
                staging.jobs.sum(dtype, slot.count, &[stored], &plain)?;
            }
        } else {
            memory.marks.order_writer(stream)?;
            let inputs = values.iter().map(|lent: &Lent| staging.value(slot, lent));
            let inputs = inputs.collect::<Result<Addresses>>()?;
            if let Merger::Optimizer(optimizer) = work.handling.merger_of(slot.key) {
                self.add_rule(push, optimizer, value, staging, (&inputs, &plain))?;
            } else {
                let targets = std::iter::once(stored).chain(plain).collect::<Addresses>();
                staging.jobs.sum(dtype, slot.count, &inputs, &targets)?;
            }
        }
        for out in seen() {
            if !staging.is_own(out.memory()) {
                staging.send(slot, stored, out)?;
            } else if !out.is_plain(dtype) {
                staging.scatter(slot, stored, out)?;
            }
        }
        Ok(())
    }

    /// Adds the merge of plain arrays by a rule of ours.
    #[allow(clippy::unused_self, reason = "as the merges of keys in host memory")]
    fn add_rule(
        &self,
        push: &KeyPush<'_>,
        optimizer: &Optimizer,
        value: &mut Value,
        staging: &mut Staging<'_>,
        (inputs, plain): (&[u64], &[u64]),
    ) -> Result<()> {
        let (slot, stream) = (push.slot, staging.queue.stream);
        let memory = value.device.as_mut().expect(EMPTY);
        let (count, rows) = (slot.count, slot.rows());
        let (state, arrays) =
            optimizer.prepare_elsewhere(slot.dtype, (count, rows), &mut value.state);
        if arrays.is_stale {
            memory.forget_states()?;
        }
        let size = slot.dtype.full().size();
        let wanted = WantedSpans {
            states: arrays.states,
            state_bytes: arrays.length * size,
            master: arrays.has_master.then_some(count * size),
        };
        let growth = memory.grow(wanted, &stream)?;
        if growth.any {
            memory.marks.note_writer(&Mark::record(staging.queue.device, &stream)?);
        }
        if let (true, Some(master)) = (growth.master, memory.master()) {
            let dtypes = (slot.dtype, DType::F32);
            let stored = (memory.value(), None);
            staging.jobs.copy(Stage::Gather, dtypes, &slot.shape, stored, (master, None))?;
        }
        let norms = match arrays.rows {
            Some(rows) => Some(NormLayout::of_rows(rows, count / rows)),
            None => arrays.measures_key.then(|| NormLayout::of_key(count)),
        };
        let norms = norms.map(|norms| Ok((norms, staging.span(norms.bytes())?))).transpose()?;
        let stored = arrays.has_master.then_some(memory.value());
        let outs = stored.into_iter().chain(plain.iter().copied()).collect::<Addresses>();
        let mut passes = DevicePasses {
            list: &mut staging.jobs,
            key: KeyArrays {
                dtype: slot.dtype,
                count,
                arrays: memory.arrays(),
                is_master: arrays.has_master,
                inputs,
                outs: &outs,
            },
            norms,
            result: Ok(()),
        };
        optimizer.push(slot.key, 1.0, state, &mut passes);
        passes.result
    }

    /// Waits for the downloads, and fills the outs in host memory. Keys that are still locked are
    /// unlocked when all downloads have been queued.
    fn fill_host_outs(
        &self,
        work: &DeviceCall<'_>,
        groups: &[KeyGroup],
        outs: &[PlannedOut],
        staging: &mut Staging<'_>,
        copies: &[(usize, usize)],
        locked: &mut Option<LockedKeys<'_>>,
    ) -> Result<()> {
        let Some(&(first, _)) = copies.first() else { return Ok(()) };
        let first = &groups[first].slot;
        let wait = |mark: &Mark| self.wait_for(work, first, mark, "outs are undefined");
        for &(index, download) in copies {
            if staging.is_queued() {
                unlock_behind(work.queue, copies, locked);
            }
            let (slot, outs) = (&*groups[index].slot, outs_of(&groups[index], outs));
            self.fill_outs_from(staging, download, slot, outs, &wait)?;
        }
        Ok(())
    }

    /// Fills the outs of a key in host memory from a download.
    fn fill_outs_from(
        &self,
        staging: &mut Staging<'_>,
        download: usize,
        slot: &Slot,
        outs: &[PlannedOut],
        wait: Wait<'_>,
    ) -> Result<()> {
        let team = self.team;
        let is_filled = |out: &&PlannedOut| !out.shadowed && out.lent.memory() == Memory::Host;
        let filled = || outs.iter().filter(is_filled);
        let fill = |from: Array| {
            filled().try_for_each(|out| with_default_floats(|| team.fill_out(slot, from, out)))
        };
        if slot.bytes() <= piece_bytes() {
            return staging.fetch(download, wait, |_, whole, _| {
                fill(Lent::plain(whole.data(), slot.dtype).array())
            });
        }
        if filled().all(|out| out.lent.is_plain(slot.dtype)) {
            return staging.fetch(download, wait, |start, part, bytes| {
                for out in filled() {
                    let to = Lent::plain(out.lent.data(), DType::U8).array();
                    team.copy_bytes(part.array(), to.part(&(start..start + bytes)), bytes);
                }
                Ok(())
            });
        }
        let whole = staging.fetch_buffer(download, slot.bytes(), wait)?;
        fill(Array::of(&whole, slot.dtype))
    }
}

/// Unlocks keys, if they are still locked, behind the downloads that have been queued since.
fn unlock_behind(
    queue: &CallQueue,
    copies: &[(usize, usize)],
    locked: &mut Option<LockedKeys<'_>>,
) {
    let Some(mut keys) = locked.take() else { return };
    // An error: the device is lost.
    if let Ok(mark) = queue.mark() {
        for &(index, _) in copies {
            keys[index].device.as_mut().expect(EMPTY).marks.note_reader(&mark);
        }
    }
    unlock(keys);
}

/// Takes the pushes of a call that was not queued back. A device that failed on the way may have
/// made some of them: uses behind this one are ordered behind what it has.
fn go_back(work: &DeviceCall<'_>, locked: &mut [WriteGuard<'_, Value>], before: &[Before]) {
    let mark = Mark::record(work.queue.device, &work.queue.stream);
    for (value, before) in locked.iter_mut().zip(before) {
        let Value { state, device, .. } = &mut **value;
        match (state.as_mut(), before.progress) {
            (Some(state), Some((updates, carried))) => state.go_on_from(updates, carried),
            _ => *state = None,
        }
        let Some(memory) = device else { continue };
        if !before.has_master {
            // Its content has not been set.
            memory.forget_master(&work.queue.stream);
        }
        mark.iter().for_each(|mark| memory.marks.note_writer(mark));
    }
}
