//! Codecs: how pushed values travel in fewer bytes, by name and options. Also called: gradient
//! compression.
//!
//! A codec is a pair of pure functions between float32 and bytes, block by block; error feedback
//! comes on top of it (`feedback.rs`). Each of the other files holds one codec: its options, its
//! formula, its layout. A codec knows neither where it runs nor what the numbers are for.
#![allow(
    clippy::inline_always,
    reason = "loops are built inside the entry point of each instruction set"
)]

mod feedback;
mod half;
mod int8;
mod one_bit;
mod random_k;
mod top_k;
mod two_bit;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use feedback::Residuals;

use crate::error::{Result, fail};
use crate::kernel::Isa;
use crate::params::{ParamSpec, Params};
use crate::suggest;
use crate::tensor::DType;

/// Elements that are encoded together. The bytes of consecutive blocks are the bytes of the whole,
/// so that cutting at multiples of a block changes nothing.
pub(crate) const BLOCK: usize = 2048;

/// Every codec there is.
const KINDS: &[CodecKind] = &[
    one_bit::KIND,
    two_bit::KIND,
    half::FP16,
    half::BF16,
    int8::KIND,
    top_k::KIND,
    random_k::KIND,
];

/// The name of no codec.
pub(crate) const NONE: &str = "none";

/// Serial numbers of codecs, so that the residuals of a key are known to be another codec's.
static MADE: AtomicU64 = AtomicU64::new(0);

/// The interface of a codec.
struct CodecKind {
    name: &'static str,
    /// Its own options.
    options: fn() -> Vec<ParamSpec>,
    feedback: Feedback,
    /// Whether it accepts keys of f64, which may lose digits that f32 cannot hold.
    takes_f64: bool,
    /// Creates it from the values of its own options, in order.
    make: fn(&[f64]) -> Box<dyn Scheme>,
}

/// Whether the unsent part is added to the next push (error feedback).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Feedback {
    Always,
    /// An option, with this default.
    Unless(bool),
}

/// Encodes and decodes one block.
trait Scheme: Send + Sync {
    /// The bytes of a block of so many elements; at most eight for each.
    fn bytes(&self, count: usize) -> usize;

    /// Encodes a block into as many bytes as it takes.
    fn encode(&self, isa: Isa, origin: Origin, input: &[f32], bytes: &mut [u8]);

    /// Decodes a block from as many bytes as it takes. The bytes are untrusted: invalid ones are
    /// reported, and no other property of them is assumed.
    fn decode(
        &self,
        isa: Isa,
        origin: Origin,
        bytes: &[u8],
        out: &mut [f32],
    ) -> std::result::Result<(), String>;
}

/// Origin of a block: together with a codec's seed, the seed of its random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) key: u64,
    /// The worker.
    pub(crate) rank: u64,
    /// Number of earlier pushes of the key under this codec.
    pub(crate) round: u64,
    /// The place of the first block among those of the key.
    pub(crate) block: u64,
}

/// A codec with its options.
pub(crate) struct Codec {
    serial: u64,
    kind: &'static CodecKind,
    params: Params,
    feedback: bool,
    scheme: Box<dyn Scheme>,
}

impl Codec {
    /// The codec of a name, with options as `name=value,...`; None for `none`.
    ///
    /// # Errors
    /// `Option`: an unknown name, or a value out of range.
    pub(crate) fn new(name: &str, params: &str) -> Result<Option<Self>> {
        let lower = name.to_ascii_lowercase();
        if lower == NONE {
            let empty = Params::new(Vec::new(), &[]).parse(params);
            return empty.map(|()| None).map_err(|error| error.at("codec none"));
        }
        let Some(kind) = KINDS.iter().find(|kind| kind.name == lower) else {
            let known = [NONE].into_iter().chain(KINDS.iter().map(|kind| kind.name));
            let hint = suggest::near(name, "codecs", known);
            return Err(fail!(Option, "there is no codec {name:?}; {hint}"));
        };
        let mut specs = (kind.options)();
        let strangers: &[_] = match kind.feedback {
            Feedback::Unless(default) => {
                specs.push(ParamSpec::flag("feedback", default));
                &[]
            }
            Feedback::Always => &[("feedback", "is always on with this codec, and no option")],
        };
        let mut parsed = Params::new(specs, strangers);
        parsed.parse(params).map_err(|error| error.at(format_args!("codec {}", kind.name)))?;
        let feedback = kind.feedback == Feedback::Always
            || parsed.values().last().is_some_and(|&on| on != 0.0);
        let scheme = (kind.make)(parsed.values());
        // Relaxed: it only has to be a distinct number.
        let serial = MADE.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Some(Self { serial, kind, params: parsed, feedback, scheme }))
    }

    /// The canonical name.
    pub(crate) fn name(&self) -> &'static str {
        self.kind.name
    }

    /// All options, as [`Codec::new`] takes them.
    pub(crate) fn params(&self) -> String {
        self.params.text()
    }

    /// Refuses keys whose elements the codec cannot take. Integers pass uncompressed.
    pub(crate) fn check(&self, dtype: DType) -> std::result::Result<(), String> {
        let fits = match dtype {
            DType::F64 => self.kind.takes_f64,
            DType::F16 | DType::BF16 => false,
            _ => true,
        };
        if fits {
            return Ok(());
        }
        let taken = if self.kind.takes_f64 { "float32 and float64" } else { "float32" };
        let others = if dtype == DType::F64 { "; fp16 and bf16 take float64 too" } else { "" };
        Err(format!("the codec {} takes {taken} only{others}", self.name()))
    }

    /// The bytes of so many elements.
    pub(crate) fn bytes(&self, count: usize) -> usize {
        let rest = count % BLOCK;
        let rest = if rest == 0 { 0 } else { self.scheme.bytes(rest) };
        count / BLOCK * self.scheme.bytes(BLOCK) + rest
    }

    /// Encodes elements into as many bytes as they take.
    ///
    /// # Panics
    /// If there are more or fewer bytes.
    pub(crate) fn encode(&self, isa: Isa, origin: Origin, input: &[f32], bytes: &mut [u8]) {
        assert!(bytes.len() == self.bytes(input.len()), "as many bytes as the elements take");
        let blocks = input.chunks(BLOCK).zip(bytes.chunks_mut(self.scheme.bytes(BLOCK)));
        for ((input, bytes), block) in blocks.zip(origin.block..) {
            self.scheme.encode(isa, Origin { block, ..origin }, input, bytes);
        }
    }

    /// Decodes elements.
    ///
    /// # Errors
    /// `InvalidArgument` for bytes that are not of so many elements; some may have been decoded.
    pub(crate) fn decode(
        &self,
        isa: Isa,
        origin: Origin,
        bytes: &[u8],
        out: &mut [f32],
    ) -> Result<()> {
        let (name, count, given, wanted) =
            (self.name(), out.len(), bytes.len(), self.bytes(out.len()));
        if given != wanted {
            return Err(fail!(
                InvalidArgument,
                "{name}: {given} bytes; {count} elements take {wanted}"
            ));
        }
        let blocks = out.chunks_mut(BLOCK).zip(bytes.chunks(self.scheme.bytes(BLOCK)));
        for ((out, bytes), block) in blocks.zip(origin.block..) {
            let decoded = self.scheme.decode(isa, Origin { block, ..origin }, bytes, out);
            decoded.map_err(|why| fail!(InvalidArgument, "{name}: block {block} {why}"))?;
        }
        Ok(())
    }
}
