//! f16 and bf16 in AVX2 and AVX-512 registers, as f32.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, __m512, __m512i, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT,
    _mm_loadu_si128, _mm_storeu_si128, _mm_stream_si128, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_loadu_si256, _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512,
    _mm512_castsi256_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi16,
    _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_inserti64x4,
    _mm512_mask_mov_epi32, _mm512_or_si512, _mm512_set1_epi32, _mm512_slli_epi32,
    _mm512_srli_epi32, _mm512_storeu_si512, _mm512_stream_si512,
};

use crate::kernel::number::{Arithmetic, Pair};

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
pub(super) unsafe fn narrow_f16x8(value: __m256) -> __m128i {
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
pub(super) unsafe fn stream_f16x8(to: *mut u8, value: __m256) {
    // SAFETY: the caller's promise.
    unsafe { _mm_stream_si128(to.cast(), narrow_f16x8(value)) }
}

/// # Safety
/// AVX-512 is there.
#[inline(always)]
unsafe fn widen_f16x16(halves: __m256i) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtph_ps(halves) }
}

/// # Safety
/// AVX-512 is there.
#[inline(always)]
unsafe fn narrow_f16x16(value: __m512) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value) }
}

/// # Safety
/// AVX-512 is there.
#[inline(always)]
unsafe fn widen_bf16x16(bits: __m256i) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits))) }
}

/// As [`crate::kernel::half::f32_to_bf16`], 16 at a time.
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

/// Declares how 32 halves, a whole cache line, become two registers of f32 and come back.
macro_rules! halves {
    ($($widen:ident $narrow:ident: $pack:ident $load:ident $store:ident $stream:ident $round:ident;)+) => {$(
        /// # Safety
        /// 64 bytes can be read; AVX-512 is there.
        #[inline(always)]
        pub(super) unsafe fn $load(from: *const u8) -> Pair<__m512> {
            // SAFETY: the caller's promise.
            unsafe {
                let (low, high) = (from.cast::<__m256i>(), from.cast::<__m256i>().add(1));
                Pair($widen(_mm256_loadu_si256(low)), $widen(_mm256_loadu_si256(high)))
            }
        }

        /// # Safety
        /// AVX-512 is there.
        #[inline(always)]
        unsafe fn $pack(value: Pair<__m512>) -> __m512i {
            // SAFETY: the caller's promise.
            unsafe {
                let low = _mm512_castsi256_si512($narrow(value.0));
                _mm512_inserti64x4::<1>(low, $narrow(value.1))
            }
        }

        /// # Safety
        /// 64 bytes can be written; AVX-512 is there.
        #[inline(always)]
        pub(super) unsafe fn $store(to: *mut u8, value: Pair<__m512>) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_si512(to.cast(), $pack(value)) }
        }

        /// # Safety
        /// 64 aligned bytes can be written; AVX-512 is there.
        #[inline(always)]
        pub(super) unsafe fn $stream(to: *mut u8, value: Pair<__m512>) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_stream_si512(to.cast(), $pack(value)) }
        }

        /// # Safety
        /// AVX-512 is there.
        #[inline(always)]
        pub(super) unsafe fn $round(value: Pair<__m512>) -> Pair<__m512> {
            // SAFETY: the caller's promise.
            unsafe { Pair($widen($narrow(value.0)), $widen($narrow(value.1))) }
        }
    )+};
}

halves! {
    widen_f16x16 narrow_f16x16: pack_f16x32 load_f16x32 store_f16x32 stream_f16x32 round_f16x32;
    widen_bf16x16 narrow_bf16x16: pack_bf16x32 load_bf16x32 store_bf16x32 stream_bf16x32 round_bf16x32;
}

/// # Safety
/// AVX-512 is there.
#[inline(always)]
pub(super) unsafe fn add_f32x32(a: Pair<__m512>, b: Pair<__m512>) -> Pair<__m512> {
    a.add(b)
}
