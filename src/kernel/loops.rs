//! Loops over slices, compiled for every instruction set.

/// A loop over slices that the compiler vectorises, in each build with that build's width.
///
/// Each element may only use operations with one defined result: see the design. `run` and all its
/// callees must be inlined always, or they are compiled for the base instruction set.
pub(crate) trait Loop {
    type Output;

    fn run(self) -> Self::Output;
}
