//! Numbers that follow from sums of squares: one of a whole key, or one of each row.

use super::measure::Squares;
use super::number::{MAX_STATES, Operand};
use super::rule::{Formula, KernelFormula};

/// A formula over sums of squares, in f64, whose type has been erased. Its sum is that of what was
/// measured, its value that of the value.
pub(crate) trait NormRule: KernelFormula {
    /// The number; the state is the formula's first.
    fn number(&self, squares: Squares, state: &mut f64) -> f64;
}

impl<F: Formula> NormRule for F {
    fn number(&self, squares: Squares, state: &mut f64) -> f64 {
        let mut states = [Operand([0.0]); MAX_STATES];
        states[0] = Operand([*state]);
        let number = self.step(Operand([squares.measured]), Operand([squares.value]), &mut states);
        *state = states[0].0[0];
        number.0[0]
    }
}
