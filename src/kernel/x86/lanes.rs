//! Registers of AVX2 and AVX-512: how each dtype is loaded, added and stored.

use std::arch::x86_64::{
    __m256, __m256d, __m256i, __m512, __m512d, __m512i, _mm256_add_epi8, _mm256_add_epi16,
    _mm256_add_epi32, _mm256_add_epi64, _mm256_add_pd, _mm256_add_ps, _mm256_cvtph_ps,
    _mm256_loadu_pd, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_storeu_pd, _mm256_storeu_ps,
    _mm256_storeu_si256, _mm256_stream_pd, _mm256_stream_ps, _mm256_stream_si256, _mm512_add_epi8,
    _mm512_add_epi16, _mm512_add_epi32, _mm512_add_epi64, _mm512_add_pd, _mm512_add_ps,
    _mm512_loadu_pd, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_storeu_pd, _mm512_storeu_ps,
    _mm512_storeu_si512, _mm512_stream_pd, _mm512_stream_ps, _mm512_stream_si512,
};
use std::marker::PhantomData;

use super::half::{
    add_f32x32, load_bf16x32, load_f16x8, load_f16x32, narrow_f16x8, round_bf16x32, round_f16x32,
    store_bf16x32, store_f16x8, store_f16x32, stream_bf16x32, stream_f16x8, stream_f16x32,
};
use crate::kernel::lanes::{Family, FloatLanes, Lanes, Portable, Scalar, Two};
use crate::kernel::number::Pair;

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
    I16x16: __m256i as __m256i, 32, _mm256_loadu_si256, _mm256_add_epi16, _mm256_storeu_si256, _mm256_stream_si256;
    I32x8: __m256i as __m256i, 32, _mm256_loadu_si256, _mm256_add_epi32, _mm256_storeu_si256, _mm256_stream_si256;
    I64x4: __m256i as __m256i, 32, _mm256_loadu_si256, _mm256_add_epi64, _mm256_storeu_si256, _mm256_stream_si256;
    F16x8: __m256 as u8, 16, load_f16x8, _mm256_add_ps, store_f16x8, stream_f16x8;
    F32x16: __m512 as f32, 64, _mm512_loadu_ps, _mm512_add_ps, _mm512_storeu_ps, _mm512_stream_ps;
    F64x8: __m512d as f64, 64, _mm512_loadu_pd, _mm512_add_pd, _mm512_storeu_pd, _mm512_stream_pd;
    I8x64: __m512i as __m512i, 64, _mm512_loadu_si512, _mm512_add_epi8, _mm512_storeu_si512, _mm512_stream_si512;
    I16x32: __m512i as __m512i, 64, _mm512_loadu_si512, _mm512_add_epi16, _mm512_storeu_si512, _mm512_stream_si512;
    I32x16: __m512i as __m512i, 64, _mm512_loadu_si512, _mm512_add_epi32, _mm512_storeu_si512, _mm512_stream_si512;
    I64x8: __m512i as __m512i, 64, _mm512_loadu_si512, _mm512_add_epi64, _mm512_storeu_si512, _mm512_stream_si512;
    F16x32: Pair<__m512> as u8, 64, load_f16x32, add_f32x32, store_f16x32, stream_f16x32;
    Bf16x32: Pair<__m512> as u8, 64, load_bf16x32, add_f32x32, store_bf16x32, stream_bf16x32;
}

/// Declares which registers are floats: their full-precision form, and their rounding.
macro_rules! floats {
    ($($name:ident as $full:ty: |$value:ident| $round:expr;)+) => {$(
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
    F16x32 as Two<F32x16>: |value| round_f16x32(value);
    Bf16x32 as Two<F32x16>: |value| round_bf16x32(value);
}

/// `W` for the bulk, `S` once after it, `FEW` or one element of `T` at a time for the ends.
pub(in crate::kernel) struct Mixed<W, S, T, const FEW: usize = 4>(PhantomData<(W, S, T)>);

impl<W: Lanes, S: Lanes, T: Scalar, const FEW: usize> Family for Mixed<W, S, T, FEW> {
    type Wide = W;
    type Single = S;
    type Few = Portable<T, FEW>;
    type One = Portable<T, 1>;
}
