//! Compression of pushes (also called: gradient compression, error feedback): a worker encodes the sum of its
//! values slice by slice, with the residual of earlier pushes; a server decodes it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::codec::{BLOCK, Codec, Origin, Residuals};
use crate::error::Result;
use crate::kernel::Isa;
use crate::local::merge::Team;
use crate::local::table::Slot;
use crate::runtime::{BlockPool, Bytes};
use crate::sys::DefaultFloats;
use crate::tensor::{Array, Buffer, DType, Lent};

/// Codec number on the wire of every encoded value; the setting names the codec.
const ENCODED: u16 = 1;

/// Codec state of the pushes of a worker, by key.
#[derive(Default)]
pub(crate) struct WorkerResiduals {
    keys: HashMap<u64, CodecState>,
    /// That of the last encoding.
    scratch: Option<CodecScratch>,
}

#[derive(Default)]
struct CodecState {
    residuals: Option<Box<Residuals>>,
    /// Pushes to count for the codec beyond those of this key generation, modulo 2^64.
    ahead: u64,
}

/// Input of an encoding.
pub(crate) struct EncodingSource<'a> {
    pub(crate) slot: &'a Slot,
    /// The sum of the worker's values, in the key's dtype.
    pub(crate) sum: &'a Buffer,
    pub(crate) slice_bytes: usize,
    pub(crate) rank: u64,
    /// Earlier pushes of the key.
    pub(crate) round: u64,
}

impl WorkerResiduals {
    /// Drops the state of a removed key.
    pub(crate) fn forget(&mut self, key: u64) {
        self.keys.remove(&key);
    }

    /// Residual of a key under a codec, in float32; None if the codec keeps none.
    pub(crate) fn residual(&self, key: u64, codec: &Codec) -> Option<&[u8]> {
        let residuals = self.keys.get(&key)?.residuals.as_ref();
        residuals.filter(|it| it.belong_to(codec))?.buffers().first().map(Buffer::bytes)
    }

    /// Pushes of a key to count for the codec beyond those of this key generation.
    pub(crate) fn ahead(&self, key: u64) -> u64 {
        self.keys.get(&key).map_or(0, |kept| kept.ahead)
    }

    /// Clears all residuals, as the keys have other values now.
    pub(crate) fn begin_anew(&mut self) {
        self.keys.values_mut().for_each(|kept| kept.residuals = None);
    }

    /// Begins a new generation of a key after this many pushes, which still count; gives how many count.
    pub(crate) fn go_on(&mut self, key: u64, pushes: u64) -> u64 {
        let ahead = &mut self.keys.entry(key).or_default().ahead;
        *ahead = ahead.wrapping_add(pushes);
        *ahead
    }

    /// Restores the residual of a checkpoint.
    pub(crate) fn take_up(&mut self, key: u64, residuals: Box<Residuals>, ahead: u64) {
        self.keys.insert(key, CodecState { residuals: Some(residuals), ahead });
    }

    /// Encodes the next push of a key.
    pub(crate) fn encode(
        &mut self,
        codec: &Codec,
        team: Team<'static>,
        source: &EncodingSource<'_>,
        blocks: &Arc<BlockPool>,
    ) -> Result<Bytes> {
        let slot = source.slot;
        let CodecState { residuals, ahead } = self.keys.entry(slot.key.id()).or_default();
        let stored = source.sum.as_ptr();
        let residuals = Residuals::prepare(codec, residuals, 1, slot.count, stored)?;
        let source = &EncodingSource { round: source.round.wrapping_add(*ahead), ..*source };
        let item = slot.dtype.size();
        let in_slice = (source.slice_bytes / item).max(1);
        let scratch = match &mut self.scratch {
            Some(scratch) => scratch,
            none => none.insert(CodecScratch::new()?),
        };
        let _floats = DefaultFloats::enter();
        blocks.encoded(ENCODED, (slot.bytes(), source.slice_bytes), |slices| {
            let mut start = 0;
            while start < slot.count || slices.is_empty() {
                let slice = start..slot.count.min(start + in_slice);
                let made = blocks.make(codec.bytes(slice.len()), |room| {
                    let bytes = room.zeroed();
                    encode_slice(codec, team.isa, source, residuals, &slice, bytes, scratch);
                })?;
                slices.push(made);
                start = slice.end.max(start + 1);
            }
            Ok(())
        })
    }
}

/// Scratch memory: a block as input of the codec, and as the server decodes it.
struct CodecScratch {
    value: Buffer,
    sent: Buffer,
}

impl CodecScratch {
    fn new() -> Result<Self> {
        let block = || Buffer::zeroed(BLOCK * DType::F32.size(), false);
        Ok(Self { value: block()?, sent: block()? })
    }
}

fn encode_slice(
    codec: &Codec,
    isa: Isa,
    source: &EncodingSource<'_>,
    residuals: &Residuals,
    slice: &Range<usize>,
    bytes: &mut [u8],
    scratch: &CodecScratch,
) {
    let (dtype, sum) = (source.slot.dtype, Array::of(source.sum, source.slot.dtype));
    let (value, mut sent) =
        (Array::of(&scratch.value, DType::F32), Array::of(&scratch.sent, DType::F32));
    let mut rest = bytes;
    for start in slice.clone().step_by(BLOCK) {
        let block = start..slice.end.min(start + BLOCK);
        let whole = 0..block.len();
        let input = if dtype == DType::F32 {
            sum.part(&block)
        } else {
            isa.convert_array(&value, &sum.part(&block), block.len());
            value
        };
        let mut residual = residuals.array(0).map(|residual| residual.part(&block));
        let (mine, others) = std::mem::take(&mut rest).split_at_mut(codec.bytes(block.len()));
        rest = others;
        let origin = Origin {
            key: source.slot.key.id(),
            rank: source.rank,
            round: source.round,
            block: (start / BLOCK) as u64,
        };
        codec.send(
            isa,
            origin,
            input.slice(&whole),
            residual.as_mut().map(|residual| residual.slice_mut(&whole)),
            mine,
            sent.slice_mut(&whole),
        );
    }
}

/// Decodes the bytes of a codec for one slice, to the slice's dtype.
pub(crate) fn decode(
    codec: &Codec,
    team: Team<'static>,
    slot: &Slot,
    origin: Origin,
    data: &Bytes,
    blocks: &Arc<BlockPool>,
) -> Result<Bytes> {
    let buffer = blocks.take(slot.count * DType::F32.size())?;
    let _floats = DefaultFloats::enter();
    let mut decoded = Array::of(&buffer, DType::F32);
    let result = data
        .read(|bytes| codec.decode(team.isa, origin, bytes, decoded.slice_mut(&(0..slot.count))));
    result.unwrap_or(Ok(()))?;
    if slot.dtype == DType::F32 {
        return Ok(Bytes::of_block(blocks.wrap(buffer, slot.bytes())));
    }
    let target = blocks.take(slot.bytes())?;
    team.isa.convert_array(&Lent::plain(target.as_ptr(), slot.dtype).array(), &decoded, slot.count);
    blocks.give_back(buffer);
    Ok(Bytes::of_block(blocks.wrap(target, slot.bytes())))
}
