//! Conversions between float types, written once over slices so that each build vectorises them.

use std::slice::{from_raw_parts, from_raw_parts_mut};

use super::half::{self, HalfArrays};
use crate::tensor::DType;

/// See [`super::Isa::convert`].
///
/// # Safety
/// As there, with different dtypes; the instruction set of `H` is there.
#[inline(always)]
pub(super) unsafe fn convert<H: HalfArrays>(
    (to, dst): (DType, *mut u8),
    (from, src): (DType, *const u8),
    count: usize,
) {
    use DType::{BF16, F16, F32, F64};
    // SAFETY: the caller's promise; the closures only give the arrays their types.
    unsafe {
        let (d16, s16) = (|| from_raw_parts_mut(dst.cast(), count), || arr::<u16>(src, count));
        let (d32, s32) = (|| from_raw_parts_mut(dst.cast(), count), || arr::<f32>(src, count));
        let (d64, s64) = (|| from_raw_parts_mut(dst.cast(), count), || arr::<f64>(src, count));
        match (from, to) {
            (F16, F32) => H::widen_f16(d32(), s16()),
            (BF16, F32) => map(d32(), s16(), half::bf16_to_f32),
            (F32, F16) => H::narrow_f16(d16(), s32()),
            (F32, BF16) => map(d16(), s32(), half::f32_to_bf16),
            (F32, F64) => map(d64(), s32(), f64::from),
            (F64, F32) => map(d32(), s64(), narrow_f64),
            (F16, F64) => map(d64(), s16(), |x| f64::from(half::f16_to_f32(x))),
            (BF16, F64) => map(d64(), s16(), |x| f64::from(half::bf16_to_f32(x))),
            (F64, F16) => map(d16(), s64(), |x| half::f32_to_f16(half::f64_to_f32_odd(x))),
            (F64, BF16) => map(d16(), s64(), |x| half::f32_to_bf16(half::f64_to_f32_odd(x))),
            (F16, BF16) => map(d16(), s16(), |x| half::f32_to_bf16(half::f16_to_f32(x))),
            (BF16, F16) => map(d16(), s16(), |x| half::f32_to_f16(half::bf16_to_f32(x))),
            _ => unreachable!("a conversion between {} and {}", from.name(), to.name()),
        }
    }
}

#[inline(always)]
unsafe fn arr<'a, T>(start: *const u8, count: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    unsafe { from_raw_parts(start.cast(), count) }
}

#[inline(always)]
fn map<A: Copy, B>(dst: &mut [B], src: &[A], f: impl Fn(A) -> B) {
    for (to, &from) in dst.iter_mut().zip(src) {
        *to = f(from);
    }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the rounding is the purpose")]
fn narrow_f64(value: f64) -> f32 {
    value as f32
}
