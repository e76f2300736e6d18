//! Error feedback (Seide et al., 2014; Karimireddy et al., 2019): the unsent part of a push is
//! stored as a residual and added to the next push.

use std::iter::zip;

use smallvec::SmallVec;

use super::{BLOCK, Codec, Origin};
use crate::error::Result;
use crate::kernel::{Isa, Loop};
use crate::tensor::{Array, Buffer, DType, PageOffset};

/// The residuals of the pushes of one key: an array of f32 for each value of a push. On the way to
/// or from a file, for each worker of a job instead.
pub(crate) struct Residuals {
    codec: u64,
    /// Pushes of the key under this codec, of each worker.
    rounds: SmallVec<[u64; 1]>,
    slots: SmallVec<[Buffer; 1]>,
}

impl Residuals {
    /// Ensures the residuals for the next push of a key whose value is stored there. There is one
    /// for each value, of so many elements. New residuals are zero.
    ///
    /// # Errors
    /// `OutOfMemory`; residuals stay.
    pub(crate) fn prepare<'a>(
        codec: &Codec,
        kept: &'a mut Option<Box<Self>>,
        values: usize,
        count: usize,
        stored: *const u8,
    ) -> Result<&'a mut Self> {
        if kept.as_ref().is_some_and(|kept| kept.codec != codec.serial) {
            *kept = None;
        }
        let residuals = kept.get_or_insert_with(|| Box::new(Self::new(codec)));
        while codec.feedback && residuals.slots.len() < values {
            residuals.add(count, stored)?;
        }
        Ok(residuals)
    }

    /// As many residuals as [`Residuals::buffers`] gave, of so many elements, for a key whose value
    /// is stored there. `fill` is called with each of them.
    ///
    /// # Errors
    /// Those of `fill`; `OutOfMemory`.
    pub(crate) fn restore(
        codec: &Codec,
        slots: usize,
        count: usize,
        stored: *const u8,
        mut fill: impl FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<Box<Self>> {
        let mut residuals = Box::new(Self::new(codec));
        for _ in 0..slots {
            fill(residuals.add(count, stored)?.bytes_mut())?;
        }
        Ok(residuals)
    }

    fn new(codec: &Codec) -> Self {
        Self { codec: codec.serial, rounds: SmallVec::from_elem(0, 1), slots: SmallVec::new() }
    }

    /// Pushes of the key under this codec.
    pub(crate) fn round(&self) -> u64 {
        self.rounds[0]
    }

    pub(crate) fn end_round(&mut self) {
        self.rounds[0] += 1;
    }

    /// Pushes of each worker: one worker, unless they were set.
    pub(crate) fn rounds(&self) -> &[u64] {
        &self.rounds
    }

    /// Sets the pushes of each worker, of which there is at least one.
    pub(crate) fn set_rounds(&mut self, rounds: &[u64]) {
        debug_assert!(!rounds.is_empty(), "there is at least one worker");
        self.rounds = SmallVec::from_slice(rounds);
    }

    /// Adds a residual of zeros, at an address that does not conflict with the stored value in the
    /// cache.
    fn add(&mut self, count: usize, stored: *const u8) -> Result<&mut Buffer> {
        let mut buffer = Buffer::zeroed(count * DType::F32.size(), false)?;
        buffer.place(stored.wrapping_sub(PageOffset::Stored as usize), PageOffset::FirstState);
        self.slots.push(buffer);
        Ok(self.slots.last_mut().expect("just pushed"))
    }

    pub(crate) fn belong_to(&self, codec: &Codec) -> bool {
        self.codec == codec.serial
    }

    /// The residuals of all values by their places in pushes.
    pub(crate) fn buffers(&self) -> &[Buffer] {
        &self.slots
    }

    /// The residual of a value by its place in pushes; none under a codec without feedback.
    pub(crate) fn array(&self, slot: usize) -> Option<Array> {
        self.slots.get(slot).map(|slot| Array::of(slot, DType::F32))
    }
}

impl Codec {
    /// Encodes elements plus their residual, updates the residual to the unsent part, and decodes
    /// the bytes as the receiver does.
    pub(crate) fn send(
        &self,
        isa: Isa,
        origin: Origin,
        value: &[f32],
        residual: Option<&mut [f32]>,
        bytes: &mut [u8],
        sent: &mut [f32],
    ) {
        debug_assert!(value.len() <= BLOCK, "more would leave the cache between the passes");
        let decode = |bytes: &[u8], sent: &mut [f32]| {
            self.decode(isa, origin, bytes, sent).expect("what a codec encodes it decodes");
        };
        let Some(residual) = residual else {
            self.encode(isa, origin, value, bytes);
            return decode(bytes, sent);
        };
        isa.run(AddResidual { to: residual, value });
        self.encode(isa, origin, residual, bytes);
        decode(bytes, sent);
        isa.run(KeepResidual { of: residual, sent });
    }
}

/// Adds a value to its residual.
struct AddResidual<'a> {
    to: &'a mut [f32],
    value: &'a [f32],
}

impl Loop for AddResidual<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        zip(self.to, self.value).for_each(|(to, value)| *to += value);
    }
}

/// Stores the unsent part. Where infinity or a NaN was sent the residual is zero.
struct KeepResidual<'a> {
    of: &'a mut [f32],
    sent: &'a [f32],
}

impl Loop for KeepResidual<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (of, &sent) in zip(self.of, self.sent) {
            let rest = *of - sent;
            *of = if sent.abs() < f32::INFINITY { rest } else { 0.0 };
        }
    }
}
