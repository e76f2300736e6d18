//! The arithmetic of the store by the words of the documents, one element at a time.

use kvstore::{DType, Element, bf16, f16};
use kvstore_protocol::testing::tree_of;

use super::random::Random;

/// Every element type whose values are added.
pub const SUMMED: &[DType] = &[
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::F16,
    DType::F32,
    DType::F64,
    DType::BF16,
];

/// An element type, and what sums and comparisons need of it.
pub trait Scalar: Element + Default {
    fn bits(self) -> u64;
    fn of_bits(bits: u64) -> Self;
    fn is_nan(self) -> bool;
    /// The sum of one or more values, left to right, rounded as documented.
    fn add_up(values: impl Iterator<Item = Self>) -> Self;
    /// The sum of one or more leaves of a binary tree, at ascending positions, rounded as documented.
    fn tree(leaves: &[(u64, Self)]) -> Self;
    /// Often special, otherwise close enough to others that sums round.
    fn random(random: &mut Random) -> Self;

    /// Equal bits, or both a NaN.
    fn is_same(self, other: Self) -> bool {
        self.bits() == other.bits() || self.is_nan() && other.is_nan()
    }
}

macro_rules! integers {
    ($($int:ty)+) => {$(
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_lossless,
            reason = "bits only"
        )]
        impl Scalar for $int {
            fn bits(self) -> u64 { self as u64 }
            fn of_bits(bits: u64) -> Self { bits as $int }
            fn is_nan(self) -> bool { false }
            fn add_up(values: impl Iterator<Item = Self>) -> Self {
                values.reduce(<$int>::wrapping_add).expect("one or more values")
            }
            fn tree(leaves: &[(u64, Self)]) -> Self { tree_of(leaves, <$int>::wrapping_add) }
            fn random(random: &mut Random) -> Self { random.next() as $int }
        }
    )+};
}

integers!(i8 u8 i16 u16 i32 u32 i64 u64);

macro_rules! floats {
    ($($float:ty, $bits:ty, $mantissa:literal, $one:literal, $wide:ty, $round:expr, $sum:expr);+) => {$(
        #[allow(clippy::cast_possible_truncation, clippy::cast_lossless, reason = "bits only")]
        impl Scalar for $float {
            fn bits(self) -> u64 { <$float>::to_bits(self).into() }
            fn of_bits(bits: u64) -> Self { <$float>::from_bits(bits as $bits) }
            fn is_nan(self) -> bool { <$float>::is_nan(self) }
            fn add_up(values: impl Iterator<Item = Self>) -> Self {
                let mut values = values.peekable();
                let first = values.next().expect("one or more values");
                if values.peek().is_none() { first } else { $sum(first, values) }
            }
            fn tree(leaves: &[(u64, Self)]) -> Self {
                if let [(_, only)] = leaves {
                    return *only;
                }
                let wide: Vec<(u64, $wide)> =
                    leaves.iter().map(|&(at, leaf)| (at, leaf.into())).collect();
                $round(tree_of(&wide, |left, right| left + right))
            }
            fn random(random: &mut Random) -> Self {
                if random.one_in(16) {
                    return random.pick(&[
                        <$float>::INFINITY, <$float>::NEG_INFINITY, <$float>::NAN, <$float>::MAX,
                        <$float>::MIN, <$float>::MIN_POSITIVE, <$float>::from_bits(0),
                        -<$float>::from_bits(0), <$float>::from_bits(1), -<$float>::from_bits(1),
                    ]);
                }
                let exponent = $one - 4 + random.next() % 9;
                let mantissa = random.next() & ((1 << $mantissa) - 1);
                let value = <$float>::from_bits((exponent << $mantissa | mantissa) as $bits);
                if random.one_in(2) { value } else { -value }
            }
        }
    )+};
}

floats!(
    f32, u32, 23, 127, f32, |sum| sum, |first, values: std::iter::Peekable<_>| values.fold(first, |a, b: f32| a + b);
    f64, u64, 52, 1023, f64, |sum| sum, |first, values: std::iter::Peekable<_>| values.fold(first, |a, b: f64| a + b);
    f16, u16, 10, 15, f32, f16::from_f32, |first: f16, values: std::iter::Peekable<_>| {
        f16::from_f32(values.fold(first.to_f32(), |sum, value: f16| sum + value.to_f32()))
    };
    bf16, u16, 7, 127, f32, bf16::from_f32, |first: bf16, values: std::iter::Peekable<_>| {
        bf16::from_f32(values.fold(first.to_f32(), |sum, value: bf16| sum + value.to_f32()))
    }
);

/// Runs an expression with `$T` as the Rust type of a dtype.
#[macro_export]
macro_rules! with_type {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            kvstore::DType::I8 => {
                type $T = i8;
                $body
            }
            kvstore::DType::I16 => {
                type $T = i16;
                $body
            }
            kvstore::DType::I32 => {
                type $T = i32;
                $body
            }
            kvstore::DType::I64 => {
                type $T = i64;
                $body
            }
            kvstore::DType::U8 => {
                type $T = u8;
                $body
            }
            kvstore::DType::U16 => {
                type $T = u16;
                $body
            }
            kvstore::DType::U32 => {
                type $T = u32;
                $body
            }
            kvstore::DType::U64 => {
                type $T = u64;
                $body
            }
            kvstore::DType::F16 => {
                type $T = kvstore::f16;
                $body
            }
            kvstore::DType::F32 => {
                type $T = f32;
                $body
            }
            kvstore::DType::F64 => {
                type $T = f64;
                $body
            }
            kvstore::DType::BF16 => {
                type $T = kvstore::bf16;
                $body
            }
            other => unreachable!("{other:?} is not added"),
        }
    };
}

/// The sum of elements given as bits.
pub fn sum_bits(dtype: DType, values: &[u64]) -> u64 {
    with_type!(dtype, T => T::add_up(values.iter().map(|&bits| T::of_bits(bits))).bits())
}

/// The tree over elements given as positions and bits.
pub fn tree_bits(dtype: DType, leaves: &[(u64, u64)]) -> u64 {
    with_type!(dtype, T => {
        let leaves: Vec<(u64, T)> = leaves.iter().map(|&(at, bits)| (at, T::of_bits(bits))).collect();
        T::tree(&leaves).bits()
    })
}

/// Whether two elements given as bits are equal, or both a NaN.
pub fn same_bits(dtype: DType, a: u64, b: u64) -> bool {
    with_type!(dtype, T => T::of_bits(a).is_same(T::of_bits(b)))
}

/// Converts an element given as bits from one float dtype to another, rounded once to nearest even.
pub fn convert_bits(from: DType, to: DType, bits: u64) -> u64 {
    if from == to {
        return bits;
    }
    let value = match from {
        DType::F16 => f16::of_bits(bits).to_f64(),
        DType::BF16 => bf16::of_bits(bits).to_f64(),
        DType::F32 => f32::of_bits(bits).into(),
        _ => f64::of_bits(bits),
    };
    #[allow(clippy::cast_possible_truncation, reason = "Rust rounds to nearest even")]
    match to {
        DType::F64 => value.to_bits(),
        DType::F32 => (value as f32).to_bits().into(),
        DType::F16 => round16(value, 0x7C00, 65_536.0, |bits| f16::from_bits(bits).to_f64()),
        _ => round16(value, 0x7F80, 2f64.powi(128), |bits| bf16::from_bits(bits).to_f64()),
    }
}

/// Rounds to a 16-bit float by looking for the neighbours: non-negative patterns ascend, and for
/// rounding infinity stands for the power of two after the largest finite value.
fn round16(value: f64, infinity: u16, beyond: f64, widen: impl Fn(u16) -> f64) -> u64 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    if value.is_nan() {
        return u64::from(infinity | 1 | sign);
    }
    let (magnitude, mut low, mut high) = (value.abs(), 0, infinity);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if widen(middle) <= magnitude {
            low = middle;
        } else {
            high = middle;
        }
    }
    let (below, above) = (widen(low), if high == infinity { beyond } else { widen(high) });
    // Exact: two neighbours have few bits.
    let half_way = below + (above - below) / 2.0;
    let up = magnitude > half_way || (magnitude == half_way && low % 2 == 1);
    u64::from(sign | if up { high } else { low })
}
