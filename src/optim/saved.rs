//! Optimizers and states in the form of a checkpoint.

use super::method::RuleScope;
use super::state::{OptimizerState, Stored};
use super::{Multipliers, Optimizer};
use crate::error::Result;
use crate::kernel::MAX_STATES;
use crate::key::Key;
use crate::tensor::Buffer;

/// The arrays of a key's state under an optimizer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KeptArrays {
    pub(crate) states: usize,
    pub(crate) has_master: bool,
}

impl Optimizer {
    /// The options that have been set, as [`Optimizer::new`] takes them.
    pub(crate) fn options_text(&self) -> String {
        self.options.text()
    }

    /// The multipliers of single keys that are not 1, as [`Optimizer::with_key`] takes them.
    pub(crate) fn multipliers(&self) -> Vec<(Key, &'static str, f64)> {
        let both = |(&key, &Multipliers { lr, wd }): (&Key, &Multipliers)| {
            [(key, "lr_mult", lr), (key, "wd_mult", wd)]
        };
        #[allow(clippy::float_cmp, reason = "exactly what a key has without one")]
        self.multipliers.iter().flat_map(both).filter(|(_, _, value)| *value != 1.0).collect()
    }

    /// The shape of a state array of a key.
    pub(crate) fn state_shape(&self, shape: &[i64], rows: usize) -> Vec<i64> {
        match self.method.scope() {
            RuleScope::Row => vec![rows.cast_signed() as i64],
            RuleScope::Element | RuleScope::Key => shape.to_vec(),
        }
    }

    /// The arrays of a state of this optimizer; None if the state is another optimizer's.
    pub(crate) fn kept(&self, state: Option<&OptimizerState>) -> Option<KeptArrays> {
        let state = state.filter(|state| state.belongs_to(self.serial))?;
        let (states, master) = state.arrays();
        Some(KeptArrays { states: states.len(), has_master: master.is_some() })
    }

    /// Makes the state of a key. `fill` is called with each array: the states, then the master.
    ///
    /// # Errors
    /// Those of `fill`; `OutOfMemory`.
    pub(crate) fn restore(
        &self,
        stored: &Stored,
        kept: KeptArrays,
        mut fill: impl FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<OptimizerState> {
        let mut state = OptimizerState::new(self.serial);
        for _ in 0..kept.states.min(MAX_STATES) {
            fill(state.add(self.method.scope(), stored, false)?.bytes_mut())?;
        }
        if kept.has_master {
            fill(state.add_master(stored)?.bytes_mut())?;
        }
        Ok(state)
    }
}

impl OptimizerState {
    /// The arrays, in the order in which [`Optimizer::restore`] fills them.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let (states, master) = self.arrays();
        states.iter().chain(master)
    }

    /// Number of pushes of the key under its optimizer, and the number that the rule carries.
    pub(crate) fn progress(&self) -> (u64, f64) {
        (self.count, self.carried)
    }

    /// Restores the result of [`OptimizerState::progress`].
    pub(crate) fn go_on_from(&mut self, updates: u64, carried: f64) {
        (self.count, self.carried) = (updates, carried);
    }
}
