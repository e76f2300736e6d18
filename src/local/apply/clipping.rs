//! Clipping by the norm of all gradients of a call (also called: global norm). The gradients are measured before
//! the first key changes: the norm depends on the values of the call alone, so no key is locked meanwhile.

use super::{Applier, HostWork};
use crate::error::{Result, fail};
use crate::key::Key;
use crate::local::merger::{Clipping, NonFinite};
use crate::local::plan::KeyGroup;
use crate::log::{Level, log};
use crate::sys::with_default_floats;

/// The norm of the gradients of a call, key by key.
#[derive(Default)]
pub(crate) struct GlobalNorm {
    squares: Option<f64>,
    /// The first key with which it is not finite.
    first_bad: Option<Key>,
}

impl GlobalNorm {
    /// Adds a key whose gradient is its sum times a number.
    pub(crate) fn add(&mut self, key: Key, rescale: f64, squares_of_sum: f64) {
        let sum = self.squares.unwrap_or(0.0) + rescale * rescale * squares_of_sum;
        self.squares = Some(sum);
        if !sum.is_finite() {
            self.first_bad.get_or_insert(key);
        }
    }
}

/// Makes a push whose norm is not finite a pull.
pub(crate) fn skip(groups: &mut Vec<KeyGroup>) {
    groups.retain(|group| !group.outs.is_empty());
    groups.iter_mut().for_each(|group| group.values = 0..0);
}

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
        let norm = with_default_floats(|| {
            let (mut norm, mut sums) = (GlobalNorm::default(), Vec::new());
            for group in groups.iter().filter(|group| !group.values.is_empty()) {
                let push = work.on(group);
                let rescale = handling.rescale_of(push.slot.key, push.slot.dtype);
                let Some(rescale) = rescale else { continue };
                let team = self.team_of(&push);
                let own = team
                    .squares(push.slot, push.values, limits.cancel, &mut sums)
                    .map_err(|error| self.at(&push, &error))?
                    .ok_or_else(|| self.cancelled(push.call, &groups[0].slot))?;
                norm.add(push.slot.key, rescale, own);
            }
            Ok(norm)
        })?;
        let factor = self.factor(call.name(), &norm, clipping)?;
        if factor.is_none() {
            skip(groups);
        }
        Ok(factor.unwrap_or(1.0))
    }

    /// What the gradients of a call are multiplied by; None for a call that is skipped.
    pub(crate) fn factor(
        &self,
        call: &str,
        norm: &GlobalNorm,
        clipping: Clipping,
    ) -> Result<Option<f64>> {
        let GlobalNorm { squares: Some(squares), first_bad } = norm else { return Ok(Some(1.0)) };
        let (norm, factor) = with_default_floats(|| {
            let norm = squares.sqrt();
            (norm, clipping.factor(norm))
        });
        let Some(key) = *first_bad else {
            self.counters.note_norm(norm, false);
            return Ok(Some(factor));
        };
        let is_skipped = clipping.non_finite == NonFinite::Skip;
        self.counters.note_norm(norm, is_skipped);
        let key = self.names.label(key);
        if !is_skipped {
            return Err(fail!(
                InvalidArgument,
                "{call}: {key}: the gradient is not finite, so the norm of the call is {norm}; nothing has \
                 changed (set_clipping can skip such calls)"
            ));
        }
        log(Level::Debug, || format!("{call}: skipped: the gradient of {key} is not finite"));
        Ok(None)
    }
}
