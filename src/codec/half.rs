//! Half the bytes: f16 or bf16, rounded to nearest even.
//!
//! Each element is two bytes, the lower one first. Values too large for f16 become infinite.

use std::iter::zip;

use super::{BLOCK, CodecKind, Feedback, Origin, Scheme};
use crate::kernel::Isa;
use crate::tensor::DType;

pub(super) const FP16: CodecKind = kind("fp16", |_| Box::new(Half(DType::F16)));
pub(super) const BF16: CodecKind = kind("bf16", |_| Box::new(Half(DType::BF16)));

const fn kind(name: &'static str, make: fn(&[f64]) -> Box<dyn Scheme>) -> CodecKind {
    CodecKind { name, options: Vec::new, feedback: Feedback::Unless(false), takes_f64: true, make }
}

struct Half(DType);

impl Scheme for Half {
    fn bytes(&self, count: usize) -> usize {
        2 * count
    }

    fn encode(&self, isa: Isa, _: Origin, input: &[f32], bytes: &mut [u8]) {
        let mut room = [0; BLOCK];
        let bits = &mut room[..input.len()];
        isa.narrow(self.0, bits, input);
        zip(bytes.as_chunks_mut().0, bits).for_each(|(bytes, bits)| *bytes = bits.to_le_bytes());
    }

    fn decode(&self, isa: Isa, _: Origin, bytes: &[u8], out: &mut [f32]) -> Result<(), String> {
        let mut room = [0; BLOCK];
        let bits = &mut room[..out.len()];
        zip(&mut *bits, bytes.as_chunks().0)
            .for_each(|(bits, &bytes)| *bits = u16::from_le_bytes(bytes));
        isa.widen(self.0, out, bits);
        Ok(())
    }
}
