//! Integers, bits, selections and conversions between integers.

use super::assert_rows;

const MIN_32: u64 = 0x8000_0000;
const MIN_64: u64 = 1 << 63;
const ONES_32: u64 = 0xffff_ffff;

#[test]
fn sums_and_differences_wrap() {
    assert_rows("add.s16", "s16", ["s16"; 2], &[([0xffff, 2], 1), ([0x7fff, 1], 0x8000)]);
    assert_rows("add.s32", "s32", ["s32"; 2], &[([ONES_32, 2], 1), ([5, 7], 12)]);
    assert_rows("add.s64", "s64", ["s64"; 2], &[([u64::MAX, 2], 1)]);
    assert_rows("sub.s16", "s16", ["s16"; 2], &[([1, 2], 0xffff)]);
    assert_rows("sub.s32", "s32", ["s32"; 2], &[([1, 2], ONES_32)]);
    assert_rows("sub.u64", "u64", ["u64"; 2], &[([1, 2], u64::MAX)]);
    assert_rows("neg.s32", "s32", ["s32"], &[([1], ONES_32), ([MIN_32], MIN_32)]);
    assert_rows("neg.s64", "s64", ["s64"], &[([1], u64::MAX)]);
    assert_rows("abs.s32", "s32", ["s32"], &[([ONES_32], 1), ([MIN_32], MIN_32), ([7], 7)]);
    assert_rows("abs.s64", "s64", ["s64"], &[([u64::MAX], 1)]);
}

#[test]
fn products_have_a_low_a_high_and_a_wide_form() {
    assert_rows("mul.lo.s16", "s16", ["s16"; 2], &[([0x100, 0x101], 0x0100)]);
    assert_rows("mul.lo.s32", "s32", ["s32"; 2], &[([0x10001, 0x10001], 0x0002_0001)]);
    assert_rows("mul.lo.s64", "s64", ["s64"; 2], &[([u64::MAX, 3], (-3_i64).cast_unsigned())]);
    assert_rows("mul.hi.u32", "u32", ["u32"; 2], &[([ONES_32, ONES_32], 0xffff_fffe)]);
    assert_rows(
        "mul.hi.s32",
        "s32",
        ["s32"; 2],
        &[([ONES_32, ONES_32], 0), ([ONES_32, 1], ONES_32)],
    );
    assert_rows("mul.hi.u64", "u64", ["u64"; 2], &[([u64::MAX, u64::MAX], u64::MAX - 1)]);
    assert_rows("mul.hi.s64", "s64", ["s64"; 2], &[([MIN_64, 2], u64::MAX)]);
    assert_rows("mul.wide.u16", "u32", ["u16"; 2], &[([0xffff, 0xffff], 0xfffe_0001)]);
    assert_rows("mul.wide.s16", "s32", ["s16"; 2], &[([0xffff, 2], 0xffff_fffe)]);
    assert_rows("mul.wide.u32", "u64", ["u32"; 2], &[([ONES_32, ONES_32], 0xffff_fffe_0000_0001)]);
    assert_rows("mul.wide.s32", "s64", ["s32"; 2], &[([ONES_32, 8], (-8_i64).cast_unsigned())]);
    assert_rows("mad.lo.s32", "s32", ["s32"; 3], &[([3, 5, ONES_32], 14)]);
    assert_rows("mad.lo.s64", "s64", ["s64"; 3], &[([3, 5, 1], 16)]);
    assert_rows("mad.hi.u32", "u32", ["u32"; 3], &[([MIN_32, 4, 3], 5)]);
    let wide = ["s32", "s32", "s64"];
    assert_rows("mad.wide.s32", "s64", wide, &[([ONES_32, 8, 10], 2)]);
    assert_rows("mad.wide.u32", "u64", ["u32", "u32", "u64"], &[([MIN_32, 4, 1], (1 << 33) + 1)]);
}

#[test]
fn quotients_are_truncated() {
    let (minus_7, minus_2, minus_1) = (0xffff_fff9, 0xffff_fffe, ONES_32);
    assert_rows(
        "div.s32",
        "s32",
        ["s32"; 2],
        &[([minus_7, 3], minus_2), ([7, minus_2], 0xffff_fffd)],
    );
    assert_rows("rem.s32", "s32", ["s32"; 2], &[([minus_7, 3], minus_1), ([7, minus_2], 1)]);
    assert_rows("div.s32", "s32", ["s32"; 2], &[([MIN_32, minus_1], MIN_32)]);
    assert_rows("div.u32", "u32", ["u32"; 2], &[([minus_7, 2], 0x7fff_fffc)]);
    assert_rows("rem.u32", "u32", ["u32"; 2], &[([minus_7, 2], 1)]);
    assert_rows("div.u64", "u64", ["u64"; 2], &[([u64::MAX, 10], u64::MAX / 10)]);
    assert_rows("rem.u64", "u64", ["u64"; 2], &[([u64::MAX, 10], 5)]);
    assert_rows("div.s64", "s64", ["s64"; 2], &[([u64::MAX, 1], u64::MAX)]);
    assert_rows("rem.s64", "s64", ["s64"; 2], &[([u64::MAX, 2], u64::MAX)]);
}

#[test]
fn the_lesser_of_two_depends_on_the_sign() {
    assert_rows("min.s32", "s32", ["s32"; 2], &[([ONES_32, 1], ONES_32), ([1, ONES_32], ONES_32)]);
    assert_rows("min.u32", "u32", ["u32"; 2], &[([ONES_32, 1], 1)]);
    assert_rows("max.s32", "s32", ["s32"; 2], &[([ONES_32, 1], 1)]);
    assert_rows("max.u32", "u32", ["u32"; 2], &[([ONES_32, 1], ONES_32)]);
    assert_rows("min.s64", "s64", ["s64"; 2], &[([u64::MAX, 1], u64::MAX)]);
    assert_rows("max.u64", "u64", ["u64"; 2], &[([u64::MAX, 1], u64::MAX)]);
}

#[test]
fn shift_amounts_are_clamped_to_the_width() {
    let left = [([1, 31], MIN_32), ([1, 32], 0), ([1, 33], 0), ([1, ONES_32], 0), ([3, 0], 3)];
    assert_rows("shl.b32", "b32", ["b32", "u32"], &left);
    assert_rows("shl.b64", "b64", ["b64", "u32"], &[([1, 63], MIN_64), ([1, 64], 0)]);
    assert_rows("shl.b16", "b16", ["b16", "u32"], &[([1, 15], 0x8000), ([1, 16], 0)]);
    let right = [([MIN_32, 31], 1), ([MIN_32, 32], 0), ([MIN_32, 200], 0)];
    assert_rows("shr.u32", "u32", ["u32", "u32"], &right);
    assert_rows("shr.b32", "b32", ["b32", "u32"], &right);
    let signed = [([MIN_32, 31], ONES_32), ([MIN_32, 32], ONES_32), ([MIN_32, 200], ONES_32)];
    assert_rows("shr.s32", "s32", ["s32", "u32"], &signed);
    assert_rows("shr.s32", "s32", ["s32", "u32"], &[([0x7000_0000, 99], 0)]);
    assert_rows("shr.s16", "s16", ["s16", "u32"], &[([0x8000, 3], 0xf000), ([0x8000, 16], 0xffff)]);
    assert_rows("shr.u16", "u16", ["u16", "u32"], &[([0x8000, 3], 0x1000), ([0x8000, 16], 0)]);
    assert_rows("shr.u64", "u64", ["u64", "u32"], &[([MIN_64, 63], 1), ([MIN_64, 64], 0)]);
    assert_rows("shr.s64", "s64", ["s64", "u32"], &[([MIN_64, 64], u64::MAX)]);
}

#[test]
fn funnel_shifts_wrap_or_clamp() {
    let from = ["b32", "b32", "u32"];
    let (low, high) = (0x89ab_cdef, 0x0123_4567);
    assert_rows(
        "shf.l.wrap.b32",
        "b32",
        from,
        &[([low, high, 8], 0x2345_6789), ([low, high, 40], 0x2345_6789)],
    );
    assert_rows(
        "shf.l.clamp.b32",
        "b32",
        from,
        &[([low, high, 8], 0x2345_6789), ([low, high, 40], low)],
    );
    assert_rows(
        "shf.r.wrap.b32",
        "b32",
        from,
        &[([low, high, 8], 0x6789_abcd), ([low, high, 32], low)],
    );
    assert_rows(
        "shf.r.clamp.b32",
        "b32",
        from,
        &[([low, high, 8], 0x6789_abcd), ([low, high, 32], high)],
    );
}

#[test]
fn logic_works_on_bits_and_predicates() {
    for (kind, ones) in [("16", 0xffff), ("32", ONES_32), ("64", u64::MAX)] {
        let (b, f) = (format!("b{kind}"), |name: &str| format!("{name}.b{kind}"));
        let b = b.as_str();
        assert_rows(&f("and"), b, [b; 2], &[([0b1100, 0b1010], 0b1000)]);
        assert_rows(&f("or"), b, [b; 2], &[([0b1100, 0b1010], 0b1110)]);
        assert_rows(&f("xor"), b, [b; 2], &[([0b1100, 0b1010], 0b0110)]);
        assert_rows(&f("not"), b, [b], &[([0], ones), ([ones], 0)]);
    }
    let all = |results: [u64; 4]| {
        let sources = [[0, 0], [0, 1], [1, 0], [1, 1]];
        sources.into_iter().zip(results).collect::<Vec<_>>()
    };
    assert_rows("and.pred", "pred", ["pred"; 2], &all([0, 0, 0, 1]));
    assert_rows("or.pred", "pred", ["pred"; 2], &all([0, 1, 1, 1]));
    assert_rows("xor.pred", "pred", ["pred"; 2], &all([0, 1, 1, 0]));
    assert_rows("not.pred", "pred", ["pred"], &[([0], 1), ([1], 0)]);
    assert_rows("mov.pred", "pred", ["pred"], &[([0], 0), ([1], 1)]);
}

#[test]
fn bits_are_counted_extracted_and_permuted() {
    assert_rows("popc.b32", "u32", ["b32"], &[([0xf0f0], 8), ([0], 0), ([ONES_32], 32)]);
    assert_rows("popc.b64", "u32", ["b64"], &[([u64::MAX], 64)]);
    assert_rows("clz.b32", "u32", ["b32"], &[([0], 32), ([1], 31), ([MIN_32], 0)]);
    assert_rows("clz.b64", "u32", ["b64"], &[([0], 64), ([1], 63)]);
    assert_rows("brev.b32", "b32", ["b32"], &[([1], MIN_32), ([0b110], 0x6000_0000)]);
    assert_rows("brev.b64", "b64", ["b64"], &[([1], MIN_64)]);
    let fields = ["u32", "u32", "u32"];
    let rows = [([0x1234_5678, 8, 8], 0x56), ([0x1234_5678, 8, 0], 0), ([MIN_32, 28, 16], 8)];
    assert_rows("bfe.u32", "u32", fields, &rows);
    let rows = [
        ([0x0000_8000, 8, 8], 0xffff_ff80),
        ([MIN_32, 28, 16], 0xffff_fff8),
        ([MIN_32, 40, 4], ONES_32),
        ([0x1234_5678, 8, 8], 0x56),
    ];
    assert_rows("bfe.s32", "s32", ["s32", "u32", "u32"], &rows);
    assert_rows("bfe.u64", "u64", ["u64", "u32", "u32"], &[([MIN_64, 60, 9], 8)]);
    assert_rows(
        "bfe.s64",
        "s64",
        ["s64", "u32", "u32"],
        &[([MIN_64, 60, 4], (-8_i64).cast_unsigned())],
    );
    let (low, high) = (0x8321_1000, 0x7654_4a5c);
    let rows = [
        ([low, high, 0x3210], low),
        ([low, high, 0x7654], high),
        ([low, high, 0x4321], 0x5c83_2110),
        // The fourth bit replicates the sign of the byte.
        ([low, high, 0xb08f], 0xff00_0000),
    ];
    assert_rows("prmt.b32", "b32", ["b32"; 3], &rows);
}

#[test]
fn comparisons_depend_on_the_sign() {
    let rows = |results: [u64; 3]| {
        let sources = [[ONES_32, 1], [1, ONES_32], [5, 5]];
        sources.into_iter().zip(results).collect::<Vec<_>>()
    };
    let relations =
        [("lt", [1, 0, 0], [0, 1, 0]), ("le", [1, 0, 1], [0, 1, 1]), ("gt", [0, 1, 0], [1, 0, 0])];
    let others =
        [("ge", [0, 1, 1], [1, 0, 1]), ("eq", [0, 0, 1], [0, 0, 1]), ("ne", [1, 1, 0], [1, 1, 0])];
    for (relation, signed, unsigned) in relations.into_iter().chain(others) {
        assert_rows(&format!("setp.{relation}.s32"), "pred", ["s32"; 2], &rows(signed));
        assert_rows(&format!("setp.{relation}.u32"), "pred", ["u32"; 2], &rows(unsigned));
    }
    assert_rows("setp.lt.s16", "pred", ["s16"; 2], &[([0xffff, 0], 1)]);
    assert_rows("setp.gt.u16", "pred", ["u16"; 2], &[([0xffff, 0], 1)]);
    assert_rows("setp.lt.s64", "pred", ["s64"; 2], &[([u64::MAX, 0], 1)]);
    assert_rows("setp.ge.u64", "pred", ["u64"; 2], &[([u64::MAX, 0], 1)]);
    assert_rows("setp.eq.b32", "pred", ["b32"; 2], &[([4, 4], 1), ([4, 5], 0)]);
}

#[test]
fn a_predicate_selects() {
    for kind in ["b32", "u32", "s32", "f32", "b64", "f64", "b16"] {
        let from = [kind, kind, "pred"];
        assert_rows(&format!("selp.{kind}"), kind, from, &[([7, 9, 1], 7), ([7, 9, 0], 9)]);
    }
}

#[test]
fn moves_keep_the_bits() {
    assert_rows("mov.b16", "b16", ["b16"], &[([0xabcd], 0xabcd)]);
    assert_rows("mov.u32", "u32", ["u32"], &[([ONES_32], ONES_32)]);
    assert_rows("mov.b32", "f32", ["b32"], &[([0x7f80_0001], 0x7f80_0001)]);
    assert_rows("mov.b64", "b64", ["f64"], &[([0x7ff0_0000_0000_0001], 0x7ff0_0000_0000_0001)]);
    assert_rows("mov.f64", "f64", ["f64"], &[([0xfff0_0000_0000_0001], 0xfff0_0000_0000_0001)]);
    assert_rows("cvta.to.global.u64", "u64", ["u64"], &[([77], 77)]);
}

#[test]
fn integers_are_cut_and_extended() {
    assert_rows("cvt.u32.u16", "u32", ["u16"], &[([0xffff], 0xffff)]);
    assert_rows("cvt.s32.s16", "s32", ["s16"], &[([0xffff], ONES_32)]);
    assert_rows("cvt.u16.u32", "u16", ["u32"], &[([0x1_2345], 0x2345)]);
    assert_rows("cvt.u64.u32", "u64", ["u32"], &[([ONES_32], ONES_32)]);
    assert_rows("cvt.s64.s32", "s64", ["s32"], &[([ONES_32], u64::MAX)]);
    assert_rows("cvt.u32.u64", "u32", ["u64"], &[([u64::MAX], ONES_32)]);
    // Eight bits are in registers of 16: the source is cut, the result extended.
    assert_rows("cvt.s16.s8", "s16", ["s8"], &[([0x1280], 0xff80)]);
    assert_rows("cvt.u16.u8", "u16", ["u8"], &[([0x1280], 0x80)]);
    assert_rows("cvt.s32.s8", "s32", ["s8"], &[([0x80], 0xffff_ff80)]);
    assert_rows("cvt.u32.s8", "u32", ["s8"], &[([0x80], 0xffff_ff80)]);
    assert_rows("cvt.s8.s32", "s16", ["s32"], &[([0x1_0080], 0xff80)]);
    assert_rows("cvt.u8.u32", "u16", ["u32"], &[([0x1_0080], 0x80)]);
}
