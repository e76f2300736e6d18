//! The largest elements of each block (Aji and Heafield, 2017; Stich et al., 2018).
//!
//! Of n elements k = ceil(ratio * n) are sent, those with the largest magnitude; of equal ones the
//! first. A NaN is larger than all numbers. The others are decoded as 0.
//!
//! Each of the k is its index in the block, two bytes, and its value, four bytes of float32, the
//! lowest byte first; indices ascend.

use std::iter::zip;

use super::{BLOCK, CodecKind, Feedback, Origin, Scheme};
use crate::kernel::{Isa, Loop};
use crate::params::ParamSpec;

pub(super) const KIND: CodecKind = CodecKind {
    name: "topk",
    options: || vec![ParamSpec::share("ratio", 0.01)],
    feedback: Feedback::Unless(true),
    takes_f64: false,
    make: |own| Box::new(TopK { ratio: own[0] }),
};

/// Bytes of an index and its value.
const ENTRY: usize = 6;

struct TopK {
    ratio: f64,
}

impl Scheme for TopK {
    fn bytes(&self, count: usize) -> usize {
        share(self.ratio, count) * ENTRY
    }

    fn encode(&self, isa: Isa, _: Origin, input: &[f32], bytes: &mut [u8]) {
        let (mut room, mut sorted) = ([0; BLOCK], [0; BLOCK]);
        let (magnitudes, sorted) = (&mut room[..input.len()], &mut sorted[..input.len()]);
        isa.run(Magnitudes { of: input, to: magnitudes });
        sorted.copy_from_slice(magnitudes);
        let kept = share(self.ratio, input.len());
        let (_, &mut least, larger) = sorted.select_nth_unstable(input.len() - kept);
        // Of the elements equal to the least one, as many as there is room for.
        let mut equals = kept - larger.iter().filter(|&&magnitude| magnitude > least).count();
        let mut entries = bytes.as_chunks_mut::<ENTRY>().0.iter_mut();
        for (index, (x, &magnitude)) in zip(0u16.., zip(input, &*magnitudes)) {
            if magnitude < least || magnitude == least && equals == 0 {
                continue;
            }
            equals -= usize::from(magnitude == least);
            let Some(entry) = entries.next() else { break };
            entry[..2].copy_from_slice(&index.to_le_bytes());
            entry[2..].copy_from_slice(&x.to_le_bytes());
        }
    }

    fn decode(&self, _: Isa, _: Origin, bytes: &[u8], out: &mut [f32]) -> Result<(), String> {
        let mut next = 0;
        out.fill(0.0);
        for &[low, high, a, b, c, d] in bytes.as_chunks::<ENTRY>().0 {
            let index = usize::from(u16::from_le_bytes([low, high]));
            if index < next || index >= out.len() {
                let count = out.len();
                return Err(format!("has the index {index}; they must ascend, below {count}"));
            }
            next = index + 1;
            out[index] = f32::from_le_bytes([a, b, c, d]);
        }
        Ok(())
    }
}

/// Number of elements sent of so many: at least one.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the elements of a block are few, and the ratio is above 0 and at most 1"
)]
pub(super) fn share(ratio: f64, count: usize) -> usize {
    (ratio * count as f64).ceil() as usize
}

/// The order of elements by their magnitude, as numbers.
struct Magnitudes<'a> {
    of: &'a [f32],
    to: &'a mut [u32],
}

impl Loop for Magnitudes<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (to, x) in zip(self.to, self.of) {
            // The bits of positive floats ascend with their values; all NaN are alike.
            *to = x.abs().to_bits().min(f32::INFINITY.to_bits() + 1);
        }
    }
}
