//! A byte an element, and a scale for each block.
//!
//! ```text
//! scale = max |x| / 127           of the x that are no NaN
//! q = round(x / scale)            to nearest even, within -127..127; 0 if scale is 0
//! decoded: q * scale, 0 of 0
//! ```
//!
//! A block is its scale, four bytes of float32 with the lowest first, then q of each element; -128
//! stands for a NaN. With an infinity in the block the scale is infinite: infinities are decoded as
//! such, and all other elements as 0.

use std::iter::zip;

use super::{CodecKind, Feedback, Origin, Scheme};
use crate::kernel::{Isa, Loop};

pub(super) const KIND: CodecKind = CodecKind {
    name: "int8",
    options: Vec::new,
    feedback: Feedback::Unless(false),
    takes_f64: false,
    make: |_| Box::new(Int8),
};

/// The largest q.
const MOST: f32 = 127.0;

/// The q of a NaN.
const NAN: i8 = -128;

struct Int8;

impl Scheme for Int8 {
    fn bytes(&self, count: usize) -> usize {
        4 + count
    }

    fn encode(&self, isa: Isa, _: Origin, input: &[f32], bytes: &mut [u8]) {
        let Some((head, quanta)) = bytes.split_first_chunk_mut() else { return };
        let scale = isa.run(Largest { input }) / MOST;
        *head = scale.to_le_bytes();
        if scale > 0.0 && scale < f32::INFINITY {
            isa.run(Quantize { input, scale, quanta });
            return;
        }
        for (quantum, &x) in zip(quanta, input) {
            let extreme = if x.is_infinite() { MOST.copysign(x) } else { 0.0 };
            *quantum = quantum_of(if x.is_nan() { x } else { extreme }, 1.0);
        }
    }

    fn decode(&self, isa: Isa, _: Origin, bytes: &[u8], out: &mut [f32]) -> Result<(), String> {
        let Some((&head, quanta)) = bytes.split_first_chunk() else { return Ok(()) };
        let scale = f32::from_le_bytes(head);
        if scale.is_nan() || scale < 0.0 {
            return Err(format!("has the scale {scale}"));
        }
        isa.run(Restore { quanta, scale, out });
        Ok(())
    }
}

/// The largest magnitude, 0 if there is none.
struct Largest<'a> {
    input: &'a [f32],
}

impl Loop for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        let mut most = 0;
        for x in self.input {
            // The bits of positive floats ascend with their values; above infinity's are NaN.
            let bits = x.abs().to_bits();
            most = most.max(if bits > f32::INFINITY.to_bits() { 0 } else { bits });
        }
        f32::from_bits(most)
    }
}

/// The byte of q.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bits are taken apart")]
fn quantum_of(x: f32, scale: f32) -> u8 {
    // Next to this number floats are one apart: adding it rounds, and leaves q in the low bits.
    const UNITS: f32 = 12_582_912.0;
    let quotient = x / scale;
    let above = if quotient > MOST { MOST } else { quotient };
    let within = if above < -MOST { -MOST } else { above };
    if x.is_nan() { NAN as u8 } else { (within + UNITS).to_bits() as u8 }
}

struct Quantize<'a> {
    input: &'a [f32],
    scale: f32,
    quanta: &'a mut [u8],
}

impl Loop for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (quantum, &x) in zip(self.quanta, self.input) {
            *quantum = quantum_of(x, self.scale);
        }
    }
}

struct Restore<'a> {
    quanta: &'a [u8],
    scale: f32,
    out: &'a mut [f32],
}

impl Loop for Restore<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (out, &quantum) in zip(self.out, self.quanta) {
            let quantum = quantum.cast_signed();
            let number = if quantum == 0 { 0.0 } else { f32::from(quantum) * self.scale };
            *out = if quantum == NAN { f32::NAN } else { number };
        }
    }
}
