//! Rules on sums in an order for which rules have no instances: the inputs are added up in tiles that
//! stay in the cache, and a tile is merged as the only input.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use super::{Rule, RuleTarget};
use crate::kernel::sum::{Pass, SumOrder};
use crate::kernel::{Isa, TILE};

/// See [`Rule::merge`].
///
/// # Safety
/// As there.
pub(in crate::kernel) unsafe fn merge(
    rule: &dyn Rule,
    isa: Isa,
    pass: &Pass<'_>,
    target: &RuleTarget,
) {
    // As many elements of any dtype; written before they are read.
    let mut room = [MaybeUninit::<u64>::uninit(); TILE];
    let sum = room.as_mut_ptr().cast::<u8>();
    let (item, full) = (pass.dtype.size(), pass.dtype.full().size());
    for start in (0..pass.count).step_by(TILE) {
        let count = TILE.min(pass.count - start);
        let inputs: SmallVec<[*const u8; 16]> =
            pass.inputs.iter().map(|input| input.wrapping_add(start * item)).collect();
        let outs: SmallVec<[*mut u8; 16]> =
            pass.outs.iter().map(|out| out.wrapping_add(start * item)).collect();
        let part = |array: *mut u8| array.wrapping_add(start * full);
        let value = if target.master {
            part(target.value)
        } else {
            target.value.wrapping_add(start * item)
        };
        let target = RuleTarget {
            value,
            master: target.master,
            states: target.states.map(part),
            measured: target.measured.map(part),
        };
        let traffic = pass.traffic.stored();
        let add = Pass { outs: &[sum], inputs: &inputs, count, traffic, ..*pass };
        let (inputs, order) = (&[sum.cast_const()][..], SumOrder::Linear);
        let merge = Pass { outs: &outs, inputs, count, traffic, order, ..*pass };
        // SAFETY: the caller's promise; the tile has room for `count` elements.
        unsafe {
            isa.sum(&add);
            rule.merge(isa, &merge, &target);
        }
    }
}
