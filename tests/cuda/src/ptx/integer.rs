//! Integers, bits and comparisons.

use super::instruction::{Bitwise, Class, Comparison, Integer, Relation, Type};
use super::memory::{Fault, FaultKind};

/// The full product.
fn product(kind: Type, a: u64, b: u64) -> i128 {
    if kind.class == Class::Signed {
        i128::from(kind.number(a)) * i128::from(kind.number(b))
    } else {
        // Callers shift and take 64 bits of it, which do not depend on the sign.
        (u128::from(kind.trim(a)) * u128::from(kind.trim(b))).cast_signed()
    }
}

/// The low 64 bits.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "that is its use")]
fn low(value: i128) -> u64 {
    value as u64
}

fn quotient(operation: Integer, kind: Type, a: u64, b: u64) -> Result<u64, Fault> {
    if kind.trim(b) == 0 {
        return Err(Fault::without_access(FaultKind::DivisionByZero));
    }
    let is_division = operation == Integer::Div;
    Ok(if kind.class == Class::Signed {
        let (a, b) = (kind.number(a), kind.number(b));
        let result = if is_division { a.wrapping_div(b) } else { a.wrapping_rem(b) };
        result.cast_unsigned()
    } else {
        let (a, b) = (kind.trim(a), kind.trim(b));
        if is_division { a / b } else { a % b }
    })
}

fn is_less(kind: Type, a: u64, b: u64) -> bool {
    if kind.class == Class::Signed {
        kind.number(a) < kind.number(b)
    } else {
        kind.trim(a) < kind.trim(b)
    }
}

#[inline]
pub(super) fn arithmetic(
    operation: Integer,
    kind: Type,
    [a, b, c]: [u64; 3],
) -> Result<u64, Fault> {
    let value = match operation {
        Integer::Add => a.wrapping_add(b),
        Integer::Sub => a.wrapping_sub(b),
        Integer::MulLow => a.wrapping_mul(b),
        Integer::MadLow => a.wrapping_mul(b).wrapping_add(c),
        Integer::MulHigh => low(product(kind, a, b) >> kind.bits()),
        Integer::MadHigh => low(product(kind, a, b) >> kind.bits()).wrapping_add(c),
        // The result is twice as wide; an operand has at most 32 bits.
        Integer::MulWide | Integer::MadWide => {
            let added = if operation == Integer::MadWide { c } else { 0 };
            let value = low(product(kind, a, b)).wrapping_add(added);
            return Ok(Type { bytes: 2 * kind.bytes, ..kind }.trim(value));
        }
        Integer::Div | Integer::Rem => quotient(operation, kind, a, b)?,
        Integer::Min => {
            if is_less(kind, b, a) {
                b
            } else {
                a
            }
        }
        Integer::Max => {
            if is_less(kind, a, b) {
                b
            } else {
                a
            }
        }
        Integer::Abs => kind.number(a).wrapping_abs().cast_unsigned(),
        Integer::Neg => a.wrapping_neg(),
    };
    Ok(kind.trim(value))
}

/// A 64-bit pair, shifted by an amount of at most 32.
fn funnel(operation: Bitwise, low_half: u64, high_half: u64, amount: u64) -> u64 {
    let pair = high_half << 32 | low_half;
    let (wrapped, clamped) = (amount % 32, amount.min(32));
    match operation {
        Bitwise::FunnelLeftWrap => pair << wrapped >> 32,
        Bitwise::FunnelLeftClamp => {
            u64::try_from((u128::from(pair) << clamped >> 32) & 0xffff_ffff).unwrap_or_default()
        }
        Bitwise::FunnelRightWrap => pair >> wrapped,
        _ => pair >> clamped,
    }
}

/// `bfe`: `length` bits from `first`, extended.
fn extract(kind: Type, value: u64, first: u64, length: u64) -> u64 {
    let (first, length, bits) = (first & 0xff, length & 0xff, u64::from(kind.bits()));
    if length == 0 {
        return 0;
    }
    let number = kind.number(value);
    let is_negative = kind.class == Class::Signed && {
        let sign = (first + length - 1).min(bits - 1);
        number >> sign & 1 == 1
    };
    let fill = if is_negative { u64::MAX } else { 0 };
    let there = length.min(bits.saturating_sub(first));
    let mask = if there == 0 { 0 } else { u64::MAX >> (64 - there) };
    let moved = if first < bits { kind.trim(value) >> first } else { 0 };
    (moved & mask) | (fill & !mask)
}

/// `prmt`: four bytes of eight, each one selected by four bits; the highest of them replicates the sign.
fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let pair = b << 32 | a & 0xffff_ffff;
    (0..4).fold(0, |value, index| {
        let chosen = selector >> (4 * index);
        let byte = pair >> (8 * (chosen & 7)) & 0xff;
        let sign = if byte & 0x80 == 0 { 0 } else { 0xff };
        value | (if chosen & 8 == 0 { byte } else { sign }) << (8 * index)
    })
}

#[inline]
pub(super) fn bitwise(operation: Bitwise, kind: Type, [a, b, c]: [u64; 3]) -> u64 {
    let bits = u64::from(kind.bits());
    let value = match operation {
        Bitwise::And => a & b,
        Bitwise::Or => a | b,
        Bitwise::Xor => a ^ b,
        Bitwise::Not if kind.class == Class::Predicate => a ^ 1,
        Bitwise::Not => !a,
        Bitwise::ShiftLeft => {
            if b < bits {
                a << b
            } else {
                0
            }
        }
        Bitwise::ShiftRight => {
            let number = kind.number(a);
            match (kind.class, b < bits) {
                (Class::Signed, _) => (number >> b.min(bits - 1)).cast_unsigned(),
                (_, true) => number.cast_unsigned() >> b,
                (_, false) => 0,
            }
        }
        Bitwise::FunnelLeftWrap
        | Bitwise::FunnelLeftClamp
        | Bitwise::FunnelRightWrap
        | Bitwise::FunnelRightClamp => funnel(operation, a, b, c),
        Bitwise::Extract => extract(kind, a, b, c),
        Bitwise::Permute => permute(a, b, c),
        Bitwise::CountOnes => kind.trim(a).count_ones().into(),
        Bitwise::LeadingZeros => u64::from(kind.trim(a).leading_zeros()) - (64 - bits),
        Bitwise::Reverse => a.reverse_bits() >> (64 - bits),
    };
    kind.trim(value)
}

#[inline]
pub(super) fn compare(comparison: Comparison, kind: Type, a: u64, b: u64) -> bool {
    let (is_less, is_equal) = (is_less(kind, a, b), kind.trim(a) == kind.trim(b));
    match comparison.relation {
        Relation::Equal => is_equal,
        Relation::NotEqual => !is_equal,
        Relation::Less => is_less,
        Relation::LessOrEqual => is_less || is_equal,
        Relation::Greater => !is_less && !is_equal,
        Relation::GreaterOrEqual => !is_less,
        Relation::Ordered => true,
        Relation::Unordered => false,
    }
}
