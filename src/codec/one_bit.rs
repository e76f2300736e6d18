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

use super::two_bit::in_words;
use super::{Feedback, Kind, Origin, Scheme};
use crate::kernel::{Isa, Loop};
use crate::params::Spec;

pub(super) const KIND: Kind = Kind {
    name: "1bit",
    options: || vec![Spec::positive("threshold", 0.5)],
    feedback: Feedback::Always,
    takes_f64: false,
    #[allow(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
    make: |own| Box::new(OneBit { threshold: own[0] as f32 }),
};

/// Elements in four bytes.
const WORD: usize = 32;

struct OneBit {
    threshold: f32,
}

impl Scheme for OneBit {
    fn bytes(&self, count: usize) -> usize {
        count.div_ceil(WORD) * 4
    }

    fn encode(&self, isa: Isa, _: Origin, input: &[f32], bytes: &mut [u8]) {
        isa.run(Encode { threshold: self.threshold, input, bytes });
    }

    fn decode(&self, isa: Isa, _: Origin, bytes: &[u8], out: &mut [f32]) -> Result<(), String> {
        isa.run(Decode { bytes, out });
        Ok(())
    }
}

/// Where the bit of an element is in its four bytes, read as a little-endian number.
#[inline(always)]
fn place(index: usize) -> usize {
    index ^ 7
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
        in_words(self.input, self.bytes, |numbers: &[f32; WORD]| {
            let bits = zip(0.., numbers);
            bits.fold(0, |word, (i, &x)| word | u32::from(x > self.threshold) << place(i))
        });
    }
}

struct Decode<'a> {
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
                *out = if word >> place(i) & 1 == 0 { -1.0 } else { 1.0 };
            }
        }
    }
}
