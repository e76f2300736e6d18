//! What a pass computes of the registers that it loads and stores, while it waits for memory: digests.

use std::ops::Range;

use crate::kernel::number::MAX_STATES;

/// Maximum number of inputs that a pass digests.
pub(crate) const MOST_DIGESTED: usize = 4;

/// What a pass digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DigestScope {
    /// The stored value.
    Value,
    /// The stored value, the states of the rule, and all inputs or none. Inputs that are digested are no outs.
    All { inputs: bool },
}

/// Digests (CRC-64) of the arrays of a pass, which continues them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PassDigests {
    pub(crate) value: u64,
    /// The last place is that of a master behind the states, which passes leave out.
    pub(crate) states: [u64; MAX_STATES + 1],
    pub(crate) inputs: [u64; MOST_DIGESTED],
}

/// Arrays of a pass that can be observed; their elements have one size.
#[derive(Clone, Copy)]
pub(in crate::kernel) struct Observed<'a> {
    pub(in crate::kernel) inputs: &'a [*const u8],
    pub(in crate::kernel) value: *const u8,
    pub(in crate::kernel) states: &'a [*mut u8],
}

/// Observes the elements of arrays, from the first to the last.
pub(in crate::kernel) trait Observer {
    /// Its state during a loop.
    type Registers;

    /// Whether it observes inputs and states.
    const ALL: bool;

    /// # Safety
    /// The instruction set is there.
    unsafe fn begin(&self) -> Self::Registers;

    /// # Safety
    /// The instruction set is there.
    unsafe fn end(&mut self, registers: Self::Registers);

    /// A range of bytes has been passed by another loop.
    ///
    /// # Safety
    /// The arrays have these bytes.
    unsafe fn passed(&mut self, arrays: Observed<'_>, range: Range<usize>);
}

/// Observes registers of this type, in a loop.
pub(in crate::kernel) trait Observes<R>: Observer {
    /// # Safety
    /// The instruction set is there.
    unsafe fn value(registers: &mut Self::Registers, register: R);

    /// # Safety
    /// The instruction set is there.
    #[inline(always)]
    unsafe fn input(_registers: &mut Self::Registers, _at: usize, _register: R) {}

    /// # Safety
    /// The instruction set is there.
    #[inline(always)]
    unsafe fn state(_registers: &mut Self::Registers, _at: usize, _register: R) {}
}

/// Observes nothing.
pub(in crate::kernel) struct Unobserved;

impl Observer for Unobserved {
    type Registers = ();

    const ALL: bool = false;

    #[inline(always)]
    unsafe fn begin(&self) {}

    #[inline(always)]
    unsafe fn end(&mut self, (): ()) {}

    #[inline(always)]
    unsafe fn passed(&mut self, _: Observed<'_>, _: Range<usize>) {}
}

impl<R> Observes<R> for Unobserved {
    #[inline(always)]
    unsafe fn value((): &mut (), _: R) {}
}
