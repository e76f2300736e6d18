//! Conversions between types (`cvt`).
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the casts of Rust are the conversions: floats are rounded to nearest, and clamped to integers"
)]

use super::float::{bits_of_f32, bits_of_f64, f32_of, f64_of};
use super::instruction::{Class, Rounding, Type};

/// An integer as a float. The cast rounds once, from the whole integer.
fn from_integer(from: Type, to: Type, value: u64) -> u64 {
    let number = from.number(value);
    match (from.class == Class::Signed, to == Type::F32) {
        (true, true) => bits_of_f32(number as f32),
        (true, false) => bits_of_f64(number as f64),
        (false, true) => bits_of_f32(number.cast_unsigned() as f32),
        (false, false) => bits_of_f64(number.cast_unsigned() as f64),
    }
}

fn rounded(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value,
        Rounding::ToEven => value.round_ties_even(),
        Rounding::ToZero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

/// A float as an integer: clamped to the range of the type, 0 for a NaN.
fn to_integer(to: Type, value: f64) -> u64 {
    let unused = 64 - to.bits();
    if to.class == Class::Signed {
        (value as i64).clamp(i64::MIN >> unused, i64::MAX >> unused).cast_unsigned()
    } else {
        (value as u64).min(u64::MAX >> unused)
    }
}

/// `register`: the destination, to whose width an integer is extended.
#[inline]
pub(super) fn convert(from: Type, to: Type, register: Type, rounding: Rounding, value: u64) -> u64 {
    if from.class != Class::Float && to.class != Class::Float {
        return register.trim(to.number(from.number(value).cast_unsigned()).cast_unsigned());
    }
    if from.class != Class::Float {
        return from_integer(from, to, value);
    }
    // Every f32 is an f64, and rounding to an integer is the same there.
    let number = if from == Type::F32 { f64::from(f32_of(value)) } else { f64_of(value) };
    let number = rounded(number, rounding);
    match to.class {
        Class::Float if to == Type::F32 => bits_of_f32(number as f32),
        Class::Float => bits_of_f64(number),
        _ => register.trim(to.number(to_integer(to, number)).cast_unsigned()),
    }
}
