//! Pushes to keys on a device under an updater, which gets copies in host memory, or the arrays on the
//! device.

use std::sync::Arc;

use super::staging::Staging;
use super::{DeviceCall, EMPTY, outs_of};
use crate::device::{CallQueue, Mark, Span, takes_waits};
use crate::error::{Error, Result};
use crate::local::apply::{Applier, KeyPush};
use crate::local::counters::CallTally;
use crate::local::plan::{KeyGroup, PlannedOut};
use crate::local::table::{Slot, Value};
use crate::local::updater::Updater;
use crate::tensor::{Array, Buffer, DType, Tensor, TensorMut};

impl Applier {
    /// Pushes to keys one by one, and fills the outs of each behind its updater.
    pub(super) fn run_updated_keys(
        &self,
        work: &DeviceCall<'_>,
        groups: &[KeyGroup],
        outs: &[PlannedOut],
        updater: &Updater,
        tally: &mut CallTally,
    ) -> Result<()> {
        for group in groups {
            if work.limits.is_cancelled() {
                return Err(self.cancelled(work.name, &group.slot));
            }
            let mut locked = vec![self.lock(work.name, &group.slot, work.limits)?];
            if !group.values.is_empty() && group.slot.count > 0 {
                let push = KeyPush {
                    call: work.name,
                    slot: &group.slot,
                    values: &work.values[group.values.clone()],
                    outs: outs_of(group, outs),
                    limits: work.limits,
                    touched: work.touched,
                    digester: None,
                    divisor: None,
                    scale: 1.0,
                    keeping: None,
                };
                tally.add(&CallTally::of(push.values.len(), 0, group.slot.bytes()));
                tally.updater_calls += 1;
                if self.devices.settings.updates_there {
                    self.update_there(work, &push, updater, &mut locked[0])?;
                } else {
                    self.update_copy(work, &push, updater, &mut locked[0])?;
                }
                locked[0].merges += 1;
            }
            let slot = Arc::clone(&group.slot);
            let pull = [KeyGroup { slot, values: 0..0, outs: group.outs.clone() }];
            self.run_locked(work, &pull, outs, locked, tally)?;
        }
        Ok(())
    }

    /// Runs the updater on copies of the sum and the value, and copies the value back: also after a
    /// failure, whose changes stay.
    fn update_copy(
        &self,
        work: &DeviceCall<'_>,
        push: &KeyPush<'_>,
        updater: &Updater,
        value: &mut Value,
    ) -> Result<()> {
        let &KeyPush { slot, values, .. } = push;
        let (bytes, stream) = (slot.bytes(), &work.queue.stream);
        let memory = value.device.as_mut().expect(EMPTY);
        memory.marks.order_writer(stream)?;
        let mut staging = self.staging(work);
        let at = |error: Error| self.at(push, &error);
        let reserved = staging.reserve(Staging::bytes_here(slot, values));
        let sum = reserved.and_then(|()| staging.sum(slot, values)).map_err(at)?;
        let merged = staging.download(sum, bytes);
        let stored = staging.download(memory.value(), bytes);
        staging.prepare().map_err(at)?;
        let mut back = self.staging(work);
        back.rest = "keys before it are applied, it and those after it are not";
        let target = Self::prepare_target(slot, memory.value(), &mut back).map_err(at)?;
        let mark = staging.queue()?;
        // Behind a time-out the copies may still run.
        memory.marks.note_reader(&mark);
        let wait = |mark: &Mark| self.wait_for(work, slot, mark, back.rest);
        let mut own = None;
        let fetched = staging
            .fetch_whole(merged, (bytes, slot.dtype), &mut own, &wait)
            .and_then(|input| Ok((input, staging.fetch_buffer(stored, bytes, &wait)?)));
        if fetched.is_err()
            && let Ok(mark) = work.queue.mark()
        {
            memory.marks.note_reader(&mark);
        }
        let (input, before) = fetched?;
        value.buffer = before;
        let result = self.update(push, updater, input.data(), value, None);
        let changed = std::mem::replace(&mut value.buffer, Buffer::new(0)?);
        back.upload(Array::of(&changed, DType::U8), bytes, &[target]).map_err(at)?;
        let memory = value.device.as_mut().expect(EMPTY);
        memory.marks.note_writer(&back.queue()?);
        result
    }

    /// Prepares to upload a value: gives the address to which it is copied. If that takes waits, which
    /// may end early, it is memory of the call, which becomes the value when all has arrived.
    fn prepare_target(slot: &Slot, value: u64, back: &mut Staging<'_>) -> Result<u64> {
        let bytes = slot.bytes();
        let mut target = value;
        if takes_waits(bytes) {
            target = back.span(bytes)?;
            back.jobs.sum(slot.dtype, slot.count, &[target], &[value])?;
        }
        back.reserve(bytes)?;
        back.prepare()?;
        Ok(target)
    }

    /// Runs the updater on the sum and the value on the device. Its work belongs on the stream of the
    /// call, which this thread has named meanwhile.
    fn update_there(
        &self,
        work: &DeviceCall<'_>,
        push: &KeyPush<'_>,
        updater: &Updater,
        value: &mut Value,
    ) -> Result<()> {
        let &KeyPush { slot, values, .. } = push;
        let (CallQueue { device, stream, .. }, bytes) = (work.queue, slot.bytes());
        let memory = value.device.as_mut().expect(EMPTY);
        memory.marks.order_writer(stream)?;
        let stored = memory.value();
        let merged = Span::allocate(device, bytes, stream)?;
        let undo = self.undo.then(|| Span::allocate(device, bytes, stream)).transpose()?;
        let mut staging = self.staging(work);
        staging.reserve(Staging::bytes_here(slot, values))?;
        let inputs = values.iter().map(|it| staging.value(slot, it));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        staging.jobs.sum(slot.dtype, slot.count, &inputs, &[merged.address()])?;
        if let Some(undo) = &undo {
            staging.jobs.sum(slot.dtype, slot.count, &[stored], &[undo.address()])?;
        }
        staging.prepare()?;
        let mut back = self.staging(work);
        if let Some(undo) = &undo {
            back.jobs.sum(slot.dtype, slot.count, &[undo.address()], &[stored])?;
            back.prepare()?;
        }
        memory.marks.note_writer(&staging.queue()?);
        let result = {
            let _named = stream.name_for_scope();
            let place = |address| usize::try_from(address).unwrap_or(0);
            let ordinal = device.ordinal;
            let input =
                Tensor::on_device(place(merged.address()), slot.dtype, ordinal, &slot.shape);
            let mut target = TensorMut::on_device(place(stored), slot.dtype, ordinal, &slot.shape);
            updater.call(self.serial, slot.key, &input, &mut target)
        };
        // Behind a failure the updater may have queued work too.
        memory.marks.note_writer(&work.queue.mark()?);
        if result.is_err() && undo.is_some() {
            memory.marks.note_writer(&back.queue()?);
        }
        merged.release(stream);
        undo.into_iter().for_each(|span| span.release(stream));
        result.map_err(|error| self.at_updater(push, &error))
    }
}
