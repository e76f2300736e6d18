//! Clipping by the norm of all gradients of a call (also called: global norm). The gradients are measured before
//! the first key changes: the norm depends on the values of the call alone, so no key is locked meanwhile.

use super::{Applier, HostWork};
use crate::error::{Result, fail};
use crate::local::merger::{Clipping, NonFinite};
use crate::local::plan::KeyGroup;
use crate::log::{Level, log};
use crate::sys::DefaultFloats;

/// Added to a norm that gradients are divided by, as in PyTorch.
const EPS: f64 = 1e-6;

impl Applier {
    /// Measures the gradients of a call, and gives the factor that clips them. If the norm is not finite the
    /// groups have no values afterwards, or the call fails.
    pub(super) fn clip(
        &self,
        work: &HostWork<'_>,
        groups: &mut Vec<KeyGroup>,
        clipping: Clipping,
    ) -> Result<f64> {
        let HostWork { call, handling, limits, .. } = *work;
        let (mut squares, mut sums) = (None, Vec::new());
        let mut first_bad = None;
        let floats = DefaultFloats::enter();
        for group in groups.iter().filter(|group| !group.values.is_empty()) {
            let push = work.on(group);
            let rescale = handling.rescale_of(push.slot.key, push.slot.dtype);
            let Some(rescale) = rescale else { continue };
            let team = self.team_of(&push);
            let own = team
                .squares(push.slot, push.values, limits.cancel, &mut sums)
                .map_err(|error| self.at(&push, &error))?
                .ok_or_else(|| self.cancelled(push.call, &groups[0].slot))?;
            let sum = squares.unwrap_or(0.0) + rescale * rescale * own;
            squares = Some(sum);
            if !sum.is_finite() && first_bad.is_none() {
                first_bad = Some(push.slot.key);
            }
        }
        let Some(norm) = squares.map(f64::sqrt) else { return Ok(1.0) };
        let Some(key) = first_bad else {
            self.counters.note_norm(norm, false);
            return Ok((clipping.max_norm / (norm + EPS)).min(1.0));
        };
        drop(floats);
        let is_skipped = clipping.non_finite == NonFinite::Skip;
        self.counters.note_norm(norm, is_skipped);
        let (call, key) = (call.name(), self.names.label(key));
        if !is_skipped {
            return Err(fail!(
                InvalidArgument,
                "{call}: {key}: the gradient is not finite, so the norm of the call is {norm}; nothing has \
                 changed (set_clipping can skip such calls)"
            ));
        }
        log(Level::Debug, || format!("{call}: skipped: the gradient of {key} is not finite"));
        groups.retain(|group| !group.outs.is_empty());
        groups.iter_mut().for_each(|group| group.values = 0..0);
        Ok(1.0)
    }
}
