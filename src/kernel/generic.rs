//! The kernels, written once over slices so that each build vectorises them for its instructions.

use std::slice::{from_raw_parts, from_raw_parts_mut};

use super::half::{self, HalfArrays};
use crate::tensor::DType;

/// Elements of a tile: its running sum stays in the first-level cache.
const TILE: usize = 2048;

/// A type that adds in itself.
trait Add: Copy {
    fn add(self, other: Self) -> Self;
}

macro_rules! add {
    ($($float:ty)+; $($int:ty)+) => {
        $(impl Add for $float {
            #[inline(always)]
            fn add(self, other: Self) -> Self { self + other }
        })+
        $(impl Add for $int {
            #[inline(always)]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
        })+
    };
}

add!(f32 f64; i8 u8 i32 i64);

/// A 16-bit float that adds in f32.
trait Half {
    unsafe fn widen<H: HalfArrays>(dst: &mut [f32], src: &[u16]);
    unsafe fn narrow<H: HalfArrays>(dst: &mut [u16], src: &[f32]);
}

struct F16;
struct Bf16;

impl Half for F16 {
    #[inline(always)]
    unsafe fn widen<H: HalfArrays>(dst: &mut [f32], src: &[u16]) {
        // SAFETY: the caller's promise.
        unsafe { H::widen_f16(dst, src) }
    }

    #[inline(always)]
    unsafe fn narrow<H: HalfArrays>(dst: &mut [u16], src: &[f32]) {
        // SAFETY: the caller's promise.
        unsafe { H::narrow_f16(dst, src) }
    }
}

impl Half for Bf16 {
    #[inline(always)]
    unsafe fn widen<H: HalfArrays>(dst: &mut [f32], src: &[u16]) {
        for (wide, &narrow) in dst.iter_mut().zip(src) {
            *wide = half::bf16_to_f32(narrow);
        }
    }

    #[inline(always)]
    unsafe fn narrow<H: HalfArrays>(dst: &mut [u16], src: &[f32]) {
        for (narrow, &wide) in dst.iter_mut().zip(src) {
            *narrow = half::f32_to_bf16(wide);
        }
    }
}

/// See [`super::Isa::sum`].
///
/// # Safety
/// As there, with at least two inputs; the instruction set of `H` is there.
#[inline(always)]
pub(super) unsafe fn sum<H: HalfArrays>(
    dtype: DType,
    dst: *mut u8,
    inputs: &[*const u8],
    count: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => sum_own::<f32>(dst.cast(), inputs, count),
            DType::F64 => sum_own::<f64>(dst.cast(), inputs, count),
            DType::I8 => sum_own::<i8>(dst.cast(), inputs, count),
            DType::U8 => sum_own::<u8>(dst.cast(), inputs, count),
            DType::I32 => sum_own::<i32>(dst.cast(), inputs, count),
            DType::I64 => sum_own::<i64>(dst.cast(), inputs, count),
            DType::F16 => sum_half::<H, F16>(dst.cast(), inputs, count),
            DType::BF16 => sum_half::<H, Bf16>(dst.cast(), inputs, count),
        }
    }
}

#[inline(always)]
unsafe fn sum_own<T: Add>(dst: *mut T, inputs: &[*const u8], count: usize) {
    let mut start = 0;
    while start < count {
        let len = TILE.min(count - start);
        // SAFETY: the tile lies inside every array, and `dst` overlaps no input.
        let (out, input) = unsafe {
            (from_raw_parts_mut(dst.add(start), len), |i: usize| {
                from_raw_parts(inputs[i].cast::<T>().add(start), len)
            })
        };
        let mut done = if inputs.len() >= 4 {
            first4(out, input(0), input(1), input(2), input(3));
            4
        } else {
            first2(out, input(0), input(1));
            2
        };
        while done < inputs.len() {
            if inputs.len() - done >= 2 {
                more2(out, input(done), input(done + 1));
                done += 2;
            } else {
                more1(out, input(done));
                done += 1;
            }
        }
        start += len;
    }
}

#[inline(always)]
fn first4<T: Add>(out: &mut [T], a: &[T], b: &[T], c: &[T], d: &[T]) {
    for ((((out, &a), &b), &c), &d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        *out = a.add(b).add(c).add(d);
    }
}

#[inline(always)]
fn first2<T: Add>(out: &mut [T], a: &[T], b: &[T]) {
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = a.add(b);
    }
}

#[inline(always)]
fn more2<T: Add>(out: &mut [T], a: &[T], b: &[T]) {
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = out.add(a).add(b);
    }
}

#[inline(always)]
fn more1<T: Add>(out: &mut [T], a: &[T]) {
    for (out, &a) in out.iter_mut().zip(a) {
        *out = out.add(a);
    }
}

#[inline(always)]
unsafe fn sum_half<H: HalfArrays, F: Half>(dst: *mut u16, inputs: &[*const u8], count: usize) {
    let mut sum = [0f32; TILE];
    let mut next = [0f32; TILE];
    let mut start = 0;
    while start < count {
        let len = TILE.min(count - start);
        let (sum, next) = (&mut sum[..len], &mut next[..len]);
        // SAFETY: the tile lies inside every array, and `dst` overlaps no input.
        unsafe {
            let input = |i: usize| from_raw_parts(inputs[i].cast::<u16>().add(start), len);
            F::widen::<H>(sum, input(0));
            for i in 1..inputs.len() {
                F::widen::<H>(next, input(i));
                more1(sum, next);
            }
            F::narrow::<H>(from_raw_parts_mut(dst.add(start), len), sum);
        }
        start += len;
    }
}

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
    use DType::{BF16, F16 as F16T, F32, F64};
    // SAFETY: the caller's promise; the closures only give the arrays their types.
    unsafe {
        let (d16, s16) = (|| from_raw_parts_mut(dst.cast(), count), || arr::<u16>(src, count));
        let (d32, s32) = (|| from_raw_parts_mut(dst.cast(), count), || arr::<f32>(src, count));
        let (d64, s64) = (|| from_raw_parts_mut(dst.cast(), count), || arr::<f64>(src, count));
        match (from, to) {
            (F16T, F32) => H::widen_f16(d32(), s16()),
            (BF16, F32) => Bf16::widen::<H>(d32(), s16()),
            (F32, F16T) => H::narrow_f16(d16(), s32()),
            (F32, BF16) => Bf16::narrow::<H>(d16(), s32()),
            (F32, F64) => map(d64(), s32(), f64::from),
            (F64, F32) => map(d32(), s64(), narrow_f64),
            (F16T, F64) => map(d64(), s16(), |x| f64::from(half::f16_to_f32(x))),
            (BF16, F64) => map(d64(), s16(), |x| f64::from(half::bf16_to_f32(x))),
            (F64, F16T) => map(d16(), s64(), |x| half::f32_to_f16(half::f64_to_f32_odd(x))),
            (F64, BF16) => map(d16(), s64(), |x| half::f32_to_bf16(half::f64_to_f32_odd(x))),
            (F16T, BF16) => map(d16(), s16(), |x| half::f32_to_bf16(half::f16_to_f32(x))),
            (BF16, F16T) => map(d16(), s16(), |x| half::f32_to_f16(half::bf16_to_f32(x))),
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
