//! Loops over slices, compiled for every instruction set.

/// A loop over slices that the compiler makes vectors of, in each build as wide as it has them.
///
/// Element by element it may only use what has one defined result: see the design. `run` and all
/// that it calls must be inlined always, or they are compiled for the base instruction set.
pub(crate) trait Loop {
    type Output;

    fn run(self) -> Self::Output;
}
