//! CollectiveCall calls, which exchange values between workers without keys (also called: collective operations): what
//! each takes and gives, the checks of its tensors, and its arithmetic.
#![allow(unsafe_code, reason = "plain arrays are reduced in the memory that callers lend")]

use smallvec::SmallVec;

use crate::error::{Result, fail};
use crate::kernel::{Extreme, Isa, Pass, SumOrder, Traffic};
use crate::local::merge::Team;
use crate::local::plan::Tensors;
use crate::tensor::{Array, Buffer, DType, Lent, Tensor};

/// The collective calls; the codes are those of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CollectiveKind {
    AllReduce = 1,
    Reduce = 2,
    ReduceScatter = 3,
    BroadcastFrom = 4,
    AllGather = 5,
    Gather = 6,
    Scatter = 7,
    AllToAll = 8,
}

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

impl CollectiveKind {
    #[cfg(feature = "dist")]
    pub(crate) const ALL: [Self; 8] = [
        Self::AllReduce,
        Self::Reduce,
        Self::ReduceScatter,
        Self::BroadcastFrom,
        Self::AllGather,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
    ];

    /// The name of the call.
    pub(crate) fn name(self) -> &'static str {
        [
            "allreduce",
            "reduce",
            "reduce_scatter",
            "broadcast_from",
            "allgather",
            "gather",
            "scatter",
            "all_to_all",
        ][self as usize - 1]
    }

    pub(crate) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether one worker has, or gets, what others do not.
    pub(crate) fn has_root(self) -> bool {
        use CollectiveKind::{BroadcastFrom, Gather, Reduce, Scatter};
        matches!(self, Reduce | BroadcastFrom | Gather | Scatter)
    }

    /// Numbers of values and outs of a worker; None for any number from 1 on, or any at all of outs.
    fn takes(self, is_root: bool, workers: usize) -> (Option<usize>, Option<usize>) {
        match self {
            Self::AllReduce => (None, None),
            Self::Reduce => (None, if is_root { None } else { Some(0) }),
            Self::ReduceScatter => (Some(workers), Some(1)),
            Self::BroadcastFrom => (Some(usize::from(is_root)), None),
            Self::AllGather => (Some(1), Some(workers)),
            Self::Gather => (Some(1), Some(if is_root { workers } else { 0 })),
            Self::Scatter => (Some(if is_root { workers } else { 0 }), Some(1)),
            Self::AllToAll => (Some(workers), Some(workers)),
        }
    }
}

/// Which call is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CollectiveHead {
    pub(crate) kind: CollectiveKind,
    pub(crate) reduction: Reduction,
    pub(crate) root: u32,
}

/// A worker among those that make a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) workers: u32,
}

/// A tensor that is lent to a call.
pub(crate) struct LentTensor {
    pub(crate) lent: Lent,
    shape: SmallVec<[i64; 4]>,
    pub(crate) count: usize,
}

impl LentTensor {
    fn new(tensor: &Tensor<'_>) -> Self {
        let shape = tensor.shape().iter().copied().collect();
        Self { lent: Lent::new(tensor), shape, count: tensor.count() }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.count * self.lent.dtype().size()
    }

    /// Where its elements lie, if they lie one behind the other.
    pub(crate) fn plain(&self) -> Option<*mut u8> {
        self.lent.strides().is_none().then(|| self.lent.data())
    }

    /// Copies its elements to a plain array.
    pub(crate) fn copy_to(&self, to: *mut u8) {
        let (to, from) = (Lent::plain(to, self.lent.dtype()).array(), self.lent.array());
        match self.lent.strides() {
            Some(strides) => to.gather(&from, &self.shape, strides, &(0..self.count)),
            None => copy(to.start_mut(), from.start(), self.bytes()),
        }
    }

    /// Copies a plain array to its elements.
    pub(crate) fn copy_from(&self, from: *const u8) {
        let (to, from) =
            (self.lent.array(), Lent::plain(from.cast_mut(), self.lent.dtype()).array());
        match self.lent.strides() {
            Some(strides) => to.scatter(&from, &self.shape, strides, &(0..self.count)),
            None => copy(to.start_mut(), from.start(), self.bytes()),
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (self.lent.byte_range(&self.shape), other.lent.byte_range(&other.shape));
        self.count > 0 && other.count > 0 && a.0 < b.1 && b.0 < a.1
    }

    /// Whether both are one plain array.
    fn is_same(&self, other: &Self) -> bool {
        self.plain().is_some() && self.plain() == other.plain() && self.bytes() == other.bytes()
    }
}

/// Copies bytes of arrays that are one, or do not overlap.
pub(crate) fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    if to.cast_const() != from && bytes > 0 {
        // SAFETY: the checks of the call have found both arrays, and that they do not overlap.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
    }
}

/// A collective call whose tensors have been checked.
pub(crate) struct CollectiveCall {
    pub(crate) head: CollectiveHead,
    pub(crate) dtype: DType,
    pub(crate) values: SmallVec<[LentTensor; 4]>,
    pub(crate) outs: SmallVec<[LentTensor; 4]>,
}

impl CollectiveCall {
    /// Checks the tensors of a call: nothing has happened before an error.
    pub(crate) fn new(
        head: CollectiveHead,
        place: Place,
        values: Tensors<'_>,
        outs: Tensors<'_>,
    ) -> Result<Self> {
        let call = head.kind.name();
        if head.kind.has_root() && head.root >= place.workers {
            let (root, workers) = (head.root, place.workers);
            return Err(fail!(
                InvalidArgument,
                "{call}: the root is {root}; there are {workers} workers"
            ));
        }
        let is_root = head.root == place.rank;
        let (mut values, mut outs) = (lend(call, "value", values)?, lend(call, "out", outs)?);
        if head.kind == CollectiveKind::BroadcastFrom && !is_root {
            values.clear();
        }
        let (for_values, for_outs) = head.kind.takes(is_root, place.workers as usize);
        // What the others do not get is not touched on them.
        if for_outs == Some(0) {
            outs.clear();
        }
        if for_values == Some(0) {
            values.clear();
        }
        let needs =
            |given: usize, wanted: Option<usize>| wanted.is_none_or(|wanted| given == wanted);
        if !needs(values.len(), for_values) || values.is_empty() && for_values.is_none() {
            return Err(wrong_number(call, "values", values.len(), for_values.unwrap_or(1)));
        }
        if !needs(outs.len(), for_outs) {
            return Err(wrong_number(call, "outs", outs.len(), for_outs.unwrap_or(1)));
        }
        let dtype = values.iter().chain(&outs).next().map(|it| it.lent.dtype());
        let dtype = dtype.ok_or_else(|| wrong_number(call, "outs", 0, 1))?;
        let made = Self { head, dtype, values, outs };
        made.check_types()?;
        made.check_shapes(place)?;
        made.check_overlaps(place)?;
        Ok(made)
    }

    fn check_types(&self) -> Result<()> {
        let (call, dtype) = (self.head.kind.name(), self.dtype);
        if let Some(other) = self.all().find(|it| it.lent.dtype() != dtype) {
            let (one, other) = (dtype.name(), other.lent.dtype().name());
            return Err(fail!(
                DtypeMismatch,
                "{call}: tensors of {one} and of {other}; all have one dtype"
            ));
        }
        if !self.head.kind.reduces() {
            return Ok(());
        }
        let (name, reduction) = (dtype.name(), self.head.reduction);
        if dtype.is_opaque() {
            return Err(fail!(
                Unsupported,
                "{call}: {name} is stored and moved, and never added or compared"
            ));
        }
        if reduction == Reduction::Mean && !dtype.is_float() {
            return Err(fail!(
                Unsupported,
                "{call}: the mean of {name}; take the sum, and divide it"
            ));
        }
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = &LentTensor> {
        self.values.iter().chain(&self.outs)
    }

    fn check_shapes(&self, place: Place) -> Result<()> {
        let kind = self.head.kind;
        // Those that have one shape.
        let own = place.rank as usize;
        let alike: SmallVec<[&LentTensor; 8]> = match kind {
            CollectiveKind::AllReduce | CollectiveKind::Reduce | CollectiveKind::BroadcastFrom => {
                self.all().collect()
            }
            CollectiveKind::ReduceScatter => {
                [&self.values[own], &self.outs[0]].into_iter().collect()
            }
            CollectiveKind::AllGather => [&self.values[0], &self.outs[own]].into_iter().collect(),
            CollectiveKind::Gather => self.values.iter().chain(self.outs.get(own)).collect(),
            CollectiveKind::Scatter => self.values.get(own).into_iter().chain(&self.outs).collect(),
            CollectiveKind::AllToAll => [&self.values[own], &self.outs[own]].into_iter().collect(),
        };
        let Some(odd) = alike.iter().find(|it| it.shape != alike[0].shape) else { return Ok(()) };
        let (one, other) = (&alike[0].shape[..], &odd.shape[..]);
        Err(fail!(ShapeMismatch, "{}: the shapes {one:?} and {other:?} differ", kind.name()))
    }

    /// Outs overlap nothing, but an out may be exactly the value that it takes the place of.
    fn check_overlaps(&self, place: Place) -> Result<()> {
        let (kind, own) = (self.head.kind, place.rank as usize);
        let call = kind.name();
        for (at, out) in self.outs.iter().enumerate() {
            if self.outs[..at].iter().any(|other| out.overlaps(other)) || is_folded(out) {
                return Err(fail!(Overlap, "{call}: outs overlap"));
            }
            for (which, value) in self.values.iter().enumerate() {
                let may_be_same = match kind {
                    // Several values are added up before an out is written.
                    CollectiveKind::AllReduce | CollectiveKind::Reduce => true,
                    CollectiveKind::BroadcastFrom => false,
                    CollectiveKind::AllGather | CollectiveKind::Gather => at == own,
                    CollectiveKind::ReduceScatter | CollectiveKind::Scatter => which == own,
                    CollectiveKind::AllToAll => which == own && at == own,
                };
                if out.overlaps(value) && !(may_be_same && out.is_same(value)) {
                    return Err(fail!(
                        Overlap,
                        "{call}: an out overlaps a value, and is not exactly the one that it takes the place of"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Whether elements share an address.
fn is_folded(out: &LentTensor) -> bool {
    let strides = out.lent.strides().unwrap_or_default();
    strides.iter().zip(&out.shape).any(|(stride, extent)| *stride == 0 && *extent > 1)
}

fn wrong_number(call: &str, what: &str, given: usize, wanted: usize) -> crate::Error {
    fail!(InvalidArgument, "{call}: {given} {what}, where this worker gives {wanted}")
}

fn lend(call: &str, what: &str, tensors: Tensors<'_>) -> Result<SmallVec<[LentTensor; 4]>> {
    let one = |at: usize| -> Result<LentTensor> {
        let tensor = match tensors {
            Tensors::Values(values) => Ok(values[at]),
            Tensors::Outs(outs) => Ok(*outs[at].as_tensor()),
            Tensors::Raw(raw) => raw.get(at),
        };
        let tensor = tensor.and_then(Tensor::in_host_memory);
        let tensor = tensor.map_err(|error| {
            crate::Error::new(error.kind(), format!("{call}: {what} {at} {}", error.message()))
        })?;
        Ok(LentTensor::new(&tensor))
    };
    (0..tensors.len()).map(one).collect()
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
                Reduction::Max => _ = isa.extreme(Extreme::Largest, dtype, inputs, out, count),
                Reduction::Min => _ = isa.extreme(Extreme::Smallest, dtype, inputs, out, count),
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

/// Makes a call among the values of one worker, who is all there are.
pub(crate) fn alone(call: &CollectiveCall, team: Team<'_>) -> Result<()> {
    let CollectiveCall { head, dtype, values, outs } = call;
    if !head.kind.reduces() || values.len() == 1 && values[0].plain().is_some() {
        let Some(value) = values.first() else { return Ok(()) };
        let Some(start) = value.plain() else {
            let buffer = Buffer::new(value.bytes())?;
            value.copy_to(buffer.as_ptr());
            outs.iter().for_each(|out| out.copy_from(buffer.as_ptr()));
            return Ok(());
        };
        outs.iter().for_each(|out| out.copy_from(start));
        return Ok(());
    }
    let reducer = Reducer::new(team, *dtype, head.reduction, values.len() as u64);
    let buffer = Buffer::new(values[0].bytes())?;
    reducer.reduce_own(values, buffer.as_ptr())?;
    outs.iter().for_each(|out| out.copy_from(buffer.as_ptr()));
    Ok(())
}
