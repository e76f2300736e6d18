//! Rules on f16 and bf16 that have no instances for them: in tiles of f32 that stay in the cache,
//! with the bits that such instances would give.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use super::rule::{Rule, RuleTarget};
use super::sum::{Pass, SumOrder, Traffic};
use super::{Isa, TILE};
use crate::tensor::DType;

/// Room for a tile of the sum and of the value as f32, and of the rounded sum; written before it is read.
struct Tile {
    sum: [MaybeUninit<f32>; TILE],
    value: [MaybeUninit<f32>; TILE],
    rounded: [MaybeUninit<u16>; TILE],
}

/// See [`Rule::merge`]; the results are written only if the rule `keeps` them.
///
/// # Safety
/// As there; the dtype is f16 or bf16.
pub(super) unsafe fn merge(
    rule: &dyn Rule,
    isa: Isa,
    pass: &Pass<'_>,
    target: &RuleTarget,
    keeps: bool,
) {
    let wide = [MaybeUninit::uninit(); TILE];
    let rounded = [MaybeUninit::uninit(); TILE];
    let mut tile = Tile { sum: wide, value: wide, rounded };
    let narrow = pass.dtype.size();
    for start in (0..pass.count).step_by(TILE) {
        let count = TILE.min(pass.count - start);
        // SAFETY: the caller's promise; the tile has room for `count` elements.
        unsafe {
            tile.add_up(isa, pass, start, count);
            let wide = tile.target(isa, pass, target, start, count);
            let inputs = [tile.sum.as_ptr().cast()];
            let merged = plain(DType::F32, &inputs, &[], count);
            rule.merge(isa, &merged, &wide);
            if !keeps {
                continue;
            }
            let own = (!target.master).then_some(target.value);
            for to in pass.outs.iter().copied().chain(own) {
                let to = (pass.dtype, to.add(start * narrow));
                isa.convert(to, (DType::F32, wide.value.cast_const()), count);
            }
        }
    }
}

fn plain<'a>(dtype: DType, inputs: &'a [*const u8], outs: &'a [*mut u8], count: usize) -> Pass<'a> {
    let (traffic, order, divisor) = (Traffic::Cached, SumOrder::Linear, None);
    Pass { dtype, outs, inputs, count, traffic, order, divisor }
}

impl Tile {
    /// Adds a part of the inputs up, divided and rounded once to the pass's dtype.
    ///
    /// # Safety
    /// `count` elements from `start` on are there, and in the tile.
    unsafe fn add_up(&mut self, isa: Isa, pass: &Pass<'_>, start: usize, count: usize) {
        let sum = self.sum.as_mut_ptr().cast::<u8>();
        let offset = start * pass.dtype.size();
        let inputs: SmallVec<[*const u8; 16]> =
            pass.inputs.iter().map(|input| input.wrapping_add(offset)).collect();
        // SAFETY: the caller's promise.
        unsafe {
            let mut narrow = inputs[0];
            if inputs.len() > 1 || pass.divisor.is_some() {
                let rounded = self.rounded.as_mut_ptr().cast::<u8>();
                let outs = &[rounded][..];
                isa.sum(&Pass { outs, inputs: &inputs, count, traffic: Traffic::Cached, ..*pass });
                narrow = rounded;
            }
            isa.convert((DType::F32, sum), (pass.dtype, narrow), count);
        }
    }

    /// A part of the target in f32: its value in the tile, unless that is f32 itself.
    ///
    /// # Safety
    /// As [`Tile::add_up`].
    unsafe fn target(
        &mut self,
        isa: Isa,
        pass: &Pass<'_>,
        target: &RuleTarget,
        start: usize,
        count: usize,
    ) -> RuleTarget {
        let wide = |array: *mut u8| array.wrapping_add(start * DType::F32.size());
        let mut value = wide(target.value);
        if !target.master {
            value = self.value.as_mut_ptr().cast();
            let from = target.value.wrapping_add(start * pass.dtype.size());
            // SAFETY: the caller's promise.
            unsafe { isa.convert((DType::F32, value), (pass.dtype, from.cast_const()), count) };
        }
        let measured = target.measured.map(wide);
        RuleTarget { value, master: false, states: target.states.map(wide), measured }
    }
}
