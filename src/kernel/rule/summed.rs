//! Rules on sums for which rules have no instances, by their order or a divisor: the inputs are added up in tiles that
//! stay in the cache, and a tile is merged as the only input.

use std::mem::MaybeUninit;

use smallvec::SmallVec;

use super::{Rule, RuleTarget};
use crate::kernel::Isa;
use crate::kernel::sum::{Pass, SumOrder};
use crate::tensor::LINE;

/// Bytes of a tile.
const TILE_BYTES: usize = 16 << 10;

/// Room for a tile: as its lines, so that no load of it crosses one.
#[repr(align(64))]
struct Room(MaybeUninit<[u8; TILE_BYTES]>);

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
    // Written before it is read.
    let mut room = Room(MaybeUninit::uninit());
    let sum = room.0.as_mut_ptr().cast::<u8>();
    let (item, full) = (pass.dtype.size(), pass.dtype.full().size());
    let value_item = if target.master { full } else { item };
    // All tiles but the first begin at a line of the outs.
    let ragged = pass.outs.first().map_or(0, |out| out.addr() % LINE);
    let mut start = 0;
    while start < pass.count {
        let bytes = if start == 0 { TILE_BYTES - ragged } else { TILE_BYTES };
        let count = (bytes / item).min(pass.count - start);
        let inputs: SmallVec<[*const u8; 16]> =
            pass.inputs.iter().map(|input| input.wrapping_add(start * item)).collect();
        let outs: SmallVec<[*mut u8; 16]> =
            pass.outs.iter().map(|out| out.wrapping_add(start * item)).collect();
        let part = |array: *mut u8| array.wrapping_add(start * full);
        let target = RuleTarget {
            value: target.value.wrapping_add(start * value_item),
            master: target.master,
            states: target.states.map(part),
            measured: target.measured.map(part),
        };
        let add =
            Pass { outs: &[sum], inputs: &inputs, count, traffic: pass.traffic.stored(), ..*pass };
        let (inputs, order, divisor) = (&[sum.cast_const()][..], SumOrder::Linear, None);
        let merge = Pass { outs: &outs, inputs, count, order, divisor, ..*pass };
        // SAFETY: the caller's promise; the tile has room for `count` elements.
        unsafe {
            isa.sum(&add);
            rule.merge(isa, &merge, &target);
        }
        start += count;
    }
}
