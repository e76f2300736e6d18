//! Weight of pushes (also called: number of samples): the sum of a round is divided by the weights of its pushes.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Local;
use super::apply::CallLimits;
use super::plan::Plan;
#[cfg(feature = "cuda")]
use crate::error::Error;
use crate::error::{Result, fail};
use crate::key::{Key, KeyRound};

/// The weights beside 0, from 2^-100 to 2^100: sums of them are numbers above 0 in f32 too.
pub(crate) const WEIGHTS: RangeInclusive<f64> =
    7.888_609_052_210_118e-31..=1.267_650_600_228_229_4e30;

/// Stands for pushes without a weight: a NaN.
const NONE: u64 = u64::MAX;

/// The weight of the pushes that are called from now on.
pub(crate) struct PushWeight(AtomicU64);

impl Default for PushWeight {
    fn default() -> Self {
        Self(AtomicU64::new(NONE))
    }
}

impl PushWeight {
    pub(crate) fn get(&self) -> Option<f64> {
        // Relaxed: the caller orders its calls on several threads.
        let bits = self.0.load(Ordering::Relaxed);
        (bits != NONE).then(|| f64::from_bits(bits))
    }

    fn set(&self, weight: Option<f64>) {
        self.0.store(weight.map_or(NONE, f64::to_bits), Ordering::Relaxed);
    }
}

/// Whether pushes may have a weight.
pub(crate) fn is_weight(weight: f64) -> bool {
    weight == 0.0 || WEIGHTS.contains(&weight)
}

impl Local {
    /// Refuses a number that is no weight.
    pub(crate) fn check_weight(weight: Option<f64>) -> Result<()> {
        match weight.filter(|weight| !is_weight(*weight)) {
            Some(weight) => Err(fail!(
                InvalidArgument,
                "set_weight: {weight} is no weight: it must be 0, or from 2^-100 to 2^100"
            )),
            None => Ok(()),
        }
    }

    /// Gives the pushes that are called from now on a weight, or none.
    pub(crate) fn set_weight(&self, weight: Option<f64>) {
        // Short calls know of no weight; no other thread decides about them meanwhile.
        let handling = self.handling.write();
        // A negative zero is 0.
        self.weight.set(weight.map(|weight| weight + 0.0));
        self.set_short_merge(&handling);
    }

    /// The last push of a key, after the operations that this thread has started.
    pub(crate) fn last_round(self: &Arc<Self>, key: Key) -> Result<KeyRound> {
        let call = "last_round";
        let slot = self.keys.table.get(key).ok_or_else(|| self.keys.scene(call).unknown(key))?;
        let patience = self.patience();
        let limits = CallLimits { patience: &patience, cancel: None };
        self.in_turn(call, &[key], &patience, || {
            let value = self.applier.lock_shared(call, &slot, limits)?;
            let contributors = value.merges.min(1);
            Ok(KeyRound { round: value.merges, contributors, total_weight: value.weight() })
        })
    }

    /// Gives a plan the weight of its pushes. Refuses values that cannot be divided, and a weight of 0 if the
    /// push `is_round` by itself.
    pub(crate) fn weigh(&self, call: &str, plan: &mut Plan, is_round: bool) -> Result<()> {
        let Some(weight) = self.weight.get().filter(|_| !plan.values.is_empty()) else {
            return Ok(());
        };
        for group in plan.groups.iter().filter(|group| !group.values.is_empty()) {
            let slot = &group.slot;
            let key = || self.applier.names.label(slot.key);
            if !slot.dtype.is_float() {
                return Err(fail!(
                    DtypeMismatch,
                    "{call}: {} is {}, and pushes have a weight: only floats are divided; push it \
                     without a weight (clear_weight)",
                    key(),
                    slot.text()
                ));
            }
            if is_round && weight == 0.0 {
                return Err(fail!(
                    InvalidArgument,
                    "{call}: {}: the weight of the push is 0, and no other worker's is added: there is no mean",
                    key()
                ));
            }
            #[cfg(feature = "cuda")]
            if !plan.queues.is_empty() {
                return Err(no_weight_on_a_gpu(call, &key()));
            }
        }
        plan.divisor = Some(weight);
        Ok(())
    }
}

/// The refusal of a push with a weight in GPU memory.
#[cfg(feature = "cuda")]
pub(crate) fn no_weight_on_a_gpu(call: &str, key: &str) -> Error {
    fail!(
        Unsupported,
        "{call}: {key}: pushes with a weight are not served on GPUs yet; push without a weight \
         (clear_weight) and divide the gradients, or use tensors and keys in host memory"
    )
}
