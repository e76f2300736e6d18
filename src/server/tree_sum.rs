//! Sum of a round by the binary tree over ranks (also called: pairwise summation): subtrees that are
//! complete are joined, and a rank that is missing is skipped.

use std::sync::Arc;

use smallvec::SmallVec;

use super::slice_context::{SliceContext, lent};
use crate::error::{Result, fail};
use crate::job::sums::sum_dtype;
use crate::kernel::{PartialSums, Position, SumOrder};
use crate::local::merge::Team;
use crate::local::table::Slot;
use crate::runtime::{BlockPool, Bytes};
use crate::sys::DefaultFloats;
use crate::tensor::{Array, Buffer, DType, Lent};
use kvstore_protocol::Data as _;

/// A slot with the elements of another one, of the dtype of sums.
pub(super) fn wide_slot(slot: &Slot) -> Result<Slot> {
    Slot::new(slot.key, slot.order, sum_dtype(slot.dtype), &slot.shape, slot.count)
}

/// Sum of the contributions of consecutive ranks.
pub(super) enum Subtree {
    /// The contribution of one rank.
    Arrived(Bytes),
    /// A sum in memory of its own.
    Joined(Buffer),
}

impl Subtree {
    /// Calls `read` with the elements.
    pub(super) fn with<T>(&self, dtype: DType, read: impl FnOnce(Lent) -> Result<T>) -> Result<T> {
        match self {
            Self::Joined(buffer) => read(Lent::of(Array::of(buffer, dtype))),
            Self::Arrived(data) => {
                let result = data.read(|bytes| read(lent(bytes, dtype)));
                result.ok_or_else(|| fail!(Internal, "a contribution without memory"))?
            }
        }
    }

    pub(super) fn give_back(self, blocks: &Arc<BlockPool>) {
        if let Self::Joined(buffer) = self {
            blocks.give_back(buffer);
        }
    }
}

/// Subtrees of a round, from the lowest rank. There is at most one for each bit of a rank, and the newest.
#[derive(Default)]
pub(super) struct TreeSum(PartialSums<Subtree>);

impl TreeSum {
    /// Begins a round.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds the contribution of the next rank.
    pub(super) fn add(&mut self, of: SliceContext<'_>, rank: u64, data: Bytes) -> Result<()> {
        let bytes = of.slot.count * sum_dtype(of.slot.dtype).size();
        if data.len() != bytes as u64 {
            return Err(fail!(
                InvalidArgument,
                "a contribution of {} bytes to a slice whose sums have {bytes}",
                data.len()
            ));
        }
        self.0
            .add(Position::from(rank), Subtree::Arrived(data), |left, right| join(of, left, right))
    }

    /// Joins the subtrees until at most so many are left, and takes these.
    pub(super) fn take(
        &mut self,
        of: SliceContext<'_>,
        most: usize,
    ) -> Result<SmallVec<[Subtree; 2]>> {
        self.0.join_to(most, |left, right| join(of, left, right))?;
        Ok(self.0.drain().map(|(_, subtree)| subtree).collect())
    }

    /// Takes the subtrees as they are, each with its lowest rank.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = (u64, Subtree)> {
        // They have come from ranks.
        self.0.drain().map(|(at, subtree)| (u64::try_from(at).unwrap_or(u64::MAX), subtree))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Adds two subtrees, in the memory of one of them if there is any.
fn join(of: SliceContext<'_>, left: Subtree, right: Subtree) -> Result<Subtree> {
    let SliceContext { slot, local, blocks, .. } = of;
    let wide = wide_slot(slot)?;
    let _floats = DefaultFloats::enter();
    let team = Team { order: SumOrder::Linear, ..local.keys.team };
    let fresh = match (&left, &right) {
        (Subtree::Arrived(_), Subtree::Arrived(_)) => Some(blocks.take(wide.bytes())?),
        _ => None,
    };
    left.with(wide.dtype, |first| {
        right.with(wide.dtype, |second| {
            let target = match (&fresh, &left, &right) {
                (Some(buffer), _, _)
                | (None, Subtree::Joined(buffer), _)
                | (None, _, Subtree::Joined(buffer)) => buffer,
                (None, Subtree::Arrived(_), Subtree::Arrived(_)) => {
                    return Err(fail!(Internal, "a sum without memory"));
                }
            };
            team.sum(&wide, &[first, second], target)
        })
    })?;
    Ok(match (fresh, left, right) {
        (Some(buffer), _, _) => Subtree::Joined(buffer),
        (None, left @ Subtree::Joined(_), right) => {
            right.give_back(blocks);
            left
        }
        (None, _, right) => right,
    })
}
