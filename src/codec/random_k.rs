//! Random elements of each block, equal ones at sender and receiver (Stich et al., 2018).
//!
//! Of n elements k = ceil(ratio * n) are sent; every choice of k is equally likely. The others are
//! decoded as 0. The bytes hold only the values sent, four bytes of float32 each with the lowest
//! first. Their indices follow from the seed and the origin of the block.

use std::hash::Hasher;
use std::iter::zip;

use siphasher::sip::SipHasher24;

use super::top_k::share;
use super::{BLOCK, CodecKind, Feedback, Origin, Scheme};
use crate::kernel::Isa;
use crate::params::ParamSpec;

pub(super) const KIND: CodecKind = CodecKind {
    name: "randomk",
    options: || vec![ParamSpec::share("ratio", 0.01), ParamSpec::count("seed")],
    feedback: Feedback::Unless(true),
    takes_f64: false,
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count is a whole number below 2^53"
    )]
    make: |own| Box::new(RandomK { ratio: own[0], seed: own[1] as u64 }),
};

struct RandomK {
    ratio: f64,
    seed: u64,
}

impl Scheme for RandomK {
    fn bytes(&self, count: usize) -> usize {
        share(self.ratio, count) * 4
    }

    fn encode(&self, _: Isa, origin: Origin, input: &[f32], bytes: &mut [u8]) {
        let chosen = Chosen::new(self.stream(origin), share(self.ratio, input.len()), input.len());
        for (bytes, index) in zip(bytes.as_chunks_mut().0, chosen.indices()) {
            *bytes = input[index].to_le_bytes();
        }
    }

    fn decode(&self, _: Isa, origin: Origin, bytes: &[u8], out: &mut [f32]) -> Result<(), String> {
        let chosen = Chosen::new(self.stream(origin), share(self.ratio, out.len()), out.len());
        out.fill(0.0);
        for (&bytes, index) in zip(bytes.as_chunks().0, chosen.indices()) {
            out[index] = f32::from_le_bytes(bytes);
        }
        Ok(())
    }
}

impl RandomK {
    /// Start of a block's random stream: a hash of all its inputs.
    fn stream(&self, Origin { key, rank, round, block }: Origin) -> u64 {
        let mut hasher = SipHasher24::new();
        for number in [self.seed, key, rank, round, block] {
            hasher.write(&number.to_le_bytes());
        }
        hasher.finish()
    }
}

/// The n-th number of a stream: `SplitMix64` (Steele, Lea and Flood, 2014).
fn random(stream: u64, n: u64) -> u64 {
    let state = stream.wrapping_add((n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// A set of indices of a block, a bit for each.
struct Chosen([u64; BLOCK / 64]);

impl Chosen {
    /// A random subset: algorithm F2 of Bentley and Floyd, "A sample of brilliance", 1987.
    #[allow(clippy::cast_possible_truncation, reason = "below the number of elements")]
    fn new(stream: u64, wanted: usize, count: usize) -> Self {
        let mut chosen = Self([0; BLOCK / 64]);
        for (n, last) in zip(0.., count - wanted..count) {
            let wide = u128::from(random(stream, n)) * (last as u128 + 1);
            let pick = (wide >> 64) as usize;
            chosen.add(if chosen.has(pick) { last } else { pick });
        }
        chosen
    }

    fn has(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    fn add(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    /// The indices, ascending.
    fn indices(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(at, &word)| {
            let next = |word: &u64| Some(word & (word - 1)).filter(|word| *word != 0);
            let words = std::iter::successors(Some(word).filter(|word| *word != 0), next);
            words.map(move |word| at * 64 + word.trailing_zeros() as usize)
        })
    }
}
