//! Loops over slices, compiled for every instruction set; and float types of 16 bits in slices.

use super::Isa;
#[cfg(target_arch = "x86_64")]
use super::x86;
use crate::tensor::DType;

/// A loop over slices that the compiler makes vectors of, in each build as wide as it has them.
///
/// Element by element it may only use what has one defined result: see the design. `run` and all
/// that it calls must be inlined always, or they are compiled for the base instruction set.
pub(crate) trait Loop {
    type Output;

    fn run(self) -> Self::Output;
}

impl Isa {
    /// Runs a loop in the build for this instruction set.
    pub(crate) fn run<L: Loop>(self, work: L) -> L::Output {
        match self {
            // SAFETY: the instruction set was found available when chosen.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { x86::avx2::run(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { x86::avx512::run(work) },
            _ => work.run(),
        }
    }

    /// Rounds numbers to f16 or bf16, nearest even, as bits.
    pub(crate) fn narrow(self, half: DType, bits: &mut [u16], numbers: &[f32]) {
        assert!(half.is_half() && bits.len() == numbers.len(), "one for each number");
        let (to, from) = (bits.as_mut_ptr().cast(), numbers.as_ptr().cast());
        // SAFETY: both have so many elements, and a unique borrow overlaps nothing.
        unsafe { self.convert((half, to), (DType::F32, from), numbers.len()) }
    }

    /// The numbers that bits of f16 or bf16 stand for.
    pub(crate) fn widen(self, half: DType, numbers: &mut [f32], bits: &[u16]) {
        assert!(half.is_half() && bits.len() == numbers.len(), "one for each number");
        let (to, from) = (numbers.as_mut_ptr().cast(), bits.as_ptr().cast());
        // SAFETY: both have so many elements, and a unique borrow overlaps nothing.
        unsafe { self.convert((DType::F32, to), (half, from), numbers.len()) }
    }
}
