//! The builds for AVX2 and AVX-512. Also called: SIMD back ends.

mod arithmetic;
pub(super) mod digested;
mod half;
mod lanes;

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch, _mm_sfence, _mm256_loadu_ps, _mm256_storeu_ps};

use lanes::{
    Bf16x32, F16x8, F16x32, F32x8, F32x16, F64x4, F64x8, I8x32, I8x64, I16x16, I16x32, I32x8,
    I32x16, I64x4, I64x8, Mixed,
};

use half::{load_f16x8, store_f16x8};

use super::half::{HalfArrays, f16_to_f32, f32_to_f16};
use super::lanes::{Bf16, F16, Portable, Two};
use super::sum::Build;

pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
}

pub(super) fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

struct Avx2;
struct Avx512;

macro_rules! x86_build {
    ($name:ident as $entries:ident: $f32:ty, $line:ty, $f64:ty, $f16:ty, $bf16:ty, $i8:ty, $i16:ty, $i32:ty, $i64:ty) => {
        impl Build for $name {
            type F32 = Mixed<Two<$f32>, $f32, f32>;
            type F32Line = Mixed<$line, $f32, f32>;
            type F64 = Mixed<$f64, $f64, f64, 1>;
            type F16 = Mixed<$f16, $f16, F16>;
            type Bf16 = Mixed<$bf16, $bf16, Bf16>;
            type I8 = Mixed<Two<$i8>, $i8, i8, 16>;
            type I16 = Mixed<$i16, $i16, i16, 8>;
            type I32 = Mixed<$i32, $i32, i32>;
            type I64 = Mixed<$i64, $i64, i64>;

            const INSTANCES: bool = true;

            #[inline(always)]
            fn prefetch(at: *const u8) {
                // SAFETY: a hint, which may name any address; SSE is part of x86-64.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
            }

            #[inline(always)]
            fn fence() {
                // SAFETY: SSE is part of x86-64.
                unsafe { _mm_sfence() }
            }

            #[inline(always)]
            unsafe fn apart<T>(work: impl FnOnce() -> T) -> T {
                // SAFETY: the caller's promise.
                unsafe { $entries::apart(work) }
            }
        }
    };
}

x86_build!(Avx2 as avx2: F32x8, Two<F32x8>, F64x4, F16x8, Portable<Bf16, 16>, I8x32, I16x16, I32x8, I64x4);
x86_build!(Avx512 as avx512: F32x16, F32x16, F64x8, F16x32, Bf16x32, I8x64, I16x32, I32x16, I64x8);

/// Eight elements at a time with F16C, which rounds and quiets NaNs like [`half::Portable`].
struct F16c;

impl HalfArrays for F16c {
    #[inline(always)]
    unsafe fn widen_f16(dst: &mut [f32], src: &[u16]) {
        let (wide, wide_rest) = dst.as_chunks_mut::<8>();
        let (narrow, narrow_rest) = src.as_chunks::<8>();
        for (to, from) in wide.iter_mut().zip(narrow) {
            // SAFETY: F16C is there; both chunks have 8 elements.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), load_f16x8(from.as_ptr().cast())) };
        }
        for (to, &from) in wide_rest.iter_mut().zip(narrow_rest) {
            *to = f16_to_f32(from);
        }
    }

    #[inline(always)]
    unsafe fn narrow_f16(dst: &mut [u16], src: &[f32]) {
        let (narrow, narrow_rest) = dst.as_chunks_mut::<8>();
        let (wide, wide_rest) = src.as_chunks::<8>();
        for (to, from) in narrow.iter_mut().zip(wide) {
            // SAFETY: F16C is there; both chunks have 8 elements.
            unsafe { store_f16x8(to.as_mut_ptr().cast(), _mm256_loadu_ps(from.as_ptr())) };
        }
        for (to, &from) in narrow_rest.iter_mut().zip(wide_rest) {
            *to = f32_to_f16(from);
        }
    }
}

macro_rules! entries {
    ($name:ident, $build:ty, $features:literal) => {
        /// The entry points of a build: everything inlines into them.
        pub(super) mod $name {
            use super::F16c;
            use crate::kernel::sum::Pass;
            use crate::kernel::{Formula, Loop, RuleTarget, convert, rule, sum};
            use crate::tensor::DType;

            /// # Safety
            /// As for [`sum::sum`].
            #[target_feature(enable = $features)]
            pub(in crate::kernel) unsafe fn sum(pass: &Pass<'_>) {
                // SAFETY: the caller's promise.
                unsafe { sum::sum::<$build>(pass) }
            }

            /// # Safety
            /// As for [`rule::merge`].
            #[target_feature(enable = $features)]
            pub(in crate::kernel) unsafe fn merge<F: Formula>(
                formula: F,
                pass: &Pass<'_>,
                target: &RuleTarget,
            ) {
                // SAFETY: the caller's promise.
                unsafe { rule::merge::<$build, F>(formula, pass, target) }
            }

            /// # Safety
            /// The instruction set is there.
            #[target_feature(enable = $features)]
            pub(in crate::kernel) unsafe fn run<L: Loop>(work: L) -> L::Output {
                work.run()
            }

            /// # Safety
            /// The instruction set is there.
            #[inline(never)]
            #[target_feature(enable = $features)]
            pub(super) unsafe fn apart<T>(work: impl FnOnce() -> T) -> T {
                work()
            }

            /// # Safety
            /// As for [`convert::convert`].
            #[target_feature(enable = $features)]
            pub(in crate::kernel) unsafe fn convert(
                to: (DType, *mut u8),
                from: (DType, *const u8),
                count: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { convert::convert::<F16c>(to, from, count) }
            }
        }
    };
}

entries!(avx2, super::Avx2, "avx2,f16c");
entries!(avx512, super::Avx512, "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl");
