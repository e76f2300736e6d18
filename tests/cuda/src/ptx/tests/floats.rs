//! Arithmetic, comparisons and conversions of floats.

use super::exact::{self, Format};
use super::{assert_rows, evaluate};

const NAN: u64 = 0x7fff_ffff;
const NAN_64: u64 = 0x7ff8_0000_0000_0000;
const INFINITY: u64 = 0x7f80_0000;
const MINUS_ZERO: u64 = 0x8000_0000;

fn bits(value: f32) -> u64 {
    value.to_bits().into()
}

#[test]
fn sums_round_to_nearest_with_ties_to_even() {
    let (one, ulp) = (bits(1.0), bits(f32::EPSILON));
    let half = bits(f32::EPSILON / 2.0);
    let rows = [
        ([one, half], one),
        ([one + 1, half], one + 2),
        ([one, ulp], one + 1),
        ([one, one ^ MINUS_ZERO], 0),
        ([MINUS_ZERO, MINUS_ZERO], MINUS_ZERO),
        // Subnormal numbers are kept, in and out.
        ([1, 1], 2),
        ([0x0080_0000, MINUS_ZERO | 1], 0x007f_ffff),
        ([0x7f7f_ffff, 0x7f7f_ffff], INFINITY),
        ([INFINITY, INFINITY | MINUS_ZERO], NAN),
        ([0x7f80_0001, one], NAN),
        ([one, 0xffc0_1234], NAN),
    ];
    assert_rows("add.rn.f32", "f32", ["f32"; 2], &rows);
    assert_rows("sub.rn.f32", "f32", ["f32"; 2], &[([one, one], 0), ([INFINITY, INFINITY], NAN)]);
    let one = 1.0_f64.to_bits();
    let tiny = (f64::EPSILON / 2.0).to_bits();
    let rows = [
        ([one, tiny], one),
        ([one + 1, tiny], one + 2),
        ([1, 1], 2),
        ([0xfff0_0000_0000_0001, one], NAN_64),
    ];
    assert_rows("add.rn.f64", "f64", ["f64"; 2], &rows);
    assert_rows("sub.rn.f64", "f64", ["f64"; 2], &[([one, one], 0)]);
}

#[test]
fn products_quotients_and_roots_of_special_values() {
    let rows = [
        ([0, INFINITY], NAN),
        ([MINUS_ZERO, bits(3.0)], MINUS_ZERO),
        ([bits(0.5), 1], 0),
        ([bits(0.5), 3], 2),
        ([INFINITY, bits(-1.0)], INFINITY | MINUS_ZERO),
    ];
    assert_rows("mul.rn.f32", "f32", ["f32"; 2], &rows);
    let rows = [
        ([bits(1.0), 0], INFINITY),
        ([bits(1.0), MINUS_ZERO], INFINITY | MINUS_ZERO),
        ([0, 0], NAN),
        ([INFINITY, INFINITY], NAN),
        ([bits(1.0), INFINITY], 0),
        ([bits(1.0), bits(3.0)], 0x3eaa_aaab),
    ];
    assert_rows("div.rn.f32", "f32", ["f32"; 2], &rows);
    let rows = [
        ([bits(2.0)], 0x3fb5_04f3),
        ([MINUS_ZERO], MINUS_ZERO),
        ([bits(-1.0)], NAN),
        ([INFINITY], INFINITY),
    ];
    assert_rows("sqrt.rn.f32", "f32", ["f32"], &rows);
    let rows = [([2.0_f64.to_bits()], 0x3ff6_a09e_667f_3bcd), ([(-1.0_f64).to_bits()], NAN_64)];
    assert_rows("sqrt.rn.f64", "f64", ["f64"], &rows);
}

#[test]
fn products_quotients_and_roots_are_those_of_exact_integers() {
    let mut draw = exact::Draw::new(3);
    for _ in 0..400 {
        for (format, kind) in [(Format::F32, "f32"), (Format::F64, "f64")] {
            let (a, b) = (draw.finite(format), draw.finite(format));
            let two = [(kind, a), (kind, b)];
            let is = |name: &str, sources: &[(&str, u64)], expected: u64| {
                let form = format!("{name}.rn.{kind}");
                assert_eq!(evaluate(&form, kind, sources), expected, "{form} of {a:#x}, {b:#x}");
            };
            is("mul", &two, exact::product(format, a, b));
            is("div", &two, exact::quotient(format, a, b));
            let a = a & !format.sign();
            is("sqrt", &[(kind, a)], exact::root(format, a));
        }
    }
}

#[test]
fn the_lesser_of_two_floats_is_the_number() {
    let (one, two) = (bits(1.0), bits(2.0));
    let both = [
        ([one, two], one),
        ([0, MINUS_ZERO], MINUS_ZERO),
        ([MINUS_ZERO, 0], MINUS_ZERO),
        ([NAN, two], two),
        ([two, 0x7f80_0001], two),
        ([0xffff_ffff, NAN], NAN),
    ];
    assert_rows("min.f32", "f32", ["f32"; 2], &both);
    let both = [([one, two], two), ([0, MINUS_ZERO], 0), ([MINUS_ZERO, 0], 0), ([NAN, two], two)];
    assert_rows("max.f32", "f32", ["f32"; 2], &both);
    let (one, two) = (1.0_f64.to_bits(), 2.0_f64.to_bits());
    assert_rows("min.f64", "f64", ["f64"; 2], &[([one, two], one), ([NAN_64, two], two)]);
    assert_rows("max.f64", "f64", ["f64"; 2], &[([one, two], two)]);
}

#[test]
fn signs_change_without_arithmetic() {
    assert_rows("neg.f32", "f32", ["f32"], &[([0], MINUS_ZERO), ([0x7f80_0001], 0xff80_0001)]);
    assert_rows("abs.f32", "f32", ["f32"], &[([MINUS_ZERO], 0), ([bits(-2.5)], bits(2.5))]);
    assert_rows("neg.f64", "f64", ["f64"], &[([0], 1 << 63)]);
    assert_rows("abs.f64", "f64", ["f64"], &[([(-2.5_f64).to_bits()], 2.5_f64.to_bits())]);
}

#[test]
fn comparisons_with_a_nan_hold_only_with_the_suffix_u() {
    let (one, two) = (bits(1.0), bits(2.0));
    // Results for (1, 2), (2, 1), (1, 1), (0, -0) and (1, NaN).
    let table = [
        ("eq", [0, 0, 1, 1, 0]),
        ("ne", [1, 1, 0, 0, 0]),
        ("lt", [1, 0, 0, 0, 0]),
        ("le", [1, 0, 1, 1, 0]),
        ("gt", [0, 1, 0, 0, 0]),
        ("ge", [0, 1, 1, 1, 0]),
        ("equ", [0, 0, 1, 1, 1]),
        ("neu", [1, 1, 0, 0, 1]),
        ("ltu", [1, 0, 0, 0, 1]),
        ("leu", [1, 0, 1, 1, 1]),
        ("gtu", [0, 1, 0, 0, 1]),
        ("geu", [0, 1, 1, 1, 1]),
        ("num", [1, 1, 1, 1, 0]),
        ("nan", [0, 0, 0, 0, 1]),
    ];
    let sources = [[one, two], [two, one], [one, one], [0, MINUS_ZERO], [one, NAN]];
    for (relation, results) in table {
        let rows: Vec<_> = sources.into_iter().zip(results).collect();
        assert_rows(&format!("setp.{relation}.f32"), "pred", ["f32"; 2], &rows);
        let wide = |bits: u64| f64::from(f32::from_bits(bits as u32)).to_bits();
        let rows: Vec<_> = rows.iter().map(|(pair, result)| (pair.map(wide), *result)).collect();
        assert_rows(&format!("setp.{relation}.f64"), "pred", ["f64"; 2], &rows);
    }
}

#[test]
fn floats_become_wider_and_narrower() {
    let wide = |value: f64| value.to_bits();
    assert_rows(
        "cvt.f64.f32",
        "f64",
        ["f32"],
        &[
            ([1], wide(f64::from(f32::from_bits(1)))),
            ([INFINITY], wide(f64::INFINITY)),
            ([NAN], NAN_64),
        ],
    );
    let rows = [
        ([wide(1.0 + 2.0_f64.powi(-24))], bits(1.0)),
        ([wide(1.0 + 3.0 * 2.0_f64.powi(-24))], bits(1.0) + 2),
        ([wide(1.0 + 2.0_f64.powi(-24) + 2.0_f64.powi(-50))], bits(1.0) + 1),
        ([wide(2.0_f64.powi(-150))], 0),
        ([wide(1.5 * 2.0_f64.powi(-150))], 1),
        ([wide(3.5e38)], INFINITY),
        ([NAN_64], NAN),
    ];
    assert_rows("cvt.rn.f32.f64", "f32", ["f64"], &rows);
    let mut draw = exact::Draw::new(5);
    for _ in 0..1_000 {
        let value = draw.finite(Format::F64);
        let expected = exact::narrowed(value);
        assert_eq!(evaluate("cvt.rn.f32.f64", "f32", &[("f64", value)]), expected, "{value:#x}");
    }
}

#[test]
fn integers_become_floats_with_one_rounding() {
    assert_rows("cvt.rn.f32.s16", "f32", ["s16"], &[([0xffff], bits(-1.0))]);
    assert_rows("cvt.rn.f32.u16", "f32", ["u16"], &[([0xffff], bits(65535.0))]);
    assert_rows(
        "cvt.rn.f32.s32",
        "f32",
        ["s32"],
        &[([0xffff_ffff], bits(-1.0)), ([0x0100_0001], bits(16_777_216.0))],
    );
    assert_rows("cvt.rn.f32.u32", "f32", ["u32"], &[([0xffff_ffff], bits(4_294_967_296.0))]);
    assert_rows(
        "cvt.rn.f64.s32",
        "f64",
        ["s32"],
        &[([0x8000_0000], (-2_147_483_648.0_f64).to_bits())],
    );
    assert_rows(
        "cvt.rn.f64.u32",
        "f64",
        ["u32"],
        &[([0xffff_ffff], 4_294_967_295.0_f64.to_bits())],
    );
    let mut draw = exact::Draw::new(7);
    for _ in 0..500 {
        let value = draw.next() >> (draw.next() % 64);
        for (format, kind) in [(Format::F32, "f32"), (Format::F64, "f64")] {
            let expected = exact::of_integer(format, value);
            let result = evaluate(&format!("cvt.rn.{kind}.u64"), kind, &[("u64", value)]);
            assert_eq!(result, expected, "{kind} of {value}");
            let negative = value.min(i64::MAX.cast_unsigned()).max(1);
            let expected = exact::of_integer(format, negative) | format.sign();
            let result =
                evaluate(&format!("cvt.rn.{kind}.s64"), kind, &[("s64", negative.wrapping_neg())]);
            assert_eq!(result, expected, "{kind} of -{negative}");
        }
    }
}

#[test]
fn floats_become_integers_of_four_roundings_within_the_range() {
    let pairs = [(2.5, [2, 2, 2, 3]), (3.5, [4, 3, 3, 4]), (0.25, [0, 0, 0, 1]), (7.0, [7; 4])];
    for (value, results) in pairs {
        for (rounding, expected) in ["rni", "rzi", "rmi", "rpi"].into_iter().zip(results) {
            for kind in ["s32", "u32", "s64", "u64"] {
                let form = |from: &str| format!("cvt.{rounding}.{kind}.{from}");
                assert_rows(&form("f32"), kind, ["f32"], &[([bits(value)], expected)]);
                assert_rows(
                    &form("f64"),
                    kind,
                    ["f64"],
                    &[([f64::from(value).to_bits()], expected)],
                );
            }
        }
    }
    let rows = [
        ([bits(-2.5)], 0xffff_fffe),
        ([bits(3e9)], 0x7fff_ffff),
        ([bits(-3e9)], 0x8000_0000),
        ([NAN], 0),
        ([INFINITY], 0x7fff_ffff),
    ];
    assert_rows("cvt.rzi.s32.f32", "s32", ["f32"], &rows);
    assert_rows(
        "cvt.rzi.u32.f32",
        "u32",
        ["f32"],
        &[([bits(-2.5)], 0), ([bits(5e9)], 0xffff_ffff)],
    );
    assert_rows("cvt.rzi.u64.f64", "u64", ["f64"], &[([f64::INFINITY.to_bits()], u64::MAX)]);
    assert_rows("cvt.rzi.s64.f64", "s64", ["f64"], &[([f64::NEG_INFINITY.to_bits()], 1 << 63)]);
    assert_rows("cvt.rzi.s16.f32", "s16", ["f32"], &[([bits(40_000.0)], 0x7fff)]);
    assert_rows(
        "cvt.rmi.f32.f32",
        "f32",
        ["f32"],
        &[([bits(-2.5)], bits(-3.0)), ([MINUS_ZERO], MINUS_ZERO)],
    );
    assert_rows("cvt.rpi.f32.f32", "f32", ["f32"], &[([bits(-0.5)], MINUS_ZERO)]);
    assert_rows("cvt.rni.f32.f32", "f32", ["f32"], &[([bits(2.5)], bits(2.0))]);
    assert_rows(
        "cvt.rzi.f64.f64",
        "f64",
        ["f64"],
        &[([(-2.9_f64).to_bits()], (-2.0_f64).to_bits())],
    );
}
