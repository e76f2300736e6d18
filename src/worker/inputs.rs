//! Values of a call: their memory is allocated before the call begins; each is lent, summed or encoded when
//! it is sent.
#![allow(unsafe_code, reason = "plain values are lent to the transport as they are")]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::WorkerStore;
use super::call::{PendingKey, PullTarget};
use crate::codec::Codec;
use crate::error::{Result, fail};
use crate::job::encoding::{EncodingSource, WorkerResiduals};
use crate::local::plan::{KeyGroup, PlannedOut};
use crate::local::table::Slot;
use crate::runtime::{Bytes, Loan};
use crate::sys::DefaultFloats;
use crate::tensor::{Buffer, Lent};
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

    /// A loan to which no frame refers. Frames end in the order of the loans: if some at the front are in use, so
    /// are those behind them, and a search through all would take a time that grows with the square of a list.
    fn take(&mut self) -> Option<Arc<Loan>> {
        for _ in 0..MOST_TRIES {
            let mut loan = self.0.pop_front()?;
            if Arc::get_mut(&mut loan).is_some() {
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
            Self::Lent { bytes, .. } | Self::Sum { bytes, .. } | Self::Coded { bytes, .. } => {
                *bytes
            }
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
    if let Some(mut loan) = spare.take()
        && let Some(ended) = Arc::get_mut(&mut loan)
    {
        // SAFETY: the caller's promise.
        unsafe { ended.again(start, len) };
        return loan;
    }
    // SAFETY: the caller's promise.
    Arc::new(unsafe { Loan::new(start, len) })
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
                let slice_bytes = self.of_place(slot.key, |place| place.slice_bytes)?;
                let slice_bytes = usize::try_from(slice_bytes).unwrap_or(usize::MAX);
                OutgoingValue::Coded { values, slice_bytes, bytes }
            }
            [only] if only.is_plain(slot.dtype) => {
                OutgoingValue::Lent { start: only.data(), bytes }
            }
            _ => OutgoingValue::Sum { values, sum: self.driver.blocks.take(bytes)?, bytes },
        }))
    }

    /// Reads a value of a part of a call: it lends, sums or encodes it.
    pub(super) fn make(
        &self,
        part: &PendingKey,
        draft: OutgoingValue,
        values: &mut CallInputs<'_>,
        loans: &mut SpareLoans,
    ) -> Result<Bytes> {
        let (slot, lent) = (&part.slot, values.lent);
        match draft {
            OutgoingValue::Made(value) => Ok(value),
            OutgoingValue::Lent { start, bytes } => {
                // SAFETY: plain values are as large as their key's, and are lent until the call ends, which
                // ends the loan.
                let loan = unsafe { lend(loans, start, bytes) };
                part.lend(Arc::clone(&loan));
                Ok(Bytes::of_loan(loan, bytes))
            }
            OutgoingValue::Sum { values, sum, bytes } => {
                self.add_up(slot, &lent[values], &sum)?;
                Ok(Bytes::of_block(self.driver.blocks.wrap(sum, bytes)))
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

    /// Adds the values of a key, left to right.
    fn add_up(&self, slot: &Slot, values: &[Lent], sum: &Buffer) -> Result<()> {
        let _floats = DefaultFloats::enter();
        self.local.keys.team.sum(slot, values, sum)
    }
}
