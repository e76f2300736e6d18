//! Values of a call: their memory is allocated before the call begins; each is lent, summed or encoded when
//! it is sent.
#![allow(unsafe_code, reason = "plain values are lent to the transport as they are")]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::call::{PendingKey, PullTarget};
use super::{WorkerStore, WorkerSums};
use crate::codec::Codec;
use crate::error::{Result, fail};
use crate::job::encoding::{EncodingSource, WorkerResiduals};
use crate::job::sums::{self, SUBTREE};
use crate::local::plan::{KeyGroup, PlannedOut};
use crate::local::table::Slot;
use crate::runtime::{Bytes, Loan};
use crate::sys::DefaultFloats;
use crate::tensor::{Array, Buffer, DType, Lent};
use kvstore_protocol::Data as _;

/// A value to send, not yet read.
pub(super) enum OutgoingValue {
    Made(Bytes),
    /// One plain value of this many bytes, sent from the caller's memory until the call ends.
    Lent {
        start: *const u8,
        bytes: usize,
    },
    /// Several values, and memory for their sum.
    Sum {
        values: Range<usize>,
        sum: Buffer,
        bytes: usize,
    },
    /// Values whose sum is sent in the dtype of sums, in slices of this many bytes of the key's dtype.
    Subtree {
        values: Range<usize>,
        slice_bytes: usize,
        bytes: usize,
    },
    /// Values of which the sum is encoded, in slices of this many bytes.
    Coded {
        values: Range<usize>,
        slice_bytes: usize,
        bytes: usize,
    },
}

/// Lent values of a call, and their codec.
#[derive(Default)]
pub(super) struct CallInputs<'a> {
    pub(super) lent: &'a [Lent],
    pub(super) coding: Option<(&'a Codec, &'a mut WorkerResiduals)>,
    /// Of its pushes.
    pub(super) weight: Option<f64>,
}

/// Maximum number of loans that are tried for one value.
const MOST_TRIES: usize = 4;

/// Loans that have ended, the oldest first. Frames may still refer to some.
#[derive(Default)]
pub(super) struct SpareLoans(VecDeque<Arc<Loan>>);

impl SpareLoans {
    /// Keeps loans, up to a maximum of all.
    pub(super) fn keep(&mut self, loans: impl Iterator<Item = Arc<Loan>>, most: usize) {
        self.0.extend(loans);
        self.0.truncate(most);
    }

    /// Lends memory by a loan to which no frame refers. Frames end in the order of the loans: if some at the front
    /// are in use, so are those behind them, and a search through all would take a time that grows with the
    /// square of a list.
    ///
    /// # Safety
    /// As for [`Loan::new`].
    unsafe fn lend(&mut self, start: *const u8, len: usize) -> Option<Arc<Loan>> {
        for _ in 0..MOST_TRIES {
            let mut loan = self.0.pop_front()?;
            if let Some(ended) = Arc::get_mut(&mut loan) {
                // SAFETY: the caller's promise.
                unsafe { ended.again(start, len) };
                return Some(loan);
            }
            self.0.push_back(loan);
        }
        None
    }
}

impl OutgoingValue {
    /// Bytes of the value.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Made(value) => usize::try_from(value.len()).unwrap_or(usize::MAX),
            Self::Lent { bytes, .. }
            | Self::Sum { bytes, .. }
            | Self::Subtree { bytes, .. }
            | Self::Coded { bytes, .. } => *bytes,
        }
    }
}

/// The destination for the outs of a key.
pub(super) fn part_of(group: KeyGroup, outs: &[PlannedOut]) -> Result<PendingKey> {
    let KeyGroup { slot, outs: range, .. } = group;
    let target = match &outs[range.clone()] {
        [] => PullTarget::Nowhere,
        [only] if only.lent.is_plain(slot.dtype) => PullTarget::Out(only.lent.data()),
        _ => PullTarget::Own(Buffer::fixed(slot.bytes())?),
    };
    Ok(PendingKey::new(slot, target, range))
}

/// A loan, in the memory of one that has ended, if there is one.
///
/// # Safety
/// As for [`Loan::new`].
unsafe fn lend(spare: &mut SpareLoans, start: *const u8, len: usize) -> Arc<Loan> {
    // SAFETY: the caller's promise.
    let again = unsafe { spare.lend(start, len) };
    // SAFETY: the caller's promise.
    again.unwrap_or_else(|| Arc::new(unsafe { Loan::new(start, len) }))
}

impl WorkerStore {
    /// Value that a call sends for a key; None if it only pulls.
    pub(super) fn draft(
        &self,
        KeyGroup { slot, values, .. }: &KeyGroup,
        lent: &[Lent],
        is_coded: bool,
    ) -> Result<Option<OutgoingValue>> {
        let (values, bytes) = (values.clone(), slot.bytes());
        Ok(Some(match &lent[values.clone()] {
            [] => return Ok(None),
            _ if is_coded && slot.dtype.is_float() => {
                OutgoingValue::Coded { values, slice_bytes: self.slice_bytes_of(slot)?, bytes }
            }
            _ if self.sum_dtype(slot.dtype) != slot.dtype => {
                let bytes = slot.count * self.sum_dtype(slot.dtype).size();
                OutgoingValue::Subtree { values, slice_bytes: self.slice_bytes_of(slot)?, bytes }
            }
            [only] if only.is_plain(slot.dtype) => {
                OutgoingValue::Lent { start: only.data(), bytes }
            }
            _ => OutgoingValue::Sum { values, sum: self.driver.blocks.take(bytes)?, bytes },
        }))
    }

    fn slice_bytes_of(&self, slot: &Slot) -> Result<usize> {
        let slice_bytes = self.of_place(slot.key, |place| place.slice_bytes)?;
        Ok(usize::try_from(slice_bytes).unwrap_or(usize::MAX))
    }

    /// The dtype in which this worker sends sums for keys of a dtype.
    pub(super) fn sum_dtype(&self, dtype: DType) -> DType {
        if self.sums == WorkerSums::Linear { dtype } else { sums::sum_dtype(dtype) }
    }

    /// Reads a value of a part of a call: it lends, sums or encodes it. The call gets the loan,
    /// which is added to `made`, before the value is sent.
    pub(super) fn make(
        &self,
        part: &PendingKey,
        draft: OutgoingValue,
        values: &mut CallInputs<'_>,
        (loans, made): (&mut SpareLoans, &mut Vec<Arc<Loan>>),
    ) -> Result<Bytes> {
        let (slot, lent) = (&part.slot, values.lent);
        match draft {
            OutgoingValue::Made(value) => Ok(value),
            OutgoingValue::Lent { start, bytes } => {
                // SAFETY: plain values are as large as their key's, and are lent until the call ends, which
                // ends the loan.
                let loan = unsafe { lend(loans, start, bytes) };
                made.push(Arc::clone(&loan));
                Ok(Bytes::of_loan(loan, bytes))
            }
            OutgoingValue::Sum { values, sum, bytes } => {
                self.add_up(slot, &lent[values], &sum)?;
                Ok(Bytes::of_block(self.driver.blocks.wrap(sum, bytes)))
            }
            OutgoingValue::Subtree { values: range, slice_bytes, bytes } => {
                self.subtree(slot, &lent[range], (slice_bytes, bytes))
            }
            OutgoingValue::Coded { values: range, slice_bytes, bytes } => {
                let Some((codec, unsent)) = &mut values.coding else {
                    return Err(fail!(Internal, "a value is to be encoded, and no codec is set"));
                };
                let sum = self.driver.blocks.take(bytes)?;
                self.add_up(slot, &lent[range], &sum)?;
                let round = self.pushes(slot.key)?;
                let rank = self.rank.into();
                let source = EncodingSource { slot, sum: &sum, slice_bytes, rank, round };
                let team = self.local.keys.team;
                let encoded = unsent.encode(codec, team, &source, &self.driver.blocks);
                self.driver.blocks.give_back(sum);
                encoded
            }
        }
    }

    /// The sum of values in the dtype of sums, slice by slice.
    fn subtree(
        &self,
        slot: &Slot,
        values: &[Lent],
        (slice_bytes, bytes): (usize, usize),
    ) -> Result<Bytes> {
        let blocks = &self.driver.blocks;
        let mut rounded = SmallVec::<[Buffer; 4]>::new();
        // Values of other dtypes count as values of the key's.
        let mut plain = |value: &Lent| {
            if value.is_plain(slot.dtype) {
                return Ok(Lent::plain(value.data(), slot.dtype));
            }
            // It moves into the list: small buffers would take their elements along.
            let buffer = Buffer::fixed(slot.bytes())?;
            self.add_up(slot, std::slice::from_ref(value), &buffer)?;
            let value = Lent::of(Array::of(&buffer, slot.dtype));
            rounded.push(buffer);
            Ok(value)
        };
        let values: SmallVec<[Lent; 8]> = values.iter().map(&mut plain).collect::<Result<_>>()?;
        let dtype = self.sum_dtype(slot.dtype);
        let wide = Slot::new(slot.key, slot.order, dtype, &slot.shape, slot.count)?;
        let sum = blocks.take(bytes)?;
        self.add_up(&wide, &values, &sum)?;
        let step = slice_bytes.saturating_mul(dtype.size()) / slot.dtype.size();
        let made = blocks.encoded(SUBTREE, (slot.bytes(), slice_bytes), |slices| {
            for slice in sum.bytes()[..bytes].chunks(step.max(1)) {
                slices.push(blocks.join(&[slice])?);
            }
            if slices.is_empty() {
                slices.push(blocks.join(&[])?);
            }
            Ok(())
        });
        rounded.into_iter().chain([sum]).for_each(|buffer| blocks.give_back(buffer));
        made
    }

    /// Adds the values of a key, in the order of sums.
    pub(super) fn add_up(&self, slot: &Slot, values: &[Lent], sum: &Buffer) -> Result<()> {
        let _floats = DefaultFloats::enter();
        self.local.keys.team.sum(slot, values, sum)
    }
}
