//! Arithmetic of AVX2 and AVX-512 registers.

use std::arch::x86_64::{
    __m256, __m256d, __m512, __m512d, _CMP_GT_OQ, _mm256_add_pd, _mm256_add_ps, _mm256_andnot_pd,
    _mm256_andnot_ps, _mm256_blendv_pd, _mm256_blendv_ps, _mm256_cmp_pd, _mm256_cmp_ps,
    _mm256_div_pd, _mm256_div_ps, _mm256_max_pd, _mm256_max_ps, _mm256_min_pd, _mm256_min_ps,
    _mm256_mul_pd, _mm256_mul_ps, _mm256_set1_pd, _mm256_set1_ps, _mm256_sqrt_pd, _mm256_sqrt_ps,
    _mm256_sub_pd, _mm256_sub_ps, _mm256_xor_pd, _mm256_xor_ps, _mm512_add_pd, _mm512_add_ps,
    _mm512_andnot_pd, _mm512_andnot_ps, _mm512_cmp_pd_mask, _mm512_cmp_ps_mask, _mm512_div_pd,
    _mm512_div_ps, _mm512_mask_blend_pd, _mm512_mask_blend_ps, _mm512_max_pd, _mm512_max_ps,
    _mm512_min_pd, _mm512_min_ps, _mm512_mul_pd, _mm512_mul_ps, _mm512_set1_pd, _mm512_set1_ps,
    _mm512_sqrt_pd, _mm512_sqrt_ps, _mm512_sub_pd, _mm512_sub_ps, _mm512_xor_pd, _mm512_xor_ps,
};

use crate::kernel::number::Arithmetic;

/// Declares the choice between two registers: mask after the values (AVX2) or before them.
macro_rules! selects {
    ($($name:ident: $register:ty, $compare:ident, $blend:ident, $mask:ident;)+) => {$(
        /// # Safety
        /// The instruction set is there.
        #[inline(always)]
        unsafe fn $name(
            a: $register,
            b: $register,
            then: $register,
            otherwise: $register,
        ) -> $register {
            // SAFETY: the caller's promise.
            unsafe { selects!(@$mask $blend, $compare::<_CMP_GT_OQ>(a, b), then, otherwise) }
        }
    )+};
    (@last $blend:ident, $mask:expr, $then:ident, $otherwise:ident) => {
        $blend($otherwise, $then, $mask)
    };
    (@first $blend:ident, $mask:expr, $then:ident, $otherwise:ident) => {
        $blend($mask, $otherwise, $then)
    };
}

selects! {
    select_f32x8: __m256, _mm256_cmp_ps, _mm256_blendv_ps, last;
    select_f64x4: __m256d, _mm256_cmp_pd, _mm256_blendv_pd, last;
    select_f32x16: __m512, _mm512_cmp_ps_mask, _mm512_mask_blend_ps, first;
    select_f64x8: __m512d, _mm512_cmp_pd_mask, _mm512_mask_blend_pd, first;
}

/// Declares the arithmetic of a register.
macro_rules! arithmetic {
    ($($register:ty as $float:ident: $splat:ident $add:ident $sub:ident $mul:ident $div:ident
       $sqrt:ident $xor:ident $andnot:ident $select:ident $min:ident $max:ident;)+) => {$(
        // SAFETY of all: values of this type exist only where the instruction set is there.
        impl Arithmetic for $register {
            #[inline(always)]
            #[allow(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
            fn splat(constant: f64) -> Self {
                // SAFETY: as above.
                unsafe { $splat(constant as $float) }
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $add(self, other) }
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $sub(self, other) }
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $mul(self, other) }
            }

            #[inline(always)]
            fn div(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $div(self, other) }
            }

            #[inline(always)]
            fn neg(self) -> Self {
                // SAFETY: as above.
                unsafe { $xor(self, $splat(-0.0)) }
            }

            #[inline(always)]
            fn abs(self) -> Self {
                // SAFETY: as above.
                unsafe { $andnot($splat(-0.0), self) }
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                // SAFETY: as above.
                unsafe { $sqrt(self) }
            }

            #[inline(always)]
            fn if_greater(self, other: Self, then: Self, otherwise: Self) -> Self {
                // SAFETY: as above.
                unsafe { $select(self, other, then, otherwise) }
            }

            /// Both instructions give their second operand unless the first one is less, or greater.
            #[inline(always)]
            fn clip(self, bound: Self) -> Self {
                // SAFETY: as above.
                unsafe { $max(bound.neg(), $min(bound, self)) }
            }
        }
    )+};
}

arithmetic! {
    __m256 as f32: _mm256_set1_ps _mm256_add_ps _mm256_sub_ps _mm256_mul_ps _mm256_div_ps
        _mm256_sqrt_ps _mm256_xor_ps _mm256_andnot_ps select_f32x8
        _mm256_min_ps _mm256_max_ps;
    __m256d as f64: _mm256_set1_pd _mm256_add_pd _mm256_sub_pd _mm256_mul_pd _mm256_div_pd
        _mm256_sqrt_pd _mm256_xor_pd _mm256_andnot_pd select_f64x4
        _mm256_min_pd _mm256_max_pd;
    __m512 as f32: _mm512_set1_ps _mm512_add_ps _mm512_sub_ps _mm512_mul_ps _mm512_div_ps
        _mm512_sqrt_ps _mm512_xor_ps _mm512_andnot_ps select_f32x16
        _mm512_min_ps _mm512_max_ps;
    __m512d as f64: _mm512_set1_pd _mm512_add_pd _mm512_sub_pd _mm512_mul_pd _mm512_div_pd
        _mm512_sqrt_pd _mm512_xor_pd _mm512_andnot_pd select_f64x8
        _mm512_min_pd _mm512_max_pd;
}
