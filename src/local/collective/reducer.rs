//! The arithmetic of collective calls: plain arrays of several workers, or of one, become one.
#![allow(unsafe_code, reason = "plain arrays are reduced in the memory that callers lend")]

use smallvec::SmallVec;

use super::lent_tensor::LentTensor;
use crate::error::Result;
use crate::kernel::{Extreme, Isa, Pass, SumOrder, Traffic, extreme};
use crate::local::merge::Team;
use crate::tensor::{Array, Buffer, DType};

/// How values of several workers become one (also called: reduction operator); the codes are those of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The sum, in the order of ranks; integers wrap.
    Sum = 0,
    /// The sum of floats, divided once by the number of values.
    Mean = 1,
    /// The largest; a NaN is one.
    Max = 2,
    /// The smallest; a NaN is one.
    Min = 3,
}

impl Reduction {
    pub(crate) const ALL: [Self; 4] = [Self::Sum, Self::Mean, Self::Max, Self::Min];

    #[cfg(feature = "dist")]
    pub(crate) fn name(self) -> &'static str {
        ["sum", "mean", "max", "min"][self as usize]
    }
}

/// Reduces plain arrays.
#[derive(Clone, Copy)]
pub(crate) struct Reducer {
    isa: Isa,
    order: SumOrder<'static>,
    pub(crate) dtype: DType,
    reduction: Reduction,
    /// What a sum is divided by.
    divisor: Option<f64>,
}

impl Reducer {
    /// One that makes the whole reduction of this many values.
    pub(crate) fn new(team: Team<'_>, dtype: DType, reduction: Reduction, values: u64) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "no job has 2^53 values")]
        let divisor = (reduction == Reduction::Mean && values > 1).then_some(values as f64);
        Self { isa: team.isa, order: team.order, dtype, reduction, divisor }
    }

    /// The same for the values of one worker alone.
    #[cfg(feature = "dist")]
    pub(crate) fn undivided(self) -> Self {
        Self { divisor: None, ..self }
    }

    /// Writes the reduction of the inputs, in their order, to `out`.
    ///
    /// # Safety
    /// Each is an array of `count` elements; `out` may be exactly an input, and overlaps nothing else.
    pub(crate) unsafe fn reduce(&self, inputs: &[*const u8], out: *mut u8, count: usize) {
        let Self { isa, order, dtype, reduction, divisor } = *self;
        let (outs, traffic) = (&[out][..], Traffic::Cached);
        // SAFETY: the caller's promise.
        unsafe {
            match reduction {
                Reduction::Sum | Reduction::Mean => {
                    isa.sum(&Pass { dtype, outs, inputs, count, traffic, order, divisor });
                }
                Reduction::Max => _ = extreme(Extreme::Largest, dtype, inputs, out, count),
                Reduction::Min => _ = extreme(Extreme::Smallest, dtype, inputs, out, count),
            }
        }
    }

    /// Reduces the values of this worker to `out`, which may be exactly one of them.
    pub(crate) fn reduce_own(&self, values: &[LentTensor], out: *mut u8) -> Result<()> {
        let gather = |value: &LentTensor| -> Result<(Option<Buffer>, *const u8)> {
            if let Some(start) = value.plain() {
                return Ok((None, start));
            }
            let buffer = Buffer::fixed(value.bytes())?;
            value.copy_to(buffer.as_ptr());
            let start = Array::of(&buffer, self.dtype).start();
            Ok((Some(buffer), start))
        };
        let plain = values.iter().map(gather).collect::<Result<SmallVec<[_; 8]>>>()?;
        let inputs: SmallVec<[*const u8; 8]> = plain.iter().map(|(_, start)| *start).collect();
        // SAFETY: the checks of the call have found the arrays, and what they overlap.
        unsafe { self.reduce(&inputs, out, values[0].count) };
        Ok(())
    }
}
