//! Registers of AVX2 and AVX-512: how each dtype is loaded, added and stored.

use std::arch::x86_64::{
    __m128i, __m256, __m256d, __m256i, __m512, __m512d, __m512i, _CMP_UNORD_Q,
    _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm_stream_si128,
    _mm256_add_epi8, _mm256_add_epi32, _mm256_add_epi64, _mm256_add_pd, _mm256_add_ps,
    _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_pd, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_storeu_pd, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_stream_pd, _mm256_stream_ps,
    _mm256_stream_si256, _mm512_add_epi8, _mm512_add_epi32, _mm512_add_epi64, _mm512_add_pd,
    _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask,
    _mm512_cvtepi32_epi16, _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_cvtps_ph,
    _mm512_loadu_pd, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_mov_epi32, _mm512_or_si512,
    _mm512_set1_epi32, _mm512_slli_epi32, _mm512_srli_epi32, _mm512_storeu_pd, _mm512_storeu_ps,
    _mm512_storeu_si512, _mm512_stream_pd, _mm512_stream_ps, _mm512_stream_si512,
};
use std::marker::PhantomData;

use crate::kernel::lanes::{Family, FloatLanes, Lanes, Portable, Scalar};

/// Declares the lanes of a dtype from its instructions.
macro_rules! lanes {
    ($($name:ident: $register:ty as $pointer:ty, $bytes:literal, $load:ident, $add:ident, $store:ident, $stream:ident;)+) => {$(
        pub(in crate::kernel) struct $name;

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

/// Declares which registers are floats: what they are at full precision, and how they are rounded.
macro_rules! floats {
    ($($name:ident as $full:ident: |$value:ident| $round:expr;)+) => {$(
        impl FloatLanes for $name {
            type Full = $full;

            #[inline(always)]
            unsafe fn round($value: Self::Register) -> Self::Register {
                // SAFETY: the caller's promise.
                #[allow(unused_unsafe, reason = "full precision needs no rounding")]
                unsafe { $round }
            }
        }
    )+};
}

floats! {
    F32x8 as F32x8: |value| value;
    F64x4 as F64x4: |value| value;
    F16x8 as F32x8: |value| _mm256_cvtph_ps(narrow_f16x8(value));
    F32x16 as F32x16: |value| value;
    F64x8 as F64x8: |value| value;
    F16x16 as F32x16: |value| _mm512_cvtph_ps(narrow_f16x16(value));
    Bf16x16 as F32x16: |value| widen_bf16x16(narrow_bf16x16(value));
}

/// # Safety
/// 16 bytes can be read; F16C is there.
#[inline(always)]
pub(super) unsafe fn load_f16x8(from: *const u8) -> __m256 {
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
pub(super) unsafe fn store_f16x8(to: *mut u8, value: __m256) {
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
    unsafe { widen_bf16x16(_mm256_loadu_si256(from.cast())) }
}

/// # Safety
/// AVX-512 is there.
#[inline(always)]
unsafe fn widen_bf16x16(bits: __m256i) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits))) }
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
pub(in crate::kernel) struct Mixed<W, T>(PhantomData<(W, T)>);

impl<W: Lanes, T: Scalar> Family for Mixed<W, T> {
    type Wide = W;
    type One = Portable<T, 1>;
}
