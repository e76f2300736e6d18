//! One bit an element: one step up or down (Seide et al., 2014, with steps of 1 as in MXNet 2.0).
//!
//! ```text
//! bit = x > threshold             0 of a NaN
//! decoded: 1 -> +1, 0 -> -1
//! ```
//!
//! Element i is in byte i / 8, the first one in the highest bit; a block ends at a multiple of four
//! bytes, the rest of which is zero.

use std::iter::zip;

use super::{BLOCK, CodecKind, Feedback, Origin, Scheme};
use crate::kernel::{Isa, Loop};
use crate::params::ParamSpec;

pub(super) const KIND: CodecKind = CodecKind {
    name: "1bit",
    options: || vec![ParamSpec::finite("threshold", 0.5)],
    feedback: Feedback::Always,
    takes_f64: false,
    #[allow(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
    make: |own| Box::new(OneBit { threshold: own[0] as f32 }),
};

struct OneBit {
    threshold: f32,
}

impl Scheme for OneBit {
    fn bytes(&self, count: usize) -> usize {
        count.div_ceil(32) * 4
    }

    fn encode(&self, isa: Isa, _: Origin, input: &[f32], bytes: &mut [u8]) {
        isa.run(OneBitEncode { threshold: self.threshold, input, bytes });
    }

    fn decode(&self, isa: Isa, _: Origin, bytes: &[u8], out: &mut [f32]) -> Result<(), String> {
        isa.run(OneBitDecode { bytes, out });
        Ok(())
    }
}

struct OneBitEncode<'a> {
    threshold: f32,
    input: &'a [f32],
    bytes: &'a mut [u8],
}

impl Loop for OneBitEncode<'_> {
    type Output = ();

    /// Two loops that the compiler vectorises: a byte for each element, then eight of them into
    /// one.
    #[inline(always)]
    fn run(self) {
        /// Moves the lowest bit of byte i of a number to bit 63 - i.
        const GATHER: u64 = 0x8040_2010_0804_0201;
        let mut room = [0; BLOCK];
        for (bit, &x) in zip(&mut room, self.input) {
            *bit = u8::from(x > self.threshold);
        }
        for (byte, &bits) in zip(self.bytes, room.as_chunks().0) {
            *byte = (u64::from_le_bytes(bits).wrapping_mul(GATHER) >> 56).to_le_bytes()[0];
        }
    }
}

struct OneBitDecode<'a> {
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl Loop for OneBitDecode<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (whole, rest) = self.out.as_chunks_mut::<8>();
        for (out, &byte) in zip(&mut *whole, self.bytes) {
            steps(byte, out);
        }
        if let Some(&byte) = self.bytes.get(whole.len()) {
            steps(byte, rest);
        }
    }
}

/// The steps of the bits of a byte, the highest first.
#[inline(always)]
fn steps(byte: u8, out: &mut [f32]) {
    let down = !u32::from(byte);
    for (i, out) in out.iter_mut().enumerate() {
        *out = f32::from_bits(1.0f32.to_bits() | (down >> (7 - i)) << 31);
    }
}
