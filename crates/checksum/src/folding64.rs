//! CRC-64 of long inputs by carry-less multiplication (also called: folding), as in `folding.rs`, for 16 bytes
//! a register or for 64.
#![allow(unsafe_code, reason = "instructions that not every processor has")]

use std::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_cvtsi64_si128, _mm_extract_epi64, _mm_loadu_si128,
    _mm_set_epi64x, _mm_slli_si128, _mm_srli_si128, _mm_xor_si128,
};

use crate::folding::{self, STEP as WIDE_STEP, one_further};
use crate::tables64::{POLYNOMIAL, over_x, power, times_x};

/// Bytes of a lane, and of one step.
const LANE: usize = 16;
const STEP: usize = 4 * LANE;

/// Minimum bytes of narrow registers, of wide ones, and of narrow ones behind zeros.
const LEAST: usize = 2 * STEP;
const LEAST_WIDE: usize = 2 * WIDE_STEP;
const LEAST_SHORT: usize = STEP / 2;

/// Factors of both halves of a lane that shift them by this many bytes. The powers are one less, because a
/// product of reversed factors is one place too far.
pub(crate) const fn factors(bytes: u32) -> (i64, i64) {
    let bits = bytes * 8;
    (power(bits + 63).cast_signed(), power(bits - 1).cast_signed())
}

pub(crate) const BY_WIDE_STEP: (i64, i64) = factors(256);
pub(crate) const BY_STEP: (i64, i64) = factors(64);
const BY_LANE: (i64, i64) = factors(16);

/// The quotient of x^128 and the polynomial, with its bits reversed: the 64 highest of 65. The lowest one would
/// only change the half of the product that is dropped.
const QUOTIENT: u64 = quotient();

const fn quotient() -> u64 {
    // Long division, from the highest bit on: the remainder begins with that of x^64.
    let (mut rest, mut quotient, mut bit) = (POLYNOMIAL, 1, 1);
    while bit < 64 {
        if rest & 1 == 1 {
            quotient |= 1 << bit;
        }
        rest = times_x(rest);
        bit += 1;
    }
    quotient
}

/// Appends to the digest what the instructions take: all bytes, or all but a few; gives it, and the others.
pub(super) fn append(mut sum: u64, mut bytes: &[u8]) -> (u64, &[u8]) {
    if !is_there() {
        return (sum, bytes);
    }
    if bytes.len() >= LEAST_WIDE && folding::is_there() {
        let (steps, rest) = bytes.as_chunks::<WIDE_STEP>();
        // SAFETY: the processor has the instructions, as checked above.
        (sum, bytes) = (unsafe { fold_wide(sum, steps) }, rest);
    }
    if bytes.len() >= LEAST {
        let (steps, rest) = bytes.as_chunks::<STEP>();
        // SAFETY: the processor has the instructions, as checked above.
        (sum, bytes) = (unsafe { fold(sum, steps) }, rest);
    }
    if bytes.len() >= LEAST_SHORT {
        // SAFETY: the processor has the instructions, as checked above.
        (sum, bytes) = (unsafe { short(sum, bytes) }, &[]);
    }
    (sum, bytes)
}

/// Whether the processor has the instructions for 16 bytes a register.
fn is_there() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1")
}

/// Behind zeros, which change no sum.
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn short(sum: u64, bytes: &[u8]) -> u64 {
    let mut room = [[0; STEP]; LEAST / STEP];
    let Some((_, place)) = room.as_flattened_mut().split_at_mut_checked(LEAST - bytes.len()) else {
        return sum;
    };
    place.copy_from_slice(bytes);
    if let Some(first) = place.first_chunk_mut() {
        *first = (u64::from_le_bytes(*first) ^ !sum).to_le_bytes();
    }
    let [first, last] = room;
    let mut all = load(&last);
    if bytes.len() > STEP {
        for (last, first) in all.iter_mut().zip(load(&first)) {
            *last = one_further(first, BY_STEP, *last);
        }
    }
    end(all)
}

#[target_feature(enable = "pclmulqdq,sse4.1")]
fn fold(sum: u64, steps: &[[u8; STEP]]) -> u64 {
    let Some((first, steps)) = steps.split_first() else { return sum };
    let mut all = load(first);
    all[0] = _mm_xor_si128(all[0], start(sum));
    for step in steps {
        for (sum, next) in all.iter_mut().zip(load(step)) {
            *sum = one_further(*sum, BY_STEP, next);
        }
    }
    end(all)
}

#[target_feature(enable = "avx512f,avx512dq,vpclmulqdq,pclmulqdq,sse4.1")]
fn fold_wide(sum: u64, steps: &[[u8; WIDE_STEP]]) -> u64 {
    let factors = (BY_WIDE_STEP, BY_STEP);
    folding::fold_wide(start(sum), steps, factors).map_or(sum, |lanes| end(lanes))
}

/// What is added to the first 16 bytes behind those with a digest.
#[target_feature(enable = "sse4.1")]
pub(crate) fn start(sum: u64) -> __m128i {
    _mm_set_epi64x(0, (!sum).cast_signed())
}

/// The digest of what adjacent lanes hold.
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(crate) fn end([mut last, rest @ ..]: [__m128i; 4]) -> u64 {
    for lane in rest {
        last = one_further(last, BY_LANE, lane);
    }
    // The first half moves behind the second: its product and the second half are the rest to divide.
    let shifted = _mm_clmulepi64_si128::<0x00>(last, _mm_cvtsi64_si128(BY_LANE.1));
    !remainder(_mm_xor_si128(shifted, _mm_srli_si128::<8>(last)))
}

/// The product of two polynomials, modulo the polynomial; None without the instructions.
pub(super) fn product(left: u64, right: u64) -> Option<u64> {
    // SAFETY: the processor has the instructions.
    is_there().then(|| unsafe { product_by_instructions(left, right) })
}

#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(crate) fn product_by_instructions(left: u64, right: u64) -> u64 {
    // A product of reversed factors is one place too far.
    let [left, right] = [over_x(left), right].map(|factor| _mm_cvtsi64_si128(factor.cast_signed()));
    remainder(_mm_clmulepi64_si128::<0x00>(left, right))
}

/// What is left of 128 bits modulo the polynomial.
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn remainder(rest: __m128i) -> u64 {
    // Barrett's division: a table of 16 KiB would leave the cache between the digests of two values.
    let divisor = _mm_set_epi64x(QUOTIENT.cast_signed(), (POLYNOMIAL << 1 | 1).cast_signed());
    let quotient = _mm_clmulepi64_si128::<0x10>(rest, divisor);
    let product = _mm_clmulepi64_si128::<0x00>(quotient, divisor);
    let product = _mm_xor_si128(product, _mm_slli_si128::<8>(quotient));
    _mm_extract_epi64::<1>(_mm_xor_si128(rest, product)).cast_unsigned()
}

#[target_feature(enable = "sse4.1")]
fn load(step: &[u8; STEP]) -> [__m128i; 4] {
    let at = |index: usize| {
        // SAFETY: the offset is inside of the step.
        unsafe { _mm_loadu_si128(step.as_ptr().add(index * LANE).cast()) }
    };
    [at(0), at(1), at(2), at(3)]
}
