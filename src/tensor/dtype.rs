//! Element types.

use half::{bf16, f16};

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// Signed 8-bit integer.
    I8,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 8-bit integer.
    U8,
    /// IEEE 754 binary16.
    F16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// bfloat16, the upper half of an IEEE 754 binary32.
    BF16,
}

impl DType {
    /// Every element type.
    pub const ALL: &'static [DType] = &[
        DType::I8,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::F16,
        DType::F32,
        DType::F64,
        DType::BF16,
    ];

    /// The DLPack `DLDataType` as one number: code | bits << 8 | lanes << 16.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            DType::I8 => 0x0001_0800,
            DType::I32 => 0x0001_2000,
            DType::I64 => 0x0001_4000,
            DType::U8 => 0x0001_0801,
            DType::F16 => 0x0001_1002,
            DType::F32 => 0x0001_2002,
            DType::F64 => 0x0001_4002,
            DType::BF16 => 0x0001_1004,
        }
    }

    /// The element type of a DLPack number, if it is one of ours.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0x0001_0800 => DType::I8,
            0x0001_2000 => DType::I32,
            0x0001_4000 => DType::I64,
            0x0001_0801 => DType::U8,
            0x0001_1002 => DType::F16,
            0x0001_2002 => DType::F32,
            0x0001_4002 => DType::F64,
            0x0001_1004 => DType::BF16,
            _ => return None,
        })
    }

    /// Bytes of one element; also its alignment.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            DType::I8 | DType::U8 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// The name as in `NumPy`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DType::I8 => "int8",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::U8 => "uint8",
            DType::F16 => "float16",
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::BF16 => "bfloat16",
        }
    }

    /// Whether it is a floating-point type that f32 is wider than.
    pub(crate) const fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// The float type that rules calculate in.
    pub(crate) const fn full(self) -> Self {
        if matches!(self, DType::F64) { DType::F64 } else { DType::F32 }
    }

    /// Whether it is a floating-point type; those convert into each other.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::F32 | DType::F64 | DType::BF16)
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

element!(i8 => I8, i32 => I32, i64 => I64, u8 => U8, f16 => F16, f32 => F32, f64 => F64, bf16 => BF16);

#[cfg(test)]
mod tests {
    use super::DType;

    #[test]
    fn codes_are_dlpack_codes_and_come_back() {
        for &dtype in DType::ALL {
            assert_eq!(DType::from_code(dtype.code()), Some(dtype));
            assert_eq!((dtype.code() >> 8 & 0xFF) as usize, dtype.size() * 8);
            assert_eq!(dtype.code() >> 16, 1);
        }
        assert_eq!(DType::from_code(0x0002_2002), None, "two lanes");
    }
}
