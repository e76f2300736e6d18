//! Pushes whose values go through a codec first.

use super::apply::{Applier, Push};
use super::merger::Merger;
use super::table::Value;
use crate::codec::{Codec, Residuals};
use crate::error::Result;
use crate::tensor::{Array, Buffer, Lent};

impl Applier {
    /// Merges what arrives of the values of a locked key.
    pub(super) fn push_compressed(
        &self,
        push: &Push<'_>,
        codec: &Codec,
        merger: &Merger,
        value: &mut Value,
    ) -> Result<bool> {
        let sum = self.borrow_buffer(push.slot).map_err(|error| self.at(push, &error))?;
        // Apart from the value, which is merged into meanwhile.
        let mut kept = value.residuals.take();
        let result = self.push_sum(push, codec, merger, (value, &mut kept), &sum);
        value.residuals = kept;
        self.buffers.lock().push(sum);
        result
    }

    fn push_sum(
        &self,
        push: &Push<'_>,
        codec: &Codec,
        merger: &Merger,
        (value, kept): (&mut Value, &mut Option<Box<Residuals>>),
        sum: &Buffer,
    ) -> Result<bool> {
        let (slot, values) = (push.slot, push.values);
        let stored = value.buffer.as_ptr();
        let mut compression = Residuals::prepare(codec, kept, values.len(), slot.count, stored)
            .and_then(|residuals| self.team.compression(codec, slot, values, residuals, sum))
            .map_err(|error| self.at(push, &error))?;
        let arriving = [Lent::of(Array::of(sum, slot.dtype))];
        let push = Push { values: &arriving, ..*push };
        self.merge(&push, merger, value, Some(&mut compression))
    }
}
