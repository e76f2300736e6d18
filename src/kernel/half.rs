//! f16 and bf16 to and from f32, over arrays. All builds agree bit for bit.

/// How a build converts between f16 and f32; bf16 is the same everywhere.
pub(super) trait HalfArrays {
    /// Widens `src` into `dst`, which has the same length.
    ///
    /// # Safety
    /// The instruction set of the implementor is there.
    unsafe fn widen_f16(dst: &mut [f32], src: &[u16]);

    /// Rounds `src` to nearest even into `dst`, which has the same length.
    ///
    /// # Safety
    /// The instruction set of the implementor is there.
    unsafe fn narrow_f16(dst: &mut [u16], src: &[f32]);
}

/// Integer arithmetic only.
pub(super) struct PortableHalf;

impl HalfArrays for PortableHalf {
    #[inline(always)]
    unsafe fn widen_f16(dst: &mut [f32], src: &[u16]) {
        for (wide, &narrow) in dst.iter_mut().zip(src) {
            *wide = f16_to_f32(narrow);
        }
    }

    #[inline(always)]
    unsafe fn narrow_f16(dst: &mut [u16], src: &[f32]) {
        for (narrow, &wide) in dst.iter_mut().zip(src) {
            *narrow = f32_to_f16(wide);
        }
    }
}

/// The value of an f16; a signalling NaN becomes quiet.
#[inline(always)]
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7FFF);
    let magnitude = match rest {
        0x7C01.. => 0x7FC0_0000 | rest << 13,
        0x7C00 => 0x7F80_0000,
        0x0400.. => (rest << 13) + (112 << 23),
        // Denormals are multiples of 2^-24, which f32 has as normal numbers.
        #[allow(clippy::cast_precision_loss, reason = "below 2^10")]
        _ => (rest as f32 * f32::from_bits(0x3380_0000)).to_bits(),
    };
    f32::from_bits(sign | magnitude)
}

/// The nearest f16, ties to even; a NaN keeps its sign and top bits and becomes quiet.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the values fit in 15 bits")]
pub(super) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let rest = bits & 0x7FFF_FFFF;
    let magnitude = match rest {
        0x7F80_0001.. => 0x7E00 | (rest >> 13 & 0x3FF),
        // 65520 and above round to infinity.
        0x477F_F000.. => 0x7C00,
        // 2^-14 and above: normal numbers. The carry of the rounding moves into the exponent.
        0x3880_0000.. => (rest - (112 << 23) + 0xFFF + (rest >> 13 & 1)) >> 13,
        // Adding 0.5 lets the hardware round at 2^-24, the unit of f16 denormals.
        _ => (f32::from_bits(rest) + 0.5).to_bits() - 0x3F00_0000,
    };
    sign | magnitude as u16
}

/// The value of a bf16.
#[inline(always)]
pub(super) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bf16, ties to even; a NaN keeps its sign and top bits and becomes quiet.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "shifted down to 16 bits")]
pub(super) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
}

/// The f32 next to an f64 that rounds like the f64 itself when rounded again to 22 bits or fewer:
/// inexact results are rounded to odd (Boldo and Melquiond, "Emulation of FMA and correctly
/// rounded sums: proved algorithms using rounding to odd", 2008).
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the rounding is the purpose")]
#[allow(clippy::float_cmp, reason = "exactness is the question")]
pub(super) fn f64_to_f32_odd(value: f64) -> f32 {
    let near = value as f32;
    let wide = f64::from(near);
    if wide == value || value.is_nan() {
        return near;
    }
    let toward_zero = near.to_bits() - u32::from(wide.abs() > value.abs());
    f32::from_bits(toward_zero | 1)
}
