//! Sums that are divided by a number (also called: means, averages): in tiles that stay in the cache, so that
//! the loops of sums and rules have no instances for them.

use std::slice::from_raw_parts_mut;

use smallvec::SmallVec;

use super::loops::Loop;
use super::sum::Pass;
use super::{Isa, TILE};
use crate::tensor::DType;

/// Adds the inputs of a pass of floats up as [`Isa::sum`] does, f16 and bf16 unrounded, divides the sum by a
/// number, rounded to f32 or f64, and rounds the quotient once to the pass's dtype.
///
/// # Safety
/// As there.
pub(super) unsafe fn sum(isa: Isa, pass: &Pass<'_>, divisor: f64) {
    let (item, full) = (pass.dtype.size(), pass.dtype.full());
    let mut room = [0.0f64; TILE];
    let mut widened = Widened::of(pass);
    for start in (0..pass.count).step_by(TILE) {
        let count = TILE.min(pass.count - start);
        let tile = room.as_mut_ptr().cast::<u8>();
        let inputs: SmallVec<[*const u8; 16]> =
            pass.inputs.iter().map(|input| input.wrapping_add(start * item)).collect();
        // SAFETY: the caller's promise; the tile has room for `count` elements of full precision, and every
        // input has been read before an out that may be it is written.
        unsafe {
            let inputs = widened.widen(isa, pass.dtype, &inputs, count);
            let (outs, traffic) = (&[tile][..], pass.traffic.stored());
            let add = Pass { dtype: full, outs, inputs, count, traffic, divisor: None, ..*pass };
            isa.sum(&add);
            match full {
                DType::F64 => isa.run(Divide { numbers: &mut room[..count], divisor }),
                _ => isa.run(Divide {
                    numbers: from_raw_parts_mut(tile.cast::<f32>(), count),
                    divisor: rounded(divisor),
                }),
            }
            for out in pass.outs {
                let out = (pass.dtype, out.wrapping_add(start * item));
                isa.convert(out, (full, tile.cast_const()), count);
            }
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
fn rounded(divisor: f64) -> f32 {
    divisor as f32
}

/// A tile of each input of f16 or bf16 in f32.
struct Widened {
    room: Vec<f32>,
    inputs: SmallVec<[*const u8; 16]>,
}

impl Widened {
    fn of(pass: &Pass<'_>) -> Self {
        let elements = if pass.dtype.is_half() { TILE * pass.inputs.len() } else { 0 };
        Self { room: vec![0.0; elements], inputs: SmallVec::new() }
    }

    /// The inputs in full precision: themselves, unless they are of f16 or bf16.
    ///
    /// # Safety
    /// Each input has `count` elements of the dtype, at most [`TILE`].
    unsafe fn widen<'a>(
        &'a mut self,
        isa: Isa,
        dtype: DType,
        inputs: &'a [*const u8],
        count: usize,
    ) -> &'a [*const u8] {
        if self.room.is_empty() {
            return inputs;
        }
        self.inputs.clear();
        for (tile, input) in self.room.chunks_exact_mut(TILE).zip(inputs) {
            let tile = tile.as_mut_ptr().cast::<u8>();
            // SAFETY: the caller's promise; a tile is its own memory.
            unsafe { isa.convert((DType::F32, tile), (dtype, *input), count) };
            self.inputs.push(tile.cast_const());
        }
        &self.inputs
    }
}

/// Divides numbers, each rounded to nearest even: by a reciprocal the mean of equal numbers would not be exact.
struct Divide<'a, T> {
    numbers: &'a mut [T],
    divisor: T,
}

impl<T: Copy + std::ops::DivAssign> Loop for Divide<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for number in self.numbers {
            *number /= self.divisor;
        }
    }
}
