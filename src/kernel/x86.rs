//! The builds for AVX2 and AVX-512.

use std::arch::x86_64::{
    __m128i, __m256, __m256d, __m256i, __m512, __m512d, __m512i, _CMP_UNORD_Q,
    _MM_FROUND_TO_NEAREST_INT, _MM_HINT_T1, _mm_loadu_si128, _mm_prefetch, _mm_sfence,
    _mm_storeu_si128, _mm_stream_si128, _mm256_add_epi8, _mm256_add_epi32, _mm256_add_epi64,
    _mm256_add_pd, _mm256_add_ps, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_pd,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_storeu_pd, _mm256_storeu_ps, _mm256_storeu_si256,
    _mm256_stream_pd, _mm256_stream_ps, _mm256_stream_si256, _mm512_add_epi8, _mm512_add_epi32,
    _mm512_add_epi64, _mm512_add_pd, _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi16, _mm512_cvtepu16_epi32,
    _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_loadu_pd, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mask_mov_epi32, _mm512_or_si512, _mm512_set1_epi32, _mm512_slli_epi32,
    _mm512_srli_epi32, _mm512_storeu_pd, _mm512_storeu_ps, _mm512_storeu_si512, _mm512_stream_pd,
    _mm512_stream_ps, _mm512_stream_si512,
};

use std::marker::PhantomData;

use super::half::{self, HalfArrays};
use super::lanes::{Bf16, F16, Family, Lanes, Portable, Scalar};
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

/// Declares the lanes of a dtype from its instructions.
macro_rules! lanes {
    ($($name:ident: $register:ty as $pointer:ty, $bytes:literal, $load:ident, $add:ident, $store:ident, $stream:ident;)+) => {$(
        pub(super) struct $name;

        impl Lanes for $name {
            type Register = $register;
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn load(from: *const u8) -> $register {
                // SAFETY: the caller's promise.
                unsafe { $load(from.cast::<$pointer>()) }
            }

            #[inline(always)]
            unsafe fn add(a: $register, b: $register) -> $register {
                // SAFETY: the caller's promise.
                unsafe { $add(a, b) }
            }

            #[inline(always)]
            unsafe fn store(to: *mut u8, value: $register) {
                // SAFETY: the caller's promise.
                unsafe { $store(to.cast::<$pointer>(), value) }
            }

            #[inline(always)]
            unsafe fn stream(to: *mut u8, value: $register) {
                // SAFETY: the caller's promise.
                unsafe { $stream(to.cast::<$pointer>(), value) }
            }
        }
    )+};
}

lanes! {
    F32x8: __m256 as f32, 32, _mm256_loadu_ps, _mm256_add_ps, _mm256_storeu_ps, _mm256_stream_ps;
    F64x4: __m256d as f64, 32, _mm256_loadu_pd, _mm256_add_pd, _mm256_storeu_pd, _mm256_stream_pd;
    I8x32: __m256i as __m256i, 32, _mm256_loadu_si256, _mm256_add_epi8, _mm256_storeu_si256, _mm256_stream_si256;
    I32x8: __m256i as __m256i, 32, _mm256_loadu_si256, _mm256_add_epi32, _mm256_storeu_si256, _mm256_stream_si256;
    I64x4: __m256i as __m256i, 32, _mm256_loadu_si256, _mm256_add_epi64, _mm256_storeu_si256, _mm256_stream_si256;
    F16x8: __m256 as u8, 16, load_f16x8, _mm256_add_ps, store_f16x8, stream_f16x8;
    F32x16: __m512 as f32, 64, _mm512_loadu_ps, _mm512_add_ps, _mm512_storeu_ps, _mm512_stream_ps;
    F64x8: __m512d as f64, 64, _mm512_loadu_pd, _mm512_add_pd, _mm512_storeu_pd, _mm512_stream_pd;
    I8x64: __m512i as __m512i, 64, _mm512_loadu_si512, _mm512_add_epi8, _mm512_storeu_si512, _mm512_stream_si512;
    I32x16: __m512i as __m512i, 64, _mm512_loadu_si512, _mm512_add_epi32, _mm512_storeu_si512, _mm512_stream_si512;
    I64x8: __m512i as __m512i, 64, _mm512_loadu_si512, _mm512_add_epi64, _mm512_storeu_si512, _mm512_stream_si512;
    F16x16: __m512 as u8, 32, load_f16x16, _mm512_add_ps, store_f16x16, stream_f16x16;
    Bf16x16: __m512 as u8, 32, load_bf16x16, _mm512_add_ps, store_bf16x16, stream_bf16x16;
}

/// # Safety
/// 16 bytes can be read; F16C is there.
#[inline(always)]
unsafe fn load_f16x8(from: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
}

/// # Safety
/// F16C is there.
#[inline(always)]
unsafe fn narrow_f16x8(value: __m256) -> __m128i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value) }
}

/// # Safety
/// 16 bytes can be written; F16C is there.
#[inline(always)]
unsafe fn store_f16x8(to: *mut u8, value: __m256) {
    // SAFETY: the caller's promise.
    unsafe { _mm_storeu_si128(to.cast(), narrow_f16x8(value)) }
}

/// # Safety
/// 16 aligned bytes can be written; F16C is there.
#[inline(always)]
unsafe fn stream_f16x8(to: *mut u8, value: __m256) {
    // SAFETY: the caller's promise.
    unsafe { _mm_stream_si128(to.cast(), narrow_f16x8(value)) }
}

/// # Safety
/// 32 bytes can be read; AVX-512 is there.
#[inline(always)]
unsafe fn load_f16x16(from: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
}

/// # Safety
/// AVX-512 is there.
#[inline(always)]
unsafe fn narrow_f16x16(value: __m512) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value) }
}

/// # Safety
/// 32 bytes can be written; AVX-512 is there.
#[inline(always)]
unsafe fn store_f16x16(to: *mut u8, value: __m512) {
    // SAFETY: the caller's promise.
    unsafe { _mm256_storeu_si256(to.cast(), narrow_f16x16(value)) }
}

/// # Safety
/// 32 aligned bytes can be written; AVX-512 is there.
#[inline(always)]
unsafe fn stream_f16x16(to: *mut u8, value: __m512) {
    // SAFETY: the caller's promise.
    unsafe { _mm256_stream_si256(to.cast(), narrow_f16x16(value)) }
}

/// # Safety
/// 32 bytes can be read; AVX-512 is there.
#[inline(always)]
unsafe fn load_bf16x16(from: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
    }
}

/// As [`half::f32_to_bf16`], 16 at a time.
///
/// # Safety
/// AVX-512 is there.
#[inline(always)]
unsafe fn narrow_bf16x16(value: __m512) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm512_castps_si512(value);
        let top = _mm512_srli_epi32::<16>(bits);
        let odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
        let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
        let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
        let quiet = _mm512_or_si512(top, _mm512_set1_epi32(0x40));
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
        _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, quiet))
    }
}

/// # Safety
/// 32 bytes can be written; AVX-512 is there.
#[inline(always)]
unsafe fn store_bf16x16(to: *mut u8, value: __m512) {
    // SAFETY: the caller's promise.
    unsafe { _mm256_storeu_si256(to.cast(), narrow_bf16x16(value)) }
}

/// # Safety
/// 32 aligned bytes can be written; AVX-512 is there.
#[inline(always)]
unsafe fn stream_bf16x16(to: *mut u8, value: __m512) {
    // SAFETY: the caller's promise.
    unsafe { _mm256_stream_si256(to.cast(), narrow_bf16x16(value)) }
}

/// `W` for the bulk, one element of `T` at a time for the ends.
pub(super) struct Mixed<W, T>(PhantomData<(W, T)>);

impl<W: Lanes, T: Scalar> Family for Mixed<W, T> {
    type Wide = W;
    type One = Portable<T, 1>;
}

struct Avx2;
struct Avx512;

macro_rules! x86_build {
    ($name:ident: $f32:ty, $f64:ty, $f16:ty, $bf16:ty, $i8:ty, $i32:ty, $i64:ty) => {
        impl Build for $name {
            type F32 = Mixed<$f32, f32>;
            type F64 = Mixed<$f64, f64>;
            type F16 = Mixed<$f16, F16>;
            type Bf16 = Mixed<$bf16, Bf16>;
            type I8 = Mixed<$i8, i8>;
            type I32 = Mixed<$i32, i32>;
            type I64 = Mixed<$i64, i64>;

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
        }
    };
}

x86_build!(Avx2: F32x8, F64x4, F16x8, Portable<Bf16, 16>, I8x32, I32x8, I64x4);
x86_build!(Avx512: F32x16, F64x8, F16x16, Bf16x16, I8x64, I32x16, I64x8);

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
            *to = half::f16_to_f32(from);
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
            *to = half::f32_to_f16(from);
        }
    }
}

macro_rules! entries {
    ($name:ident, $build:ty, $features:literal) => {
        /// The entry points of a build: everything inlines into them.
        pub(super) mod $name {
            use super::F16c;
            use crate::kernel::sum::Pass;
            use crate::kernel::{convert, sum};
            use crate::tensor::DType;

            /// # Safety
            /// As for [`sum::sum`].
            #[target_feature(enable = $features)]
            pub(in crate::kernel) unsafe fn sum(pass: &Pass<'_>) {
                // SAFETY: the caller's promise.
                unsafe { sum::sum::<$build>(pass) }
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
