//! Compressed pushes: values pass through a codec before they are merged.

use std::sync::Arc;

use super::Local;
use super::apply::{Applier, KeyPush};
use super::merge::Compression;
use super::merger::Merger;
use super::table::Value;
use crate::codec::{self, Codec, Residuals};
use crate::error::Result;
use crate::tensor::{Array, Buffer, Lent};

impl Local {
    /// Compresses by a codec from now on.
    pub(crate) fn set_compression(&self, name: &str, params: &str) -> Result<()> {
        let call = "set_compression";
        let codec = Codec::new(name, params).map_err(|error| error.at(call))?.map(Arc::new);
        self.change_handling(
            call,
            |handling| handling.codec = codec,
            |handling| {
                let slots = self.keys.table.slots();
                self.check_keys(call, handling, &slots)?;
                // Frees the residuals of the previous codec, while no thread can push by the new
                // one. A key in use frees its residuals at its next push.
                for slot in &slots {
                    if let Some(mut value) = slot.value.try_write(&self.applier.released) {
                        value.residuals = None;
                    }
                }
                Ok(())
            },
        )
    }

    /// The name and the options of the codec.
    pub(crate) fn compression(&self) -> (&'static str, String) {
        let handling = self.handling.read();
        handling
            .codec
            .as_ref()
            .map_or((codec::NONE, String::new()), |codec| (codec.name(), codec.params()))
    }
}

impl Applier {
    /// Merges the decoded values of a locked key.
    pub(crate) fn push_compressed(
        &self,
        push: &KeyPush<'_>,
        codec: &Codec,
        merger: &Merger,
        value: &mut Value,
    ) -> Result<bool> {
        // Apart from the value, which is the target of the merge.
        let mut kept = value.residuals.take();
        let result = if push.outs.is_empty() && matches!(merger, Merger::Assign) {
            let stored = &value.buffer;
            self.compression(push, codec, &mut kept, stored, stored).map(|mut compression| {
                self.team.compress(push.slot, &mut compression);
                true
            })
        } else {
            self.merge_compressed(push, codec, merger, value, &mut kept)
        };
        value.residuals = kept;
        result
    }

    /// Sums the decoded values, and merges the sum as the only value.
    fn merge_compressed(
        &self,
        push: &KeyPush<'_>,
        codec: &Codec,
        merger: &Merger,
        value: &mut Value,
        kept: &mut Option<Box<Residuals>>,
    ) -> Result<bool> {
        let sum = self.borrow_buffer(push.slot).map_err(|error| self.at(push, &error))?;
        let arriving = [Lent::of(Array::of(&sum, push.slot.dtype))];
        let compression = self.compression(push, codec, kept, &value.buffer, &sum);
        let result = compression.and_then(|mut compression| {
            // The compression divides.
            let push = KeyPush { values: &arriving, divisor: None, ..*push };
            self.merge(&push, merger, value, Some(&mut compression))
        });
        self.buffers.lock().push(sum);
        result
    }

    /// Prepares the sum of the decoded values, whose target is `sum`.
    fn compression<'a>(
        &self,
        push: &KeyPush<'a>,
        codec: &'a Codec,
        kept: &'a mut Option<Box<Residuals>>,
        stored: &Buffer,
        sum: &Buffer,
    ) -> Result<Compression<'a>> {
        let (slot, values) = (push.slot, push.values);
        Residuals::prepare(codec, kept, values.len(), slot.count, stored.as_ptr())
            .and_then(|residuals| {
                let team = self.team.divided_by(push.divisor);
                team.compression(codec, slot, values, residuals, sum)
            })
            .map_err(|error| self.at(push, &error))
    }
}
