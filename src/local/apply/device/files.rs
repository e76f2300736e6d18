//! Copies of the arrays of keys on a device in host memory, for checkpoints.

use super::DeviceCall;
use super::staging::Staging;
use crate::device::{CallQueue, KeyMemory, Mark};
use crate::error::Result;
use crate::local::apply::{Applier, CallLimits};
use crate::local::call::DataCall;
use crate::local::merger::Handling;
use crate::local::table::Slot;
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
        let mut staging = Staging::new((&queue, &[]), self.team, limits);
        let arrays = memory.spans().map(|(from, bytes)| (staging.download(from, bytes), bytes));
        let arrays = arrays.collect::<Vec<_>>();
        staging.prepare()?;
        staging.queue()?;
        let handling = &Handling::PLAIN;
        let (call, touched) = (DataCall::Pull, 0);
        let (queue, values) = (&queue, &[]);
        let queues = std::slice::from_ref(queue);
        let work = DeviceCall { call, name, handling, limits, queue, queues, values, touched };
        let wait = |mark: &Mark| self.wait_for(&work, slot, mark, "nothing has changed");
        arrays.into_iter().map(|(at, bytes)| staging.fetch_buffer(at, bytes, &wait)).collect()
    }
}
