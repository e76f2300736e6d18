//! Floats: the processor's own operations, which round to nearest as `.rn` does.

use super::instruction::{Comparison, Float, Relation};

/// What every NaN that an operation makes becomes.
const NAN_32: u32 = 0x7fff_ffff;
const NAN_64: u64 = 0x7ff8_0000_0000_0000;

/// The number in the low bits.
#[allow(clippy::cast_possible_truncation, reason = "a register of 32 bits")]
pub(super) fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

pub(super) fn f64_of(bits: u64) -> f64 {
    f64::from_bits(bits)
}

pub(super) fn bits_of_f32(value: f32) -> u64 {
    u64::from(if value.is_nan() { NAN_32 } else { value.to_bits() })
}

pub(super) fn bits_of_f64(value: f64) -> u64 {
    if value.is_nan() { NAN_64 } else { value.to_bits() }
}

macro_rules! arithmetic {
    ($name:ident, $float:ty, $of:ident, $bits_of:ident, $sign:expr) => {
        #[inline]
        #[allow(clippy::float_cmp, reason = "zeros of both signs are told apart")]
        pub(super) fn $name(operation: Float, a: u64, b: u64) -> u64 {
            const SIGN: u64 = $sign;
            let (x, y): ($float, $float) = ($of(a), $of(b));
            let is_below = x < y || (x == y && x.is_sign_negative());
            $bits_of(match operation {
                Float::Add => x + y,
                Float::Sub => x - y,
                Float::Mul => x * y,
                Float::Div => x / y,
                Float::Sqrt => x.sqrt(),
                // Of a NaN and a number the result is the number; -0.0 is less than 0.0.
                Float::Min | Float::Max if x.is_nan() => y,
                Float::Min | Float::Max if y.is_nan() => x,
                Float::Min => {
                    if is_below {
                        x
                    } else {
                        y
                    }
                }
                Float::Max => {
                    if is_below {
                        y
                    } else {
                        x
                    }
                }
                Float::Abs => return a & !SIGN & (SIGN | (SIGN - 1)),
                Float::Neg => return (a ^ SIGN) & (SIGN | (SIGN - 1)),
            })
        }
    };
}

arithmetic!(arithmetic_32, f32, f32_of, bits_of_f32, 1 << 31);
arithmetic!(arithmetic_64, f64, f64_of, bits_of_f64, 1 << 63);

#[inline]
#[allow(clippy::float_cmp, reason = "kernels compare exactly")]
pub(super) fn compare(comparison: Comparison, a: f64, b: f64) -> bool {
    let is_unordered = a.is_nan() || b.is_nan();
    let holds = match comparison.relation {
        Relation::Equal => a == b,
        // Without the suffix `u` it does not hold for NaNs.
        Relation::NotEqual => a != b && !is_unordered,
        Relation::Less => a < b,
        Relation::LessOrEqual => a <= b,
        Relation::Greater => a > b,
        Relation::GreaterOrEqual => a >= b,
        Relation::Ordered => !is_unordered,
        Relation::Unordered => is_unordered,
    };
    holds || (comparison.or_unordered && is_unordered)
}
