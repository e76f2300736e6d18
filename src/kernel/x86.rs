//! The kernels built for AVX2 and AVX-512, and f16 by the F16C instructions.

use std::arch::x86_64::{
    _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_loadu_ps, _mm256_storeu_ps,
};

use super::half::{self, HalfArrays};

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

/// Eight elements at a time with F16C, which rounds and quiets NaNs like [`half::Portable`].
struct F16c;

impl HalfArrays for F16c {
    #[inline(always)]
    unsafe fn widen_f16(dst: &mut [f32], src: &[u16]) {
        let (wide, wide_rest) = dst.as_chunks_mut::<8>();
        let (narrow, narrow_rest) = src.as_chunks::<8>();
        for (to, from) in wide.iter_mut().zip(narrow) {
            // SAFETY: F16C is there; both chunks have 8 elements.
            unsafe {
                let packed = _mm_loadu_si128(from.as_ptr().cast());
                _mm256_storeu_ps(to.as_mut_ptr(), _mm256_cvtph_ps(packed));
            }
        }
        for (to, &from) in wide_rest.iter_mut().zip(narrow_rest) {
            *to = half::f16_to_f32(from);
        }
    }

    #[inline(always)]
    unsafe fn narrow_f16(dst: &mut [u16], src: &[f32]) {
        let (narrow, narrow_rest) = dst.as_chunks_mut::<8>();
        let (wide, wide_rest) = src.as_chunks::<8>();
        for (to, from) in narrow.iter_mut().zip(wide) {
            // SAFETY: F16C is there; both chunks have 8 elements.
            unsafe {
                let values = _mm256_loadu_ps(from.as_ptr());
                let packed = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values);
                _mm_storeu_si128(to.as_mut_ptr().cast(), packed);
            }
        }
        for (to, &from) in narrow_rest.iter_mut().zip(wide_rest) {
            *to = half::f32_to_f16(from);
        }
    }
}

macro_rules! build {
    ($name:ident, $features:literal) => {
        pub(super) mod $name {
            use super::F16c;
            use crate::kernel::generic;
            use crate::tensor::DType;

            /// # Safety
            /// As for [`generic::sum`].
            #[target_feature(enable = $features)]
            pub(in crate::kernel) unsafe fn sum(
                dtype: DType,
                dst: *mut u8,
                inputs: &[*const u8],
                count: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { generic::sum::<F16c>(dtype, dst, inputs, count) }
            }

            /// # Safety
            /// As for [`generic::convert`].
            #[target_feature(enable = $features)]
            pub(in crate::kernel) unsafe fn convert(
                to: (DType, *mut u8),
                from: (DType, *const u8),
                count: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { generic::convert::<F16c>(to, from, count) }
            }
        }
    };
}

build!(avx2, "avx2,f16c");
build!(avx512, "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl");
