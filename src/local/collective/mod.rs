//! Collective calls, which exchange values between workers without keys (also called: collective operations): what
//! each takes and gives, and the checks of its tensors.

mod lent_tensor;
mod reducer;

use smallvec::SmallVec;

use crate::error::{Result, fail};
use crate::local::merge::Team;
use crate::local::plan::Tensors;
use crate::tensor::{Buffer, DType};
pub(crate) use lent_tensor::LentTensor;
#[cfg(feature = "dist")]
pub(crate) use lent_tensor::copy;
use lent_tensor::lend;
pub(crate) use reducer::Reducer;
pub use reducer::Reduction;

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
pub(crate) struct WorkerPlace {
    pub(crate) rank: u32,
    pub(crate) workers: u32,
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
        place: WorkerPlace,
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

    fn check_shapes(&self, place: WorkerPlace) -> Result<()> {
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
    fn check_overlaps(&self, place: WorkerPlace) -> Result<()> {
        let (kind, own) = (self.head.kind, place.rank as usize);
        let call = kind.name();
        for (at, out) in self.outs.iter().enumerate() {
            if self.outs[..at].iter().any(|other| out.overlaps(other)) || out.is_folded() {
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

fn wrong_number(call: &str, what: &str, given: usize, wanted: usize) -> crate::Error {
    fail!(InvalidArgument, "{call}: {given} {what}, where this worker gives {wanted}")
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
