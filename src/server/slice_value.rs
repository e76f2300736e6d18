//! State of one slice on a server (also called: accumulator): the sum of the open round, and the stored
//! value.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::round_weights::RoundWeights;
use super::row_parts::RowParts;
use super::slice_context::{SliceContext, lent};
use super::slice_merge::{Divided, SliceSum, divide, fold, merge, merge_rows, rows_of};
use super::tree_sum::{Subtree, TreeSum};
use crate::digest::RunDigest;
use crate::error::{Error, Result, fail};
use crate::job::slice_digest;
use crate::job::slice_state::{self, StateUpdate};
use crate::job::sums::sum_dtype;
use crate::job::wanted::{WANT_DIGEST, WANT_ROUND, WANT_ROWS, WANT_STATE, WANT_UNSENT, WANT_VALUE};
use crate::kernel::SumOrder;
use crate::local::digest::state_runs;
use crate::local::merger::{Handling, Merger};
use crate::local::table::{Slot, Value};
use crate::runtime::{Block, BlockPool, Bytes};
use crate::tensor::{Array, Buffer, INSIDE, Lent};
use kvstore_protocol::{Data as _, Failure, Reason};

/// State of one slice, beside the value in its slot. Fields that most slices do not need are behind a
/// pointer: a job may have very many small keys.
#[derive(Default)]
pub(super) struct SliceValue {
    /// Snapshot of the stored value while messages refer to it; the buffer of the slot is empty then. Small
    /// values are copied instead.
    shared: Option<Block>,
    /// Last contribution to the open round.
    last: Option<Bytes>,
    pub(super) weights: RoundWeights,
    extras: Option<Box<SliceExtras>>,
}

/// Rare state of a slice.
#[derive(Default)]
struct SliceExtras {
    /// Sum of the contributions to the open round, except the last.
    sum: Option<SliceSum>,
    /// Contributions to the open round, if sums are those of a tree.
    tree: TreeSum,
    /// Contributions of a round in which a worker pushes rows, in order, with their positions in a tree. The list
    /// keeps its memory.
    pieces: Vec<(u64, StagedPush)>,
    /// Why a contribution to the open round could not be added.
    lost: Option<Error>,
    /// Why the last round was not merged.
    failure: Option<Failure>,
    /// Residuals of codecs that workers have deposited, by rank.
    laid: BTreeMap<u32, Bytes>,
    /// Pushes to count for the codec of a rank beyond those of this key generation, modulo 2^64.
    ahead: BTreeMap<u32, u64>,
}

/// A contribution to single rows, or to all.
enum StagedPush {
    Rows(Bytes),
    Whole(Bytes),
    Sum(SliceSum),
    /// Contribution of consecutive ranks to a tree.
    Subtree(Subtree),
}

impl SliceValue {
    /// Calls `work` with the bytes of the stored value, and with its state.
    pub(super) fn with_stored(&self, slot: &Slot, work: impl FnOnce(&[u8], &Value)) {
        let value = slot.value.own();
        let stored = match &self.shared {
            Some(shared) => shared.bytes(),
            None => value.buffer.bytes(),
        };
        work(&stored[..slot.bytes()], &value);
    }

    /// The digest of the stored value, if it was received with one.
    pub(super) fn received_digest(&self) -> Option<RunDigest> {
        let shared = self.shared.as_ref()?;
        shared.known_digest().map(|sum| RunDigest { sum, len: shared.len() as u64 })
    }

    fn extras_mut(&mut self) -> &mut SliceExtras {
        self.extras.get_or_insert_default()
    }

    fn take_sum(&mut self) -> Option<SliceSum> {
        self.extras.as_mut()?.sum.take()
    }

    fn has_pieces(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| !extras.pieces.is_empty())
    }

    /// Records why a contribution to the open round could not be added.
    pub(super) fn lose(&mut self, error: Error) {
        self.extras_mut().lost.get_or_insert(error);
    }

    /// Why the open round cannot be merged, once.
    pub(super) fn take_lost(&mut self) -> Option<Error> {
        self.extras.as_mut()?.lost.take()
    }

    /// Records why the last round was not merged; None if it was.
    pub(super) fn set_failure(&mut self, failure: Option<Failure>) {
        if failure.is_some() || self.extras.is_some() {
            self.extras_mut().failure = failure;
        }
    }

    /// Why the last round was not merged.
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.extras.as_ref()?.failure.as_ref()
    }

    /// Pushes to count for the codec of a worker beyond those of this key generation.
    pub(super) fn ahead(&self, rank: u64) -> u64 {
        let Some(extras) = &self.extras else { return 0 };
        let ahead = u32::try_from(rank).ok().and_then(|rank| extras.ahead.get(&rank));
        ahead.copied().unwrap_or(0)
    }

    pub(super) fn install(&mut self, of: SliceContext<'_>, data: Bytes) -> Result<()> {
        of.slot.value.own().buffer = own(data, of.blocks)?;
        self.shared = None;
        Ok(())
    }

    /// Applies a restore request.
    pub(super) fn restore(
        &mut self,
        of: SliceContext<'_>,
        data: &Bytes,
        handling: &Handling,
    ) -> Result<()> {
        let read = |bytes: &[u8]| match StateUpdate::read(bytes, of.slot)? {
            (StateUpdate::State, state) => {
                let (merger, mut value) = (handling.merger_of(of.slot.key), of.slot.value.own());
                let restored = slice_state::restore(of.slot, &mut value, state, merger, of.blocks);
                if restored.is_ok() {
                    self.shared = None;
                }
                restored
            }
            (StateUpdate::Laid { rank, .. }, deposit) => {
                let len = deposit.len() as u64;
                self.extras_mut().laid.insert(rank, data.part(data.len() - len, len));
                Ok(())
            }
            (StateUpdate::Taken { rank }, _) => {
                self.extras_mut().laid.remove(&rank);
                Ok(())
            }
            (StateUpdate::Ahead { rank, ahead }, _) => {
                self.extras_mut().ahead.insert(rank, ahead);
                Ok(())
            }
        };
        data.read(read).unwrap_or(Ok(()))
    }

    /// Deposited residual of a worker; empty if there is none.
    fn laid(&self, rank: &[u8], blocks: &Arc<BlockPool>) -> Result<Bytes> {
        let rank = rank.first_chunk().map(|rank| u32::from_le_bytes(*rank));
        let laid = self.extras.as_ref().map(|extras| &extras.laid);
        match rank.and_then(|rank| laid?.get(&rank)) {
            Some(laid) => Ok(laid.clone()),
            None => Ok(Bytes::of_block(blocks.join(&[])?)),
        }
    }

    /// Begins a round.
    pub(super) fn begin(&mut self, first: bool) {
        if !first {
            return;
        }
        self.last = None;
        if let Some(extras) = &mut self.extras {
            extras.sum = None;
            extras.tree.clear();
            extras.pieces.clear();
        }
    }

    /// Adds a contribution to single rows; earlier contributions are kept unsummed.
    pub(super) fn add_rows(&mut self, rank: u64, data: Bytes) {
        let last = self.last.take().map(StagedPush::Whole);
        let extras = self.extras_mut();
        let earlier = extras.sum.take().map(StagedPush::Sum).into_iter().chain(last);
        extras.pieces.extend(earlier.map(|piece| (0, piece)));
        let subtrees = extras.tree.take_all();
        extras.pieces.extend(subtrees.map(|(at, it)| (at, StagedPush::Subtree(it))));
        extras.pieces.push((rank, StagedPush::Rows(data)));
    }

    /// Adds the contribution of the next rank to a tree.
    pub(super) fn add_to_tree(
        &mut self,
        of: SliceContext<'_>,
        first: bool,
        rank: u64,
        data: Bytes,
    ) -> Result<()> {
        self.begin(first);
        let extras = self.extras_mut();
        if extras.pieces.is_empty() {
            return extras.tree.add(of, rank, data);
        }
        extras.pieces.push((rank, StagedPush::Subtree(Subtree::Arrived(data))));
        Ok(())
    }

    /// Adds a contribution after the earlier ones.
    pub(super) fn add(&mut self, of: SliceContext<'_>, first: bool, data: Bytes) -> Result<()> {
        self.begin(first);
        if self.has_pieces() {
            self.extras_mut().pieces.push((0, StagedPush::Whole(data)));
            return Ok(());
        }
        let Some(before) = self.last.replace(data) else { return Ok(()) };
        let extras = self.extras_mut();
        extras.sum = Some(fold(of, extras.sum.take(), &before, None)?);
        Ok(())
    }

    /// Merges the sum of the round into the stored value; gives whether the value is the only contribution now.
    pub(super) fn close(
        &mut self,
        of: SliceContext<'_>,
        by_tree: bool,
        merge_by: Divided<'_>,
    ) -> Result<bool> {
        let divisor = merge_by.divisor;
        if self.has_pieces() {
            return self.close_rows(of, by_tree, merge_by).map(|()| false);
        }
        let SliceContext { slot, blocks, .. } = of;
        let Some(last) = self.last.take() else { return self.close_tree(of, merge_by) };
        let sum = self.take_sum();
        let is_assigned = matches!(merge_by.merger, Merger::Assign);
        if is_assigned && divisor.is_none() && sum.is_none() {
            return self.replace(of, last).map(|()| true);
        }
        self.take_back(of, !is_assigned)?;
        let sum = match sum {
            // Adds the last contribution too, and divides; the merge rounds the sum once.
            Some(sum) if sum.dtype != slot.dtype => Some(fold(of, Some(sum), &last, divisor)?),
            sum => sum,
        };
        let rounded = sum.as_ref().is_some_and(|sum| sum.dtype != slot.dtype);
        let merge_by = if rounded { merge_by.undivided() } else { merge_by };
        let merged = last.read(|bytes| {
            let newest = lent(bytes, slot.dtype);
            let so_far = sum.as_ref().map(|sum| Lent::of(Array::of(&sum.buffer, sum.dtype)));
            let values: SmallVec<[Lent; 2]> = match so_far {
                // The sum includes the last contribution.
                Some(sum) if rounded => smallvec![sum],
                so_far => so_far.into_iter().chain([newest]).collect(),
            };
            merge(of, &values, merge_by)
        });
        if let Some(sum) = sum {
            blocks.give_back(sum.buffer);
        }
        merged.unwrap_or(Ok(())).map(|()| false)
    }

    /// Merges the subtrees of the round; gives whether the value is the only contribution now.
    fn close_tree(&mut self, of: SliceContext<'_>, merge_by: Divided<'_>) -> Result<bool> {
        let SliceContext { slot, blocks, .. } = of;
        let Some(extras) = self.extras.as_mut().filter(|it| !it.tree.is_empty()) else {
            return Ok(false);
        };
        let dtype = sum_dtype(slot.dtype);
        // The merge adds two of them, unless it has to round the sum.
        let most = if dtype == slot.dtype { 2 } else { 1 };
        let mut subtrees = extras.tree.take(of, most)?;
        let is_assigned = matches!(merge_by.merger, Merger::Assign);
        let is_copied = is_assigned && merge_by.divisor.is_none() && most == 2;
        if let ([Subtree::Arrived(_)], true) = (&*subtrees, is_copied)
            && let Some(Subtree::Arrived(only)) = subtrees.pop()
        {
            return self.replace(of, only).map(|()| true);
        }
        self.take_back(of, !is_assigned)?;
        let merged = match &*subtrees {
            [only] if most == 1 => only.with(dtype, |only| divide(of, only, merge_by)),
            [only] => only.with(dtype, |only| merge(of, &[only], merge_by)),
            [left, right] => left
                .with(dtype, |left| right.with(dtype, |right| merge(of, &[left, right], merge_by))),
            _ => Err(fail!(Internal, "a round of {} sums", subtrees.len())),
        };
        subtrees.into_iter().for_each(|it| it.give_back(blocks));
        merged.map(|()| false)
    }

    /// The only contribution becomes the value, without a copy unless it is small.
    fn replace(&mut self, of: SliceContext<'_>, last: Bytes) -> Result<()> {
        if is_small(of.slot) {
            return self.install(of, last);
        }
        let (fresh, none) = (whole(last, of.blocks)?, Buffer::new(0)?);
        if self.shared.replace(fresh).is_none() {
            of.blocks.give_back(std::mem::replace(&mut of.slot.value.own().buffer, none));
        }
        Ok(())
    }

    /// Merges a round of rows.
    fn close_rows(
        &mut self,
        of: SliceContext<'_>,
        by_tree: bool,
        merge_by: Divided<'_>,
    ) -> Result<()> {
        let mut pieces = std::mem::take(&mut self.extras_mut().pieces);
        // A merge of some rows needs the stored content.
        let own = self.take_back(of, true);
        let merged = own.and_then(|()| merge_pieces(of, by_tree, &pieces, merge_by));
        pieces.clear();
        self.extras_mut().pieces = pieces;
        merged
    }

    /// Makes the stored value exclusively owned again, for a change in place; `content` keeps the stored
    /// content, for a merge that does not replace all of it.
    fn take_back(&mut self, of: SliceContext<'_>, content: bool) -> Result<()> {
        let Some(shared) = self.shared.take() else { return Ok(()) };
        match shared.into_buffer() {
            Ok(buffer) => of.slot.value.own().buffer = buffer,
            Err(shared) => {
                // Messages still refer to the block. It remains the value if there is no memory for another.
                let fresh = if content {
                    own(Bytes::of_block(shared.clone()), of.blocks)
                } else {
                    of.blocks.take(of.slot.bytes())
                };
                match fresh {
                    Ok(buffer) => of.slot.value.own().buffer = buffer,
                    Err(error) => {
                        self.shared = Some(shared);
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Data for a request: the stored value, rows of it, a residual, or the whole state.
    pub(super) fn answer(
        &mut self,
        SliceContext { slot, blocks, .. }: SliceContext<'_>,
        wanted: &[u8],
        (handling, known): (Option<&Handling>, Option<RunDigest>),
    ) -> std::result::Result<Bytes, Failure> {
        if let Some(failure) = self.failure().filter(|_| wanted != [WANT_VALUE]) {
            return Err(failure.clone());
        }
        let failed = |error: Error| Failure::new(Reason::Invalid, error.message());
        let shared = self.share(slot, blocks).map_err(failed)?;
        let block = match wanted.split_first() {
            None | Some((&WANT_VALUE, _)) => return Ok(Bytes::of_block(shared)),
            Some((&WANT_UNSENT, rank)) => return self.laid(rank, blocks).map_err(failed),
            Some((&WANT_ROWS, runs)) => rows_of(shared.bytes(), runs, slot, blocks),
            Some((&WANT_STATE, _)) => {
                // State of an earlier rule is dropped: no later push reads it.
                let merger = handling.map_or(&Merger::Assign, |it| it.merger_of(slot.key));
                slice_state::encode(&slot.value.own(), shared.bytes(), merger, blocks)
            }
            Some((&WANT_DIGEST, _)) => {
                let merger = handling.map_or(&Merger::Assign, |it| it.merger_of(slot.key));
                let value = slot.value.own();
                let states = state_runs(merger.optimizer(), &value);
                let whole = || RunDigest::of(&shared.bytes()[..slot.bytes()]);
                let runs = std::iter::once(known.unwrap_or_else(whole));
                blocks.join(&[&slice_digest::encode(runs.chain(states))])
            }
            Some((&WANT_ROUND, _)) => {
                let [contributors, weight] = self.weights.closed().encode();
                blocks.join(&[&contributors, &weight])
            }
            Some(_) => Err(fail!(InvalidArgument, "the pull wants what no server has")),
        };
        block.map(Bytes::of_block).map_err(failed)
    }

    /// Shares the stored value with messages until the next change (also: copy on write). A small one is
    /// copied, so that it takes no memory beside its slot.
    pub(super) fn share(&mut self, slot: &Slot, blocks: &Arc<BlockPool>) -> Result<Block> {
        if let Some(shared) = &self.shared {
            return Ok(shared.clone());
        }
        let stored = &mut slot.value.own().buffer;
        if is_small(slot) {
            return blocks.join(&[stored.bytes()]);
        }
        let buffer = std::mem::replace(stored, Buffer::new(0)?);
        let shared = blocks.wrap(buffer, slot.bytes());
        self.shared = Some(shared.clone());
        Ok(shared)
    }
}

/// Merges the contributions of a round of rows.
fn merge_pieces(
    of: SliceContext<'_>,
    by_tree: bool,
    pieces: &[(u64, StagedPush)],
    merge_by: Divided<'_>,
) -> Result<()> {
    let slot = of.slot;
    let (dtype, order) = if by_tree {
        (sum_dtype(slot.dtype), SumOrder::Tree)
    } else {
        (slot.dtype, SumOrder::Linear)
    };
    let mut parts = RowParts::take();
    let added = pieces.iter().try_for_each(|(position, piece)| {
        let all = match piece {
            StagedPush::Rows(data) => {
                let added = data.read(|bytes| parts.add(*position, (slot, dtype), bytes));
                return added.unwrap_or(Ok(()));
            }
            StagedPush::Whole(data) => data.read(|bytes| lent(bytes, slot.dtype)),
            StagedPush::Sum(sum) => Some(Lent::of(Array::of(&sum.buffer, sum.dtype))),
            StagedPush::Subtree(sum) => Some(sum.with(dtype, Ok)?),
        };
        all.into_iter().for_each(|values| parts.add_all(*position, slot, values));
        Ok(())
    });
    let merged = added.and_then(|()| merge_rows(of, (dtype, order), &mut parts, merge_by));
    parts.leave();
    merged
}

/// Whether the value of a slice lies inside of its slot.
fn is_small(slot: &Slot) -> bool {
    slot.bytes() <= INSIDE
}

/// Buffer of a value that fills a slice; without a copy if no message shares the block.
fn own(data: Bytes, blocks: &Arc<BlockPool>) -> Result<Buffer> {
    let copied = match whole(data, blocks)?.into_buffer() {
        Ok(buffer) => return Ok(buffer),
        Err(shared) => blocks.join(&[shared.bytes()])?,
    };
    copied.into_buffer().map_err(|_| fail!(Internal, "a value without memory"))
}

/// Block of a value that fills a slice.
fn whole(data: Bytes, blocks: &Arc<BlockPool>) -> Result<Block> {
    match data.into_block() {
        Ok(block) => Ok(block),
        Err(data) => {
            let copy = data.read(|bytes| blocks.join(&[bytes])).transpose()?;
            copy.ok_or_else(|| fail!(Internal, "a value without memory"))
        }
    }
}
