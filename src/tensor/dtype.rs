//! Element types.

use half::{bf16, f16};
use num_complex::Complex;

/// Declares the element types: documentation, name, DLPack code and bits, alignment, name in `NumPy`.
macro_rules! dtypes {
    ($($(#[$about:meta])* $dtype:ident = ($code:literal, $bits:literal, $align:literal, $name:literal);)+) => {
        /// The type of a tensor's elements.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum DType {
            $($(#[$about])* $dtype,)+
        }

        impl DType {
            /// Every element type.
            pub const ALL: &'static [DType] = &[$(DType::$dtype),+];

            /// The DLPack `DLDataType` as one number: code | bits << 8 | lanes << 16.
            #[must_use]
            pub const fn code(self) -> u32 {
                match self { $(DType::$dtype => $code | $bits << 8 | 1 << 16,)+ }
            }

            /// The element type of a DLPack number, if it is one of ours.
            #[must_use]
            #[allow(non_upper_case_globals, reason = "named as the element types")]
            pub const fn from_code(code: u32) -> Option<Self> {
                $(const $dtype: u32 = DType::$dtype.code();)+
                Some(match code {
                    $($dtype => DType::$dtype,)+
                    _ => return None,
                })
            }

            /// Bytes of one element.
            #[must_use]
            pub const fn size(self) -> usize {
                match self { $(DType::$dtype => $bits / 8,)+ }
            }

            /// Bytes that the address of an element is a multiple of.
            #[must_use]
            pub const fn align(self) -> usize {
                match self { $(DType::$dtype => $align,)+ }
            }

            /// The name as in `NumPy`, and in the package `ml_dtypes`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(DType::$dtype => $name,)+ }
            }
        }
    };
}

dtypes! {
    /// Signed 8-bit integer.
    I8 = (0, 8, 1, "int8");
    /// Signed 16-bit integer.
    I16 = (0, 16, 2, "int16");
    /// Signed 32-bit integer.
    I32 = (0, 32, 4, "int32");
    /// Signed 64-bit integer.
    I64 = (0, 64, 8, "int64");
    /// Unsigned 8-bit integer.
    U8 = (1, 8, 1, "uint8");
    /// Unsigned 16-bit integer.
    U16 = (1, 16, 2, "uint16");
    /// Unsigned 32-bit integer.
    U32 = (1, 32, 4, "uint32");
    /// Unsigned 64-bit integer.
    U64 = (1, 64, 8, "uint64");
    /// IEEE 754 binary16.
    F16 = (2, 16, 2, "float16");
    /// IEEE 754 binary32.
    F32 = (2, 32, 4, "float32");
    /// IEEE 754 binary64.
    F64 = (2, 64, 8, "float64");
    /// bfloat16, the upper half of an IEEE 754 binary32.
    BF16 = (4, 16, 2, "bfloat16");
    /// Two binary32: the real part, then the imaginary one. Opaque.
    C64 = (5, 64, 4, "complex64");
    /// Two binary64: the real part, then the imaginary one. Opaque.
    C128 = (5, 128, 8, "complex128");
    /// A truth value in a byte, 0 or 1. Opaque.
    Bool = (6, 8, 1, "bool");
    /// Float of 8 bits: 4 of exponent, 3 of mantissa, without infinities. Opaque.
    F8E4M3FN = (10, 8, 1, "float8_e4m3fn");
    /// The same with one zero and another bias. Opaque.
    F8E4M3FNUZ = (11, 8, 1, "float8_e4m3fnuz");
    /// Float of 8 bits: 5 of exponent, 2 of mantissa. Opaque.
    F8E5M2 = (12, 8, 1, "float8_e5m2");
    /// The same with one zero, another bias and no infinities. Opaque.
    F8E5M2FNUZ = (13, 8, 1, "float8_e5m2fnuz");
    /// A power of two in 8 bits, a scale. Opaque.
    F8E8M0FNU = (14, 8, 1, "float8_e8m0fnu");
}

impl DType {
    /// Whether it is a floating-point type that f32 is wider than.
    pub(crate) const fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// The float type that rules calculate in.
    pub(crate) const fn full(self) -> Self {
        if matches!(self, DType::F64) { DType::F64 } else { DType::F32 }
    }

    /// Numbers of an element: a complex one has two.
    #[cfg(feature = "cuda")]
    pub(crate) const fn parts(self) -> usize {
        if matches!(self, DType::C64 | DType::C128) { 2 } else { 1 }
    }

    /// Whether it is a floating-point type that is calculated with; those convert into each other.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::F32 | DType::F64 | DType::BF16)
    }

    /// Whether values are stored and copied as they are, and never added: `bool`, complex numbers and
    /// floats of 8 bits.
    #[must_use]
    pub const fn is_opaque(self) -> bool {
        use DType::{Bool, C64, C128, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU};
        matches!(self, Bool | C64 | C128 | F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F8E8M0FNU)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that tensors are made of.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Its element type.
    const DTYPE: DType;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),+) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust { const DTYPE: DType = DType::$dtype; }
    )+};
}

element!(i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64);
element!(f16 => F16, f32 => F32, f64 => F64, bf16 => BF16);
element!(Complex<f32> => C64, Complex<f64> => C128);

#[cfg(test)]
mod tests {
    use super::DType;

    #[test]
    fn codes_are_dlpack_codes_and_come_back() {
        for &dtype in DType::ALL {
            assert_eq!(DType::from_code(dtype.code()), Some(dtype));
            assert!(dtype.align() <= dtype.size() && dtype.align() <= 8, "{dtype:?}");
            assert_eq!((dtype.code() >> 8 & 0xFF) as usize, dtype.size() * 8);
            assert_eq!(dtype.code() >> 16, 1);
        }
        assert_eq!(DType::from_code(0x0002_2002), None, "two lanes");
    }
}
