//! Passes that digest their arrays on the way between registers and memory.

use std::arch::x86_64::{__m512, __m512i, _mm512_castps_si512};
use std::ops::Range;

use kvstore_checksum::{RegisterFold, crc64};

use super::Avx512;
use crate::kernel::number::Pair;
use crate::kernel::sum::{
    DigestScope, MOST_DIGESTED, Observed, Observer, Observes, Pass, PassDigests,
};
use crate::kernel::{Formula, MAX_STATES, RuleTarget, rule, sum};

/// Two registers as their bytes in memory.
trait TwoRegisters {
    fn bits(self) -> [__m512i; 2];
}

impl TwoRegisters for Pair<__m512> {
    #[inline(always)]
    fn bits(self) -> [__m512i; 2] {
        // SAFETY: no instruction.
        unsafe { [_mm512_castps_si512(self.0), _mm512_castps_si512(self.1)] }
    }
}

impl TwoRegisters for Pair<__m512i> {
    #[inline(always)]
    fn bits(self) -> [__m512i; 2] {
        [self.0, self.1]
    }
}

/// Continues a digest with bytes in memory.
///
/// # Safety
/// The array has these bytes.
unsafe fn append(digest: &mut u64, array: *const u8, range: &Range<usize>) {
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(array.add(range.start), range.len()) };
    *digest = crc64::append(*digest, bytes);
}

/// See [`DigestScope::Value`].
struct ValueDigest<'a>(&'a mut u64);

impl Observer for ValueDigest<'_> {
    type Registers = RegisterFold;

    const ALL: bool = false;

    #[inline(always)]
    unsafe fn begin(&self) -> RegisterFold {
        // SAFETY: the caller's promise.
        unsafe { RegisterFold::new(*self.0) }
    }

    #[inline(always)]
    unsafe fn end(&mut self, registers: RegisterFold) {
        // SAFETY: the caller's promise.
        *self.0 = unsafe { registers.end() };
    }

    unsafe fn passed(&mut self, arrays: Observed<'_>, range: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe { append(self.0, arrays.value, &range) }
    }
}

impl<R: TwoRegisters> Observes<R> for ValueDigest<'_> {
    #[inline(always)]
    unsafe fn value(registers: &mut RegisterFold, register: R) {
        // SAFETY: the caller's promise.
        unsafe { registers.add(register.bits()) }
    }
}

/// See [`DigestScope::All`].
struct AllDigests<'a> {
    all: &'a mut PassDigests,
    states: usize,
    inputs: usize,
}

struct AllFolds {
    value: RegisterFold,
    states: [RegisterFold; MAX_STATES + 1],
    inputs: [RegisterFold; MOST_DIGESTED],
    /// Number of the inputs that are digested.
    count: usize,
}

impl Observer for AllDigests<'_> {
    type Registers = AllFolds;

    const ALL: bool = true;

    #[inline(always)]
    unsafe fn begin(&self) -> AllFolds {
        // SAFETY: the caller's promise.
        let fold = |sum: u64| unsafe { RegisterFold::new(sum) };
        let PassDigests { value, states, inputs } = *self.all;
        let (value, states, inputs) = (fold(value), states.map(fold), inputs.map(fold));
        AllFolds { value, states, inputs, count: self.inputs }
    }

    #[inline(always)]
    unsafe fn end(&mut self, registers: AllFolds) {
        // SAFETY: the caller's promise.
        let end = |(digest, fold): (&mut u64, &RegisterFold)| *digest = unsafe { fold.end() };
        let AllFolds { value, states, inputs, .. } = &registers;
        end((&mut self.all.value, value));
        self.all.states.iter_mut().zip(states).take(self.states).for_each(end);
        self.all.inputs.iter_mut().zip(inputs).take(self.inputs).for_each(end);
    }

    unsafe fn passed(&mut self, arrays: Observed<'_>, range: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe {
            append(&mut self.all.value, arrays.value, &range);
            for (digest, state) in self.all.states.iter_mut().zip(arrays.states) {
                append(digest, *state, &range);
            }
            for (digest, input) in self.all.inputs.iter_mut().zip(arrays.inputs).take(self.inputs) {
                append(digest, *input, &range);
            }
        }
    }
}

impl<R: TwoRegisters> Observes<R> for AllDigests<'_> {
    #[inline(always)]
    unsafe fn value(registers: &mut AllFolds, register: R) {
        // SAFETY: the caller's promise.
        unsafe { registers.value.add(register.bits()) }
    }

    #[inline(always)]
    unsafe fn input(registers: &mut AllFolds, at: usize, register: R) {
        if at < registers.count
            && let Some(input) = registers.inputs.get_mut(at)
        {
            // SAFETY: the caller's promise.
            unsafe { input.add(register.bits()) }
        }
    }

    #[inline(always)]
    unsafe fn state(registers: &mut AllFolds, at: usize, register: R) {
        if let Some(state) = registers.states.get_mut(at) {
            // SAFETY: the caller's promise.
            unsafe { state.add(register.bits()) }
        }
    }
}

pub(in crate::kernel) fn is_available() -> bool {
    super::has_avx512() && RegisterFold::is_available()
}

/// Merges f32 as [`rule::merge`], and continues digests.
///
/// # Safety
/// As there; [`is_available`].
#[target_feature(
    enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,vpclmulqdq,pclmulqdq,sse4.1"
)]
pub(in crate::kernel) unsafe fn merge<F: Formula>(
    formula: F,
    pass: &Pass<'_>,
    target: &RuleTarget,
    (all, scope): (&mut PassDigests, DigestScope),
) {
    // SAFETY: the caller's promise.
    unsafe {
        match scope {
            DigestScope::Value => {
                let observer = &mut ValueDigest(&mut all.value);
                rule::merge_observed::<Avx512, F, _>(formula, pass, target, observer);
            }
            DigestScope::All { inputs } => {
                let inputs = if inputs { pass.inputs.len() } else { 0 };
                let observer = &mut AllDigests { all, states: F::STATES, inputs };
                rule::merge_observed::<Avx512, F, _>(formula, pass, target, observer);
            }
        }
    }
}

/// Copies one input, or adds f32 up, as [`sum::sum`], and continues digests.
///
/// # Safety
/// As there; [`is_available`].
#[target_feature(
    enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,vpclmulqdq,pclmulqdq,sse4.1"
)]
pub(in crate::kernel) unsafe fn sum(
    pass: &Pass<'_>,
    (all, scope): (&mut PassDigests, DigestScope),
) {
    // SAFETY: the caller's promise.
    unsafe {
        match scope {
            DigestScope::All { inputs: true } => {
                let observer = &mut AllDigests { all, states: 0, inputs: pass.inputs.len() };
                sum::sum_observed::<Avx512, _>(pass, observer);
            }
            _ => sum::sum_observed::<Avx512, _>(pass, &mut ValueDigest(&mut all.value)),
        }
    }
}
