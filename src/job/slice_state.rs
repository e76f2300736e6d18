//! State of a slice on the wire (also called: snapshot), between a server and the worker that saves or loads:
//! the counters of the rule, the value, and the arrays of the rule's state; and the residual of a worker's
//! codec.

use std::sync::Arc;

use crate::error::{Result, fail};
use crate::job::wanted::WANT_UNSENT;
use crate::local::merger::Merger;
use crate::local::table::{Slot, Value};
use crate::optim::{KeptArrays, OptimizerState, Stored};
use crate::runtime::{Block, BlockPool, Bytes};
use crate::tensor::{Array, Buffer, DType};

/// Codes of the restore requests on the wire.
const STATE: u32 = 0;
const LAID: u32 = 1;
const TAKEN: u32 = 2;
const AHEAD: u32 = 3;

/// Restore request for a slice; the first number is its code, the second one a rank.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StateUpdate {
    /// Replaces the whole state.
    State,
    /// Deposits the codec residual of a worker after this many pushes, until a `Taken` frees it.
    Laid {
        rank: u32,
        pushes: u64,
    },
    Taken {
        rank: u32,
    },
    /// Sets the pushes of a worker to count for its codec beyond those of this key generation.
    Ahead {
        rank: u32,
        ahead: u64,
    },
}

impl StateUpdate {
    /// Encodes the request with its data: the pieces of a state, or the array of a residual.
    pub(crate) fn join(self, data: &[&[u8]], blocks: &Arc<BlockPool>) -> Result<Bytes> {
        let (code, rank, number): (u32, u32, Option<u64>) = match self {
            Self::State => (STATE, 0, None),
            Self::Laid { rank, pushes } => (LAID, rank, Some(pushes)),
            Self::Taken { rank } => (TAKEN, rank, None),
            Self::Ahead { rank, ahead } => (AHEAD, rank, Some(ahead)),
        };
        let (code, rank) = (code.to_le_bytes(), rank.to_le_bytes());
        let number = number.map(u64::to_le_bytes);
        let mut parts: Vec<&[u8]> = vec![&code, &rank];
        parts.extend(number.iter().map(|it| &it[..]));
        parts.extend(data);
        Ok(Bytes::of_block(blocks.join(&parts)?))
    }

    /// Decodes a restore request for a slice; gives also its data. That of a deposit begins with the number of
    /// pushes.
    pub(crate) fn read<'a>(bytes: &'a [u8], slot: &Slot) -> Result<(Self, &'a [u8])> {
        let unfit = || fail!(Corrupt, "an unreadable state was brought to a slice");
        let (code, rest) = bytes.split_first_chunk().ok_or_else(unfit)?;
        let (rank, rest) = rest.split_first_chunk().ok_or_else(unfit)?;
        let rank = u32::from_le_bytes(*rank);
        let (number, array) = rest.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let fits = rest.len() >= number.len()
            && [0, slot.count * DType::F32.size()].contains(&array.len());
        let number = u64::from_le_bytes(*number);
        let update = match u32::from_le_bytes(*code) {
            STATE => Self::State,
            LAID if fits => Self::Laid { rank, pushes: number },
            TAKEN => Self::Taken { rank },
            AHEAD if fits => Self::Ahead { rank, ahead: number },
            _ => return Err(unfit()),
        };
        Ok((update, rest))
    }

    /// Query of a pull for a deposited residual: the number of pushes, and the array.
    pub(crate) fn wanted(rank: u32) -> Vec<u8> {
        [&[WANT_UNSENT][..], &rank.to_le_bytes()].concat()
    }
}

/// Bytes before the value.
pub(crate) const HEAD: usize = 24;

/// Head of an encoded state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StateHeader {
    pub(crate) updates: u64,
    pub(crate) carried: f64,
    pub(crate) kept: Option<KeptArrays>,
}

/// Pieces of a state: the head, the value in `stored`, and the arrays of the rule's state.
pub(crate) fn parts<'a>(
    value: &'a Value,
    stored: &'a [u8],
    merger: &Merger,
) -> ([u8; HEAD], Vec<&'a [u8]>) {
    let kept = merger.optimizer().and_then(|it| it.kept(value.state.as_ref()));
    let state = value.state.as_ref().filter(|_| kept.is_some());
    let (updates, carried) = state.map_or((0, 0.0), OptimizerState::progress);
    let (states, master) = kept.map_or((u32::MAX, 0), |kept| {
        (u32::try_from(kept.states).unwrap_or(0), u32::from(kept.has_master))
    });
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&updates.to_le_bytes());
    head[8..16].copy_from_slice(&carried.to_bits().to_le_bytes());
    head[16..20].copy_from_slice(&states.to_le_bytes());
    head[20..24].copy_from_slice(&master.to_le_bytes());
    let arrays = state.iter().flat_map(|state| state.buffers()).map(Buffer::bytes);
    (head, std::iter::once(stored).chain(arrays).collect())
}

/// Encodes the state of a slice, with its value in `stored`.
pub(crate) fn encode(
    value: &Value,
    stored: &[u8],
    merger: &Merger,
    blocks: &Arc<BlockPool>,
) -> Result<Block> {
    let (head, arrays) = parts(value, stored, merger);
    let all: Vec<&[u8]> = std::iter::once(&head[..]).chain(arrays).collect();
    blocks.join(&all)
}

/// Decodes the head of an encoded state; gives also the rest.
pub(crate) fn head(bytes: &[u8]) -> Result<(StateHeader, &[u8])> {
    let short = || fail!(Corrupt, "the state of a slice is cut off");
    let (updates, rest) = bytes.split_first_chunk().ok_or_else(short)?;
    let (carried, rest) = rest.split_first_chunk().ok_or_else(short)?;
    let (states, rest) = rest.split_first_chunk().ok_or_else(short)?;
    let (master, rest) = rest.split_first_chunk().ok_or_else(short)?;
    let states = u32::from_le_bytes(*states);
    let has_master = u32::from_le_bytes(*master) != 0;
    let kept = usize::try_from(states).ok().filter(|_| states != u32::MAX);
    let head = StateHeader {
        updates: u64::from_le_bytes(*updates),
        carried: f64::from_bits(u64::from_le_bytes(*carried)),
        kept: kept.map(|states| KeptArrays { states, has_master }),
    };
    Ok((head, rest))
}

/// Restores a slice from an encoded state.
pub(crate) fn restore(
    slot: &Slot,
    value: &mut Value,
    bytes: &[u8],
    merger: &Merger,
    blocks: &Arc<BlockPool>,
) -> Result<()> {
    let (head, rest) = head(bytes)?;
    let short = || fail!(Corrupt, "the state of a slice is cut off");
    let (stored, mut rest) = rest.split_at_checked(slot.bytes()).ok_or_else(short)?;
    let mut buffer = blocks.take(slot.bytes())?;
    buffer.bytes_mut()[..stored.len()].copy_from_slice(stored);
    value.state = match (merger.optimizer(), head.kept) {
        (Some(optimizer), Some(kept)) => {
            let array = Array::of(&buffer, slot.dtype);
            let of = Stored { array, count: slot.count, rows: slot.rows() };
            let mut state = optimizer.restore(&of, kept, |array: &mut [u8]| {
                let (part, others) = rest.split_at_checked(array.len()).ok_or_else(short)?;
                array.copy_from_slice(part);
                rest = others;
                Ok(())
            })?;
            state.go_on_from(head.updates, head.carried);
            Some(state)
        }
        _ => None,
    };
    value.buffer = buffer;
    Ok(())
}
