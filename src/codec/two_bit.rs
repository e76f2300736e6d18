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

use super::{Feedback, Kind, Origin, Scheme};
use crate::kernel::{Isa, Loop};
use crate::params::Spec;

pub(super) const KIND: Kind = Kind {
    name: "2bit",
    options: || vec![Spec::positive("threshold", 0.5)],
    feedback: Feedback::Always,
    takes_f64: false,
    #[allow(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
    make: |own| Box::new(TwoBit { threshold: own[0] as f32 }),
};

/// Elements in four bytes.
const WORD: usize = 16;

const UP: u32 = 0b11;
const DOWN: u32 = 0b10;
const NAN: u32 = 0b01;

struct TwoBit {
    threshold: f32,
}

impl Scheme for TwoBit {
    fn bytes(&self, count: usize) -> usize {
        count.div_ceil(WORD) * 4
    }

    fn encode(&self, isa: Isa, _: Origin, input: &[f32], bytes: &mut [u8]) {
        isa.run(Encode { threshold: self.threshold, input, bytes });
    }

    fn decode(&self, isa: Isa, _: Origin, bytes: &[u8], out: &mut [f32]) -> Result<(), String> {
        isa.run(Decode { threshold: self.threshold, bytes, out });
        Ok(())
    }
}

/// Where the bits of an element begin in its four bytes, read as a little-endian number.
#[inline(always)]
fn place(index: usize) -> usize {
    2 * (index ^ 3)
}

/// Packs numbers into words of four bytes, after the last of which zeros are packed.
#[inline(always)]
pub(super) fn in_words<const N: usize>(
    input: &[f32],
    bytes: &mut [u8],
    pack: impl Fn(&[f32; N]) -> u32,
) {
    let (whole, rest) = input.as_chunks::<N>();
    let (words, _) = bytes.as_chunks_mut::<4>();
    for (numbers, word) in zip(whole, &mut *words) {
        *word = pack(numbers).to_le_bytes();
    }
    if let Some(word) = words.get_mut(whole.len()) {
        let mut numbers = [0.0; N];
        numbers[..rest.len()].copy_from_slice(rest);
        *word = pack(&numbers).to_le_bytes();
    }
}

struct Encode<'a> {
    threshold: f32,
    input: &'a [f32],
    bytes: &'a mut [u8],
}

impl Loop for Encode<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let code = |x: f32| {
            // At most one of them is not zero.
            let up = if x >= self.threshold { UP } else { 0 };
            let down = if x <= -self.threshold { DOWN } else { 0 };
            let nan = if x.is_nan() { NAN } else { 0 };
            up | down | nan
        };
        in_words(self.input, self.bytes, |numbers: &[f32; WORD]| {
            zip(0.., numbers).fold(0, |word, (i, &x)| word | code(x) << place(i))
        });
    }
}

struct Decode<'a> {
    threshold: f32,
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl Loop for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (out, &word) in zip(self.out.chunks_mut(WORD), self.bytes.as_chunks().0) {
            let word = u32::from_le_bytes(word);
            for (i, out) in out.iter_mut().enumerate() {
                *out = match word >> place(i) & 0b11 {
                    UP => self.threshold,
                    DOWN => -self.threshold,
                    NAN => f32::NAN,
                    _ => 0.0,
                };
            }
        }
    }
}
