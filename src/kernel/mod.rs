//! Arithmetic over plain arrays: sums in the fixed order, and conversions of float types. Also
//! called: vector (SIMD) kernels with run-time dispatch.
//!
//! One source is built once per instruction set and chosen at run time; every build
//! gives the same bits, because each element has one fixed order of operations.
#![allow(
    clippy::inline_always,
    reason = "one source is built inside the entry point of each instruction set"
)]
#![allow(
    clippy::cast_ptr_alignment,
    reason = "tensors are checked for alignment when they are made"
)]
#![allow(unsafe_code, reason = "raw arrays of dtypes known at run time only, and SIMD builds")]

#[cfg(feature = "cuda")]
mod constants;
mod convert;
mod divided;
mod half;
#[cfg(test)]
pub(crate) mod interpreted;
mod lanes;
mod loops;
mod measure;
mod norm;
mod number;
mod portable;
#[cfg(test)]
mod record;
mod rule;
mod sum;
mod widened;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use loops::Loop;
pub(crate) use measure::{Measure, Measuring, Meter, PartNumbers, Squares};
pub(crate) use norm::NormRule;
pub(crate) use number::{MAX_STATES, Number};
#[cfg(test)]
pub(crate) use record::{Recording, Use};
pub(crate) use rule::{Formula, KernelFormula, Rule, RuleTarget};
pub(crate) use sum::{
    DigestScope, Extreme, MOST_DIGESTED, PartialSums, Pass, PassDigests, Position, SumOrder,
    Traffic, extreme,
};

use crate::error::{Result, fail};
use crate::tensor::{Array, DType};

/// Size from which copies use our own kernels. From 2 KiB on the C library may copy with `rep
/// movsb`. It takes several times as long on Zen 4 when source and destination lie closely one
/// behind the other within their pages (glibc bug 30994).
const OWN_COPY_BYTES: usize = 1024;

/// Elements measured, or widened for a rule, at a time. The order of sums of squares depends on it.
pub(crate) const TILE: usize = 512;

/// Elements of a block of [`Isa::squares_planned`]. The order of sums of squares depends on it.
pub(crate) const SQUARES_BLOCK: usize = 2048;

/// An instruction set that the kernels are built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    Scalar,
    Avx2,
    Avx512,
    Neon,
}

impl Isa {
    /// Runs a loop in the build for this instruction set.
    pub(crate) fn run<L: Loop>(self, work: L) -> L::Output {
        match self {
            // SAFETY: the instruction set was found available when chosen.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { x86::avx2::run(work) },
            // SAFETY: the instruction set was found available when chosen.
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

    const ALL: [Isa; 4] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        }
    }

    /// Whether this processor and this build have it.
    pub(crate) fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::has_avx512(),
            // Part of the base instruction set there, so the plain build uses it.
            Isa::Neon => cfg!(target_arch = "aarch64"),
            #[allow(unreachable_patterns, reason = "reached on other architectures")]
            _ => false,
        }
    }

    /// The build of this name; `auto` is the widest available one.
    pub(crate) fn choose(name: &str) -> Result<Self> {
        if name == "auto" {
            let best = Self::ALL.iter().rev().copied().find(|isa| isa.is_available());
            return Ok(best.unwrap_or(Isa::Scalar));
        }
        match Self::ALL.iter().copied().find(|isa| isa.name() == name) {
            Some(isa) if isa.is_available() => Ok(isa),
            Some(_) => Err(fail!(Unsupported, "isa {name} is not available on this processor")),
            None => Err(fail!(Option, "isa is {name:?}; use auto, scalar, avx2, avx512 or neon")),
        }
    }

    /// Writes the sum of a pass's inputs, in the order of the pass, to each of its outs.
    ///
    /// No zero is added to it; one input is copied bit for bit. f16 and bf16 are added in
    /// f32 and rounded once, integers wrap. With a divisor the sum of floats is divided by it.
    ///
    /// # Safety
    /// Every out and every input is an array of `count` aligned elements; an out may be exactly an
    /// input and overlaps nothing else; there is at least one of both.
    pub(crate) unsafe fn sum(self, pass: &Pass<'_>) {
        // No pointer arithmetic on the addresses of empty arrays.
        if pass.count == 0 {
            return;
        }
        // SAFETY: the caller's promise; the instruction set was found available when chosen.
        unsafe {
            if let Some(divisor) = pass.divisor {
                return divided::sum(self, pass, divisor);
            }
            let bytes = pass.count * pass.dtype.size();
            if let &[only] = pass.inputs
                && bytes < OWN_COPY_BYTES
            {
                // `copy`, because an out may be the input.
                pass.outs.iter().for_each(|out| out.copy_from(only, bytes));
                return;
            }
            if matches!(pass.order, SumOrder::Tree)
                && pass.dtype.is_float()
                && !pass.order.is_in_registers(pass.inputs.len())
            {
                let joins = sum::dense_joins(pass.inputs.len());
                return self.sum(&Pass { order: SumOrder::Joins(&joins), ..*pass });
            }
            match self {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => x86::avx2::sum(pass),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => x86::avx512::sum(pass),
                _ => sum::sum::<portable::Portable>(pass),
            }
        }
    }

    /// See [`Rule::merge`].
    ///
    /// # Safety
    /// As there.
    unsafe fn merge<F: Formula>(self, formula: F, pass: &Pass<'_>, target: &RuleTarget) {
        // SAFETY: the caller's promise; the instruction set was found available when chosen.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => x86::avx2::merge(formula, pass, target),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => x86::avx512::merge(formula, pass, target),
                _ => rule::merge::<portable::Portable, F>(formula, pass, target),
            }
        }
    }

    /// [`Isa::sum`] for an operation whose plan guarantees its safety conditions.
    pub(crate) fn sum_planned(self, pass: &Pass<'_>) {
        // SAFETY: the plan has checked the arrays and their overlaps.
        unsafe { self.sum(pass) }
    }

    /// [`Rule::merge`] for an operation whose plan guarantees its safety conditions.
    pub(crate) fn merge_planned(self, rule: &dyn Rule, pass: &Pass<'_>, target: &RuleTarget) {
        // SAFETY: the plan has checked the arrays and their overlaps, the optimizer the dtype; the
        // target is our own memory.
        unsafe { rule.merge(self, pass, target) }
    }

    /// [`Rule::merge_digested`] for an operation whose plan guarantees its safety conditions.
    pub(crate) fn merge_digested_planned(
        self,
        rule: &dyn Rule,
        pass: &Pass<'_>,
        target: &RuleTarget,
        digests: (&mut PassDigests, DigestScope),
    ) {
        assert!(rule.digests(self, pass, digests.1) && !target.master, "loops for this pass");
        // SAFETY: as for `merge_planned`.
        unsafe { rule.merge_digested(pass, target, digests) }
    }

    /// Whether [`Isa::sum_digested_planned`] has loops for passes of this kind.
    pub(crate) fn digests_sum(self, pass: &Pass<'_>, scope: DigestScope) -> bool {
        let is_copy = pass.inputs.len() == 1 && scope != DigestScope::All { inputs: true };
        let is_sum = pass.dtype == DType::F32 && self.digests_linear(pass, scope);
        is_sum || is_copy && pass.divisor.is_none() && self.digests_registers()
    }

    /// [`Isa::sum_planned`], which continues the digests of a scope.
    pub(crate) fn sum_digested_planned(
        self,
        pass: &Pass<'_>,
        digests: (&mut PassDigests, DigestScope),
    ) {
        assert!(self.digests_sum(pass, digests.1), "loops for this pass");
        #[cfg(target_arch = "x86_64")]
        if pass.count > 0 {
            // SAFETY: as for `sum_planned`; the instructions are there.
            unsafe { x86::digested::sum(pass, digests) }
        }
    }

    /// Whether passes can digest what is in registers.
    fn digests_registers(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self == Isa::Avx512 && x86::digested::is_available();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// The same for inputs of a pass that are added up left to right.
    fn digests_linear(self, pass: &Pass<'_>, scope: DigestScope) -> bool {
        let inputs = pass.inputs.len();
        let are_few = inputs <= MOST_DIGESTED || scope != DigestScope::All { inputs: true };
        are_few
            && pass.order.is_linear(inputs)
            && pass.divisor.is_none()
            && self.digests_registers()
    }

    /// [`Meter::measure`] for an operation whose plan guarantees its safety conditions.
    pub(crate) fn measure_planned(
        self,
        meter: &dyn Meter,
        pass: &Pass<'_>,
        target: &RuleTarget,
        part: usize,
        take: &mut dyn FnMut(Squares),
    ) {
        // SAFETY: as for `merge_planned`.
        unsafe { meter.measure(self, pass, target, part, take) }
    }

    /// [`measure::squares_of_sum`] for an operation whose plan guarantees its safety conditions.
    pub(crate) fn squares_planned(self, pass: &Pass<'_>) -> f64 {
        // SAFETY: as for `sum_planned`; the caller measures floats alone.
        unsafe { measure::squares_of_sum(self, pass) }
    }

    /// [`measure::merge_parts`] for an operation whose plan guarantees its safety conditions.
    pub(crate) fn merge_parts_planned(
        self,
        rule: &dyn Rule,
        pass: &Pass<'_>,
        target: &RuleTarget,
        parts: PartNumbers<'_>,
    ) {
        // SAFETY: as for `merge_planned`.
        unsafe { measure::merge_parts(rule, self, pass, target, parts) }
    }

    /// [`Isa::convert`] between arrays.
    pub(crate) fn convert_array(self, dst: &Array, src: &Array, count: usize) {
        // SAFETY: the plan guarantees the ranges, that the dtypes are equal or float, and that no
        // out overlaps what is read.
        unsafe {
            self.convert((dst.dtype(), dst.start_mut()), (src.dtype(), src.start()), count);
        }
    }

    /// Writes `count` elements to `dst`, converted from one float dtype to another in one rounding
    /// to nearest even; equal dtypes are copied bit for bit.
    ///
    /// # Safety
    /// `src` and `dst` are arrays of `count` aligned elements of their dtypes that do not overlap;
    /// the dtypes are equal or both float.
    pub(crate) unsafe fn convert(
        self,
        (to, dst): (DType, *mut u8),
        (from, src): (DType, *const u8),
        count: usize,
    ) {
        if count == 0 {
            return;
        }
        if to == from {
            let (outs, inputs, traffic) = (&[dst][..], &[src][..], Traffic::Cached);
            let (order, divisor) = (SumOrder::Linear, None);
            // SAFETY: the caller's promise.
            unsafe { self.sum(&Pass { dtype: to, outs, inputs, count, traffic, order, divisor }) };
            return;
        }
        // SAFETY: the caller's promise; the instruction set was found available when chosen.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => x86::avx2::convert((to, dst), (from, src), count),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => x86::avx512::convert((to, dst), (from, src), count),
                _ => convert::convert::<half::PortableHalf>((to, dst), (from, src), count),
            }
        }
    }
}

impl<F: Formula> Rule for F {
    unsafe fn merge(&self, isa: Isa, pass: &Pass<'_>, target: &RuleTarget) {
        const { assert!(rule::is_kernel_name(F::NAME), "a formula's name is no name of a kernel") };
        // No pointer arithmetic on the addresses of empty arrays.
        if pass.count == 0 {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            if !F::FUSED && pass.dtype.is_half() {
                widened::merge(self, isa, pass, target, !F::MEASURES);
            } else if rule::has_loops(pass) {
                isa.merge(*self, pass, target);
            } else {
                rule::merge_summed(self, isa, pass, target);
            }
        }
    }

    fn digests(&self, isa: Isa, pass: &Pass<'_>, scope: DigestScope) -> bool {
        let has_loops = F::FUSED && !F::MEASURES && pass.dtype == DType::F32;
        has_loops && isa.digests_linear(pass, scope)
    }

    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "no such loops"))]
    unsafe fn merge_digested(
        &self,
        pass: &Pass<'_>,
        target: &RuleTarget,
        digests: (&mut PassDigests, DigestScope),
    ) {
        #[cfg(target_arch = "x86_64")]
        if F::FUSED && pass.count > 0 {
            // SAFETY: the caller's promise.
            unsafe { x86::digested::merge(*self, pass, target, digests) }
        }
    }
}

impl<F: Formula> KernelFormula for F {
    #[cfg(feature = "cuda")]
    fn name(&self) -> &'static str {
        F::NAME
    }

    #[cfg(feature = "cuda")]
    fn constants(&self, constants: &mut Vec<f64>) {
        constants::note(*self, constants);
    }

    #[cfg(test)]
    fn record(&self) -> Recording {
        let (measures, with_value) = (F::MEASURES, F::WITH_VALUE);
        Recording::of(*self, if measures { Use::Measure { with_value } } else { Use::Merge })
    }
}

#[cfg(test)]
mod tests;
