//! CRC of long inputs by carry-less multiplication (also called: folding): V. Gopal et al., "Fast CRC
//! Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009), here with sixteen products
//! at a time.
#![allow(unsafe_code, reason = "instructions that not every processor has")]

use std::arch::x86_64::{
    __m128i, __m512i, _MM_HINT_T0, _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi128_si64,
    _mm_extract_epi64, _mm_prefetch, _mm_set_epi64x, _mm_xor_si128, _mm512_broadcast_i64x2,
    _mm512_clmulepi64_epi128, _mm512_extracti64x2_epi64, _mm512_loadu_si512,
    _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

/// Bytes of one register, and of one step.
pub(crate) const WIDE: usize = 64;
pub(crate) const STEP: usize = 4 * WIDE;

/// Prefetch distance, in steps: memory that is in no cache is read a third faster than by the processor's own
/// prefetching, which ends at each page.
const AHEAD: usize = 16;

/// Minimum bytes: shorter inputs are faster without folding.
const LEAST: usize = 2 * STEP;

/// The polynomial with its bits reversed, without the highest one.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x to the power of `exponent`, modulo the polynomial; its bits reversed, and one place further left,
/// because a product of reversed factors is one place too far right.
const fn power(exponent: u32) -> i64 {
    let (mut value, mut done) = (0x8000_0000_u32, 0);
    while done < exponent {
        value = (value >> 1) ^ if value & 1 == 1 { POLYNOMIAL } else { 0 };
        done += 1;
    }
    (value as i64) << 1
}

/// Factors of both halves of 16 bytes that shift them by this many bytes.
const fn factors(bytes: u32) -> (i64, i64) {
    let bits = bytes * 8;
    (power(bits + 32), power(bits - 32))
}

pub(crate) const BY_STEP: (i64, i64) = factors(256);
pub(crate) const BY_WIDE: (i64, i64) = factors(64);
const BY_LANE: (i64, i64) = factors(16);

/// Whether the processor has the instructions.
pub(crate) fn is_there() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("sse4.2")
}

/// Appends all whole steps to the sum; gives it, and the remaining bytes.
pub(super) fn append(sum: u32, bytes: &[u8]) -> (u32, &[u8]) {
    if bytes.len() < LEAST || !is_there() {
        return (sum, bytes);
    }
    let (steps, rest) = bytes.as_chunks::<STEP>();
    // SAFETY: the processor has the instructions, as checked above.
    (unsafe { fold(sum, steps) }, rest)
}

#[target_feature(enable = "avx512f,avx512dq,vpclmulqdq,pclmulqdq,sse4.2")]
fn fold(sum: u32, steps: &[[u8; STEP]]) -> u32 {
    fold_wide(start(sum), steps, (BY_STEP, BY_WIDE)).map_or(sum, |lanes| end(lanes))
}

/// What is added to the first 16 bytes behind those with a sum.
#[target_feature(enable = "sse4.2")]
pub(crate) fn start(sum: u32) -> __m128i {
    _mm_set_epi64x(0, (!sum).into())
}

/// The sum of what adjacent lanes hold.
#[target_feature(enable = "pclmulqdq,sse4.2")]
pub(crate) fn end([mut last, rest @ ..]: [__m128i; 4]) -> u32 {
    for lane in rest {
        last = one_further(last, BY_LANE, lane);
    }
    let low = _mm_crc32_u64(0, _mm_cvtsi128_si64(last).cast_unsigned());
    let sum = _mm_crc32_u64(low, _mm_extract_epi64::<1>(last).cast_unsigned());
    !u32::try_from(sum).expect("32 bits")
}

/// Folds all steps behind a start into four adjacent lanes of 16 bytes; None without a step. The factors shift by a
/// step, and by a register.
#[target_feature(enable = "avx512f,avx512dq,vpclmulqdq")]
pub(crate) fn fold_wide(
    start: __m128i,
    steps: &[[u8; STEP]],
    (by_step, by_wide): ((i64, i64), (i64, i64)),
) -> Option<[__m128i; 4]> {
    let (first, steps) = steps.split_first()?;
    let mut fold = WideFold::new(start, load(first), by_step);
    for (at, step) in steps.iter().enumerate() {
        if let Some(later) = steps.get(at + AHEAD) {
            prefetch(later);
        }
        fold.add(load(step));
    }
    Some(fold.end(by_wide))
}

/// Steps that are folded one after the other.
#[derive(Clone, Copy)]
pub(crate) struct WideFold {
    all: [__m512i; 4],
    by_step: __m512i,
}

impl WideFold {
    /// A first step, and the start that is added to its first 16 bytes. The factors shift by a step.
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(crate) fn new(start: __m128i, mut first: [__m512i; 4], by_step: (i64, i64)) -> Self {
        first[0] = _mm512_xor_si512(first[0], _mm512_zextsi128_si512(start));
        Self { all: first, by_step: pair(by_step) }
    }

    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(crate) fn add(&mut self, step: [__m512i; 4]) {
        for (sum, next) in self.all.iter_mut().zip(step) {
            *sum = further(*sum, self.by_step, next);
        }
    }

    /// Four adjacent lanes of 16 bytes. The factors shift by a register.
    #[target_feature(enable = "avx512f,avx512dq,vpclmulqdq")]
    pub(crate) fn end(self, by_wide: (i64, i64)) -> [__m128i; 4] {
        let factors = pair(by_wide);
        let [first, second, third, fourth] = self.all;
        let one = further(first, factors, second);
        let one = further(one, factors, third);
        lanes_of(further(one, factors, fourth))
    }
}

/// The lanes of 16 bytes of a register.
#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn lanes_of(register: __m512i) -> [__m128i; 4] {
    [
        _mm512_extracti64x2_epi64::<0>(register),
        _mm512_extracti64x2_epi64::<1>(register),
        _mm512_extracti64x2_epi64::<2>(register),
        _mm512_extracti64x2_epi64::<3>(register),
    ]
}

#[target_feature(enable = "avx512f")]
fn load(step: &[u8; STEP]) -> [__m512i; 4] {
    let at = |index: usize| {
        // SAFETY: the offset is inside of the step.
        unsafe { _mm512_loadu_si512(step.as_ptr().add(index * WIDE).cast()) }
    };
    [at(0), at(1), at(2), at(3)]
}

#[inline]
fn prefetch(step: &[u8; STEP]) {
    for line in step.as_chunks::<WIDE>().0 {
        // SAFETY: part of the base instruction set; changes nothing but the caches.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn pair((low, high): (i64, i64)) -> __m512i {
    _mm512_broadcast_i64x2(_mm_set_epi64x(high, low))
}

/// Shifts `sum` to the place of `next`, and adds `next`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
pub(crate) fn further(sum: __m512i, factors: __m512i, next: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128::<0x00>(sum, factors);
    let high = _mm512_clmulepi64_epi128::<0x11>(sum, factors);
    // 0x96: the exclusive or of three.
    _mm512_ternarylogic_epi64::<0x96>(low, high, next)
}

#[target_feature(enable = "pclmulqdq")]
pub(crate) fn one_further(sum: __m128i, factors: (i64, i64), next: __m128i) -> __m128i {
    let factors = _mm_set_epi64x(factors.1, factors.0);
    let low = _mm_clmulepi64_si128::<0x00>(sum, factors);
    let high = _mm_clmulepi64_si128::<0x11>(sum, factors);
    _mm_xor_si128(_mm_xor_si128(low, high), next)
}
