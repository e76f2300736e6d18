//! Numbers that follow from sums of squares: one of a whole key, or one of each row.

use super::measure::Squares;
use super::number::Operand;
#[cfg(test)]
use super::record::{Recording, Use};
use super::rule::{Formula, MAX_STATES};

/// A formula over sums of squares, in f64, whose type has been erased. Its sum is that of what was
/// measured, its value that of the value.
pub(crate) trait NormRule: Send + Sync {
    /// The number; the state is the formula's first.
    fn number(&self, squares: Squares, state: &mut f64) -> f64;

    /// The name of its GPU kernels, without the type of the elements.
    #[cfg(feature = "cuda")]
    fn name(&self) -> &'static str;

    /// Appends the formula's numbers, as its GPU kernels take them.
    #[cfg(feature = "cuda")]
    fn constants(&self, constants: &mut Vec<f64>);

    /// The operations of the formula.
    #[cfg(test)]
    fn record(&self) -> Recording;
}

impl<F: Formula> NormRule for F {
    fn number(&self, squares: Squares, state: &mut f64) -> f64 {
        let mut states = [Operand([0.0]); MAX_STATES];
        states[0] = Operand([*state]);
        let number = self.step(Operand([squares.measured]), Operand([squares.value]), &mut states);
        *state = states[0].0[0];
        number.0[0]
    }

    #[cfg(feature = "cuda")]
    fn name(&self) -> &'static str {
        F::NAME
    }

    #[cfg(feature = "cuda")]
    fn constants(&self, constants: &mut Vec<f64>) {
        super::constants::note(*self, constants);
    }

    #[cfg(test)]
    fn record(&self) -> Recording {
        Recording::of(*self, Use::Number)
    }
}
