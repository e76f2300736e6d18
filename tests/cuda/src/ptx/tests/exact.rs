//! Floats by integer arithmetic: every result is computed exactly, and rounded once.

/// A format of IEEE 754.
#[derive(Clone, Copy)]
pub(super) struct Format {
    /// Bits of the fraction.
    fraction: u32,
    exponent: u32,
}

impl Format {
    pub(super) const F32: Self = Self { fraction: 23, exponent: 8 };
    pub(super) const F64: Self = Self { fraction: 52, exponent: 11 };

    pub(super) fn sign(self) -> u64 {
        1 << (self.fraction + self.exponent)
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// Sign, and the number as `mantissa * 2^exponent`.
    fn split(self, bits: u64) -> (u64, u128, i32) {
        let field = (bits >> self.fraction & ((1 << self.exponent) - 1)) as i32;
        let fraction = u128::from(bits & ((1 << self.fraction) - 1));
        let (mantissa, field) =
            if field == 0 { (fraction, 1) } else { (fraction | 1 << self.fraction, field) };
        (bits & self.sign(), mantissa, field - self.bias() - self.fraction as i32)
    }

    /// Rounds `mantissa * 2^exponent`, plus a little if `has_rest`, to nearest with ties to even.
    fn round(self, sign: u64, mantissa: u128, exponent: i32, has_rest: bool) -> u64 {
        let least = 1 - self.bias() - self.fraction as i32;
        let length = 128 - mantissa.leading_zeros() as i32;
        let dropped = (length - 1 - self.fraction as i32).max(least - exponent);
        let (kept, rest, half) = if dropped <= 0 {
            assert!(!has_rest, "all bits are there");
            (mantissa << -dropped, 0, 1)
        } else if dropped > 127 {
            (0, u128::from(mantissa != 0), 2)
        } else {
            let half = 1_u128 << (dropped - 1);
            (mantissa >> dropped, mantissa & ((half << 1) - 1), half)
        };
        let is_odd = kept & 1 == 1;
        let is_up = rest > half || (rest == half && (has_rest || is_odd));
        // A carry goes on into the exponent, as the format wants it.
        let kept = (kept + u128::from(is_up)) as u64;
        let exponent = exponent + dropped;
        let field = u64::try_from(exponent - least).unwrap();
        let hidden = 1_u64 << self.fraction;
        let bits = if kept < hidden { kept } else { (field << self.fraction) + kept };
        sign | bits.min(((1 << self.exponent) - 1) << self.fraction)
    }
}

pub(super) fn product(format: Format, a: u64, b: u64) -> u64 {
    let ((sign_a, a, exponent_a), (sign_b, b, exponent_b)) = (format.split(a), format.split(b));
    format.round(sign_a ^ sign_b, a * b, exponent_a + exponent_b, false)
}

/// `b` is not zero.
pub(super) fn quotient(format: Format, a: u64, b: u64) -> u64 {
    let ((sign_a, a, exponent_a), (sign_b, b, exponent_b)) = (format.split(a), format.split(b));
    // Both with their highest bit at the same place: the quotient has 64 bits or more.
    let up = b.leading_zeros().saturating_sub(70);
    let (b, exponent_b) = (b << up, exponent_b - up as i32);
    let up = a.leading_zeros() - 1;
    let (a, exponent_a) = (a << up, exponent_a - up as i32);
    format.round(sign_a ^ sign_b, a / b, exponent_a - exponent_b, a % b != 0)
}

pub(super) fn root(format: Format, a: u64) -> u64 {
    let (_, a, exponent) = format.split(a);
    let up = a.leading_zeros() - 1;
    let up = up - (exponent - up as i32).rem_euclid(2) as u32;
    let (a, exponent) = (a << up, exponent - up as i32);
    let root = a.isqrt();
    format.round(0, root, exponent / 2, root * root != a)
}

pub(super) fn of_integer(format: Format, value: u64) -> u64 {
    if value == 0 { 0 } else { format.round(0, value.into(), 0, false) }
}

/// An f64 as an f32.
pub(super) fn narrowed(value: u64) -> u64 {
    let (sign, mantissa, exponent) = Format::F64.split(value);
    Format::F32.round(sign >> 32, mantissa, exponent, false)
}

/// Random numbers (SplitMix64).
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A finite number that is not zero, every other one with an exponent near that of 1.
    pub(super) fn finite(&mut self, format: Format) -> u64 {
        let mask = (format.sign() << 1).wrapping_sub(1);
        loop {
            let mut bits = self.next() & mask;
            let field = (1 << format.exponent) - 1;
            if self.next() & 1 == 0 {
                let near = (format.bias() as u64) - 20 + self.next() % 40;
                bits = (bits & !(field << format.fraction)) | near << format.fraction;
            }
            if self.next().is_multiple_of(8) {
                // A subnormal number.
                bits &= !(field << format.fraction);
            }
            let exponent = bits >> format.fraction & field;
            if exponent != field && bits & !format.sign() != 0 {
                return bits;
            }
        }
    }
}
