//! Collective calls of a store (also called: collective operations): values that workers exchange without a key.

use super::{CallClass, Store, Tensors};
use crate::error::Result;
use crate::local::collective::{
    CollectiveCall, CollectiveHead, CollectiveKind, Reduction, WorkerPlace, alone,
};
use crate::local::ticket::OperationLabel;
use crate::spans;
use crate::tensor::{Tensor, TensorMut};

/// What a collective call is among, for those without a reduction or a root.
const fn head(kind: CollectiveKind, root: u32) -> CollectiveHead {
    CollectiveHead { kind, reduction: Reduction::Sum, root }
}

impl Store {
    /// Reduces the values of all workers, and gives the result to all. A worker's own values are reduced first.
    ///
    /// All workers make the same collective calls in the same order, from one thread at a time. The values do not
    /// pass through keys, and nothing of them stays anywhere. In a local store the values given are all there are.
    ///
    /// # Errors
    /// `ShapeMismatch`, `DtypeMismatch`, `Overlap`, `Unsupported`, `InvalidArgument`: nothing was sent. `Differs` if
    /// another worker makes another call, `Timeout` names the workers that have made none, `PeerLost` one that has
    /// ended: outs are undefined, and the call has failed for all workers that it has not ended for.
    pub fn allreduce(
        &self,
        reduction: Reduction,
        values: &[Tensor<'_>],
        outs: &mut [TensorMut<'_>],
    ) -> Result<()> {
        let head = CollectiveHead { kind: CollectiveKind::AllReduce, reduction, root: 0 };
        self.collective(head, Tensors::Values(values), Tensors::Outs(outs))
    }

    /// As [`Store::allreduce`], with the result for the worker of rank `root` alone; outs of others are not used.
    ///
    /// # Errors
    /// As there.
    pub fn reduce(
        &self,
        reduction: Reduction,
        root: u32,
        values: &[Tensor<'_>],
        outs: &mut [TensorMut<'_>],
    ) -> Result<()> {
        let head = CollectiveHead { kind: CollectiveKind::Reduce, reduction, root };
        self.collective(head, Tensors::Values(values), Tensors::Outs(outs))
    }

    /// Reduces the values that all workers give for a rank, for that rank: one value for each.
    ///
    /// # Errors
    /// As for [`Store::allreduce`].
    pub fn reduce_scatter(
        &self,
        reduction: Reduction,
        values: &[Tensor<'_>],
        out: TensorMut<'_>,
    ) -> Result<()> {
        let head = CollectiveHead { kind: CollectiveKind::ReduceScatter, reduction, root: 0 };
        self.collective(head, Tensors::Values(values), Tensors::Outs(&[out]))
    }

    /// Gives the value of the worker of rank `root` to all: on that one `value` is used, and copied to `outs`, on
    /// the others only `outs`.
    ///
    /// # Errors
    /// As for [`Store::allreduce`].
    pub fn broadcast_from(
        &self,
        root: u32,
        value: Option<Tensor<'_>>,
        outs: &mut [TensorMut<'_>],
    ) -> Result<()> {
        let values = value.as_slice();
        let head = head(CollectiveKind::BroadcastFrom, root);
        self.collective(head, Tensors::Values(values), Tensors::Outs(outs))
    }

    /// Gives the values of all workers to all: an out for each rank. Values of different workers may have
    /// different shapes, which their outs have, too.
    ///
    /// # Errors
    /// As for [`Store::allreduce`].
    pub fn allgather(&self, value: Tensor<'_>, outs: &mut [TensorMut<'_>]) -> Result<()> {
        let head = head(CollectiveKind::AllGather, 0);
        self.collective(head, Tensors::Values(&[value]), Tensors::Outs(outs))
    }

    /// As [`Store::allgather`], for the worker of rank `root` alone; outs of others are not used.
    ///
    /// # Errors
    /// As for [`Store::allreduce`].
    pub fn gather(&self, root: u32, value: Tensor<'_>, outs: &mut [TensorMut<'_>]) -> Result<()> {
        let head = head(CollectiveKind::Gather, root);
        self.collective(head, Tensors::Values(&[value]), Tensors::Outs(outs))
    }

    /// Gives each worker one of the values of the worker of rank `root`, which has one for each rank; values of
    /// others are not used.
    ///
    /// # Errors
    /// As for [`Store::allreduce`].
    pub fn scatter(&self, root: u32, values: &[Tensor<'_>], out: TensorMut<'_>) -> Result<()> {
        let head = head(CollectiveKind::Scatter, root);
        self.collective(head, Tensors::Values(values), Tensors::Outs(&[out]))
    }

    /// Gives each worker one value of every worker: a value and an out for each rank.
    ///
    /// # Errors
    /// As for [`Store::allreduce`].
    pub fn all_to_all(&self, values: &[Tensor<'_>], outs: &mut [TensorMut<'_>]) -> Result<()> {
        let head = head(CollectiveKind::AllToAll, 0);
        self.collective(head, Tensors::Values(values), Tensors::Outs(outs))
    }

    fn checked(
        &self,
        head: CollectiveHead,
        values: Tensors<'_>,
        outs: Tensors<'_>,
    ) -> Result<CollectiveCall> {
        let (rank, workers) = match &self.remote {
            Some(remote) => (remote.rank(), remote.workers()),
            None => (0, 1),
        };
        CollectiveCall::new(head, WorkerPlace { rank, workers }, values, outs)
    }

    pub(crate) fn collective(
        &self,
        head: CollectiveHead,
        values: Tensors<'_>,
        outs: Tensors<'_>,
    ) -> Result<()> {
        let _span = spans::enter!("collective", call = head.kind.name());
        self.enter(CallClass::Work, |local| {
            let call = self.checked(head, values, outs)?;
            match &self.remote {
                Some(remote) => remote.collective(call),
                None => alone(&call, local.keys.team),
            }
        })
    }

    /// The same as an operation with a ticket.
    pub(crate) fn submit_collective(
        &self,
        head: CollectiveHead,
        values: Tensors<'_>,
        outs: Tensors<'_>,
    ) -> Result<u64> {
        let _span = spans::enter!("collective", call = head.kind.name());
        self.enter(CallClass::Work, |local| {
            let call = self.checked(head, values, outs)?;
            if let Some(remote) = &self.remote {
                return remote.submit_collective(call);
            }
            let label = OperationLabel { call: head.kind.name(), first_key: 0, keys: 0 };
            let (ticket, sequence) = local.tickets.begin(label)?;
            let _ = local.tickets.finish(sequence, alone(&call, local.keys.team));
            Ok(ticket)
        })
    }
}
