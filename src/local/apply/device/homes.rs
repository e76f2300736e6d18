//! On which device the value of a key is, and how it gets there from host memory. Also called:
//! placement.

use std::cmp::Reverse;

use super::DeviceCall;
use super::staging::Staging;
use crate::device::{CallQueue, Device, KeyMemory};
use crate::error::Result;
use crate::local::apply::{Applier, CallLimits, HostWork};
use crate::local::counters::CallTally;
use crate::local::merger::{Handling, Merger};
use crate::local::plan::{DeviceAccess, KeyGroup, PlannedOut};
use crate::local::table::{Slot, Value};
use crate::optim::OptimizerState;
use crate::tensor::{Array, Buffer, DType, LINE, Memory};

impl Applier {
    /// Moves keys in host memory to the devices of their tensors: each to the one with the fewest
    /// bytes of this store, larger keys first. Nothing moves while there is a codec or an updater:
    /// they work in host memory.
    pub(super) fn settle(
        &self,
        work: &DeviceCall<'_>,
        groups: &[KeyGroup],
        outs: &[PlannedOut],
    ) -> Result<()> {
        let Handling { codec, .. } = work.handling;
        let DeviceAccess { keeps_values, budget, .. } = &self.devices;
        if codec.is_some() || !keeps_values {
            return Ok(());
        }
        let is_here = |group: &&KeyGroup| {
            let by_updater = matches!(work.handling.merger_of(group.slot.key), Merger::Updater(_));
            group.slot.device().is_none() && group.slot.count > 0 && !by_updater
        };
        let mut moving = groups.iter().filter(is_here).collect::<Vec<_>>();
        moving.sort_by_key(|group| Reverse(group.slot.bytes()));
        for group in moving {
            let tensors = group.tensors(work.values, outs).map(|(lent, _)| lent.memory());
            let devices = tensors.filter_map(Memory::device);
            let fewest = |ordinal: &u16| (budget.held_on(*ordinal), *ordinal);
            let Some(home) = devices.min_by_key(fewest) else { continue };
            let Some(queue) = work.queues.iter().find(|it| it.device.ordinal == home) else {
                continue;
            };
            let mut value = self.lock(work.name, &group.slot, work.limits)?;
            if value.is_here() {
                let moved = self.move_value(&mut value, queue.device, work.limits);
                moved.map_err(self.naming(work, &group.slot))?;
                group.slot.note_device(home);
            }
        }
        Ok(())
    }

    /// A stream of the library on the device of a key that has moved there.
    pub(super) fn own_queue(
        &self,
        name: &'static str,
        slot: &Slot,
        limits: CallLimits<'_>,
    ) -> Result<CallQueue> {
        let value = self.lock(name, slot, limits)?;
        let device = value.device.as_ref().map(|memory| memory.device());
        let place = || format!("{name}: {}", self.names.label(slot.key));
        let device = device.ok_or_else(|| self.removed(name, slot))?;
        CallQueue::own(device).map_err(|error| error.at(place()))
    }

    /// Makes a call with tensors in host memory on keys that have moved to one device since the call
    /// was planned.
    pub(in crate::local::apply) fn apply_elsewhere(
        &self,
        work: &HostWork<'_>,
        groups: &[KeyGroup],
        tally: &mut CallTally,
    ) -> Result<()> {
        let &HostWork { call, handling, limits, values, outs, touched, .. } = work;
        let name = call.name();
        let queue = self.own_queue(name, &groups[0].slot, limits)?;
        let _scope = queue.begin()?;
        let queues = std::slice::from_ref(&queue);
        let work =
            DeviceCall { call, name, handling, limits, queue: &queue, queues, values, touched };
        self.check_codec(&work, groups)?;
        self.run_kept_keys(&work, groups, outs, tally)
    }

    /// Moves the value and the state of a key that no call sees yet to a device.
    pub(crate) fn move_to_device(
        &self,
        slot: &mut Slot,
        device: &'static Device,
        limits: CallLimits<'_>,
    ) -> Result<()> {
        self.move_value(slot.value.get_mut(), device, limits)?;
        slot.note_device(device.ordinal);
        Ok(())
    }

    /// Moves a value, which is locked, and its state; after an error it is as before.
    fn move_value(
        &self,
        value: &mut Value,
        device: &'static Device,
        limits: CallLimits<'_>,
    ) -> Result<()> {
        let queue = CallQueue::own(device)?;
        let _scope = queue.begin()?;
        let mut staging = Staging::new((&queue, &[]), self.team, limits);
        let state = value.state.as_ref();
        let (states, master) = state.map_or((&[][..], None), |state| state.arrays());
        let sizes = states.iter().map(|it| it.bytes().len()).collect::<Vec<_>>();
        let stored = value.buffer.bytes().len();
        let empty = Buffer::new(0)?;
        let budget = &self.devices.budget;
        let mut memory = KeyMemory::new(device, budget, stored, &queue.stream)?;
        memory.add_arrays(&sizes, master.map(|it| it.bytes().len()), &queue.stream)?;
        staging.reserve(memory.spans().map(|(_, bytes)| bytes.next_multiple_of(LINE)).sum())?;
        let buffers = std::iter::once(&value.buffer).chain(states).chain(master);
        for ((address, bytes), buffer) in memory.spans().zip(buffers) {
            staging.upload(Array::of(buffer, DType::U8), bytes, &[address])?;
        }
        staging.prepare()?;
        memory.marks.note_writer(&staging.queue()?);
        value.buffer = empty;
        value.state.iter_mut().for_each(OptimizerState::drop_arrays);
        value.give(memory);
        Ok(())
    }
}
