//! Two bits an element: a step of the threshold up or down, or none (MXNet).
//!
//! ```text
//! x >= threshold: 11, decoded +threshold
//! x <= -threshold: 10, decoded -threshold
//! x is a NaN: 01, decoded NaN
//! otherwise: 00, decoded 0
//! ```
//!
//! Element i is in byte i / 4, the first one in the two highest bits; a block ends at a multiple of
//! four bytes, the rest of which is zero.

use std::iter::zip;

use super::{BLOCK, CodecKind, Feedback, Origin, Scheme};
use crate::kernel::{Isa, Loop};
use crate::params::ParamSpec;

pub(super) const KIND: CodecKind = CodecKind {
    name: "2bit",
    options: || vec![ParamSpec::positive("threshold", 0.5)],
    feedback: Feedback::Always,
    takes_f64: false,
    #[allow(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
    make: |own| Box::new(TwoBit { threshold: own[0] as f32 }),
};

/// Elements in four bytes.
const WORD: usize = 16;

const UP: u8 = 0b11;
const DOWN: u8 = 0b10;
const NAN: u8 = 0b01;

struct TwoBit {
    threshold: f32,
}

impl Scheme for TwoBit {
    fn bytes(&self, count: usize) -> usize {
        count.div_ceil(WORD) * 4
    }

    fn encode(&self, isa: Isa, _: Origin, input: &[f32], bytes: &mut [u8]) {
        isa.run(TwoBitEncode { threshold: self.threshold, input, bytes });
    }

    fn decode(&self, isa: Isa, _: Origin, bytes: &[u8], out: &mut [f32]) -> Result<(), String> {
        isa.run(TwoBitDecode { threshold: self.threshold, bytes, out });
        Ok(())
    }
}

struct TwoBitEncode<'a> {
    threshold: f32,
    input: &'a [f32],
    bytes: &'a mut [u8],
}

impl Loop for TwoBitEncode<'_> {
    type Output = ();

    /// Two loops that the compiler vectorises: a byte for each element, then four of them into one.
    #[inline(always)]
    fn run(self) {
        /// Moves the two lowest bits of byte i of a number to bits 30 - 2 i and 31 - 2 i.
        const GATHER: u32 = 0x4010_0401;
        let mut room = [0; BLOCK];
        let (up, down) = (self.threshold, -self.threshold);
        for (code, &x) in zip(&mut room, self.input) {
            // At most one of them is not zero.
            let steps = u8::from(x >= up) * UP + u8::from(x <= down) * DOWN;
            *code = steps + u8::from(x.is_nan()) * NAN;
        }
        for (byte, &codes) in zip(self.bytes, room.as_chunks().0) {
            *byte = (u32::from_le_bytes(codes).wrapping_mul(GATHER) >> 24).to_le_bytes()[0];
        }
    }
}

struct TwoBitDecode<'a> {
    threshold: f32,
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl Loop for TwoBitDecode<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (whole, rest) = self.out.as_chunks_mut::<WORD>();
        let words = self.bytes.as_chunks().0;
        for (out, &word) in zip(&mut *whole, words) {
            steps(word, self.threshold, out);
        }
        if let Some(&word) = words.get(whole.len()) {
            steps(word, self.threshold, rest);
        }
    }
}

/// The steps of the codes in four bytes.
#[inline(always)]
fn steps(word: [u8; 4], threshold: f32, out: &mut [f32]) {
    let word = u32::from_le_bytes(word);
    for (i, out) in out.iter_mut().enumerate() {
        // The first code of a byte is in its highest bits.
        let code = word >> (2 * (i ^ 3));
        let (high, low) = (code >> 1 & 1, code & 1);
        let step = high.wrapping_neg() & threshold.to_bits();
        let sign = (high & !low) << 31;
        let nan = (low & !high).wrapping_neg() & f32::NAN.to_bits();
        *out = f32::from_bits(step | sign | nan);
    }
}
