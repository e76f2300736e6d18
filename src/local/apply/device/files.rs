//! Arrays of keys on a device in host memory, for checkpoints, and back.

use std::sync::Arc;

use super::DeviceCall;
use super::staging::Staging;
use crate::device::{CallQueue, Device, KeyMemory, MemoryBudget};
use crate::error::Result;
use crate::local::apply::{Applier, CallLimits};
use crate::local::call::DataCall;
use crate::local::merger::Handling;
use crate::local::table::Slot;
use crate::optim::OptimizerState;
use crate::tensor::Buffer;

impl Applier {
    /// Copies of a key's value, the arrays of its state and its master; the key is locked.
    pub(crate) fn download(
        &self,
        name: &'static str,
        slot: &Slot,
        memory: &KeyMemory,
        limits: CallLimits<'_>,
    ) -> Result<Vec<Buffer>> {
        let queue = CallQueue::own(memory.device())?;
        let _scope = queue.begin()?;
        memory.marks.order_reader(&queue.stream)?;
        let mut staging = Staging::new(&queue, &[]);
        let mut blocks = Vec::new();
        for (address, bytes) in memory.spans() {
            let block = staging.block(bytes)?;
            staging.download(block, address, bytes);
            blocks.push((block, bytes));
        }
        staging.prepare()?;
        let mark = staging.queue()?;
        let handling = &Handling::PLAIN;
        let (call, touched) = (DataCall::Pull, 0);
        let (queue, values) = (&queue, &[]);
        let queues = std::slice::from_ref(queue);
        let work = DeviceCall { call, name, handling, limits, queue, queues, values, touched };
        self.wait_for(&work, slot, &mark, "nothing has changed")?;
        blocks.into_iter().map(|(block, bytes)| staging.copy(block, bytes)).collect()
    }
}

/// Moves the value and the state of a key that no call sees yet to a device.
pub(crate) fn move_to_device(
    slot: &mut Slot,
    device: &'static Device,
    budget: &Arc<MemoryBudget>,
) -> Result<()> {
    let queue = CallQueue::own(device)?;
    let _scope = queue.begin()?;
    let mut staging = Staging::new(&queue, &[]);
    let value = slot.value.get_mut();
    let state = value.state.as_ref();
    let (states, master) = state.map_or((&[][..], None), |state| state.arrays());
    let sizes = states.iter().map(|it| it.bytes().len()).collect::<Vec<_>>();
    let stored = value.buffer.bytes().len();
    let mut memory = KeyMemory::new(device, budget, stored, &queue.stream)?;
    memory.add_arrays(&sizes, master.map(|it| it.bytes().len()), &queue.stream)?;
    let buffers = std::iter::once(&value.buffer).chain(states).chain(master);
    for ((address, bytes), buffer) in memory.spans().zip(buffers) {
        let block = staging.block(bytes)?;
        staging.write(block, buffer.bytes());
        staging.upload(block, address, bytes);
    }
    staging.prepare()?;
    memory.marks.note_writer(&staging.queue()?);
    value.buffer = Buffer::new(0)?;
    value.state.iter_mut().for_each(OptimizerState::drop_arrays);
    value.device = Some(Box::new(memory));
    slot.device = Some(device.ordinal);
    Ok(())
}
