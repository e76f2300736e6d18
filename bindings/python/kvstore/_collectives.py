"""Collective calls: values that workers exchange without keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from ._errors import InvalidArgumentError
from ._native import Exchange
from ._native import Store as NativeStore
from ._ticket import Ticket

if TYPE_CHECKING:
    from ._types import Outs, Values

_REDUCTIONS = {"sum": 0, "mean": 1, "max": 2, "min": 3}
_ALLREDUCE, _REDUCE, _REDUCE_SCATTER = map(Exchange, ("allreduce", "reduce", "reduce_scatter"))
_BROADCAST, _ALLGATHER = Exchange("broadcast_from"), Exchange("allgather")
_GATHER, _SCATTER, _ALL_TO_ALL = map(Exchange, ("gather", "scatter", "all_to_all"))


def _numbers(op: str = "sum", root: int = 0) -> tuple[int, int]:
    number = _REDUCTIONS.get(op)
    if number is None:
        raise InvalidArgumentError(f"op is {op!r}; use one of {', '.join(_REDUCTIONS)}")
    return number, root


class Collectives(NativeStore):
    """The collective calls of a store.

    Workers exchange the values directly: no key is needed, and nothing is left behind. All workers
    make the same calls in the same order, one thread at a time, with equal dtypes, ops, roots and
    lengths; the first one waits until all workers have made one. A worker that makes another call,
    makes none in time or ends is named by the error, on every worker. In a local store the arrays
    given are all there are.

    Values and outs are arrays or lists of them, in host memory. Each call has a form that runs in
    the background and gives a ticket.
    """

    __slots__ = ()

    def allreduce(self, values: Values, out: Optional[Outs] = None, op: str = "sum") -> None:
        """Reduces the arrays of all workers, and gives the result to all.

        A worker's own arrays come first, then workers in the order of ranks: the same bits each
        time. `op` is "sum", "mean" (floats only), "max" or "min". Without `out` the result is
        written into `values`.

        >>> kv.allreduce(gradient, op="mean")
        """
        _ALLREDUCE.run(self, _numbers(op), values, out)

    def allreduce_async(
        self, values: Values, out: Optional[Outs] = None, op: str = "sum"
    ) -> Ticket:
        """Starts an allreduce() in the background."""
        return Ticket(_ALLREDUCE.prepare(self, _numbers(op), values, out), 0)

    def reduce(
        self, values: Values, root: int = 0, out: Optional[Outs] = None, op: str = "sum"
    ) -> None:
        """As allreduce(), with the result for the worker of rank `root` alone."""
        _REDUCE.run(self, _numbers(op, root), values, out)

    def reduce_async(
        self, values: Values, root: int = 0, out: Optional[Outs] = None, op: str = "sum"
    ) -> Ticket:
        """Starts a reduce() in the background."""
        return Ticket(_REDUCE.prepare(self, _numbers(op, root), values, out), 0)

    def reduce_scatter(self, values: Values, out: Any, op: str = "sum") -> None:
        """Reduces what all workers give for a worker, for it: `values` has an array for each."""
        _REDUCE_SCATTER.run(self, _numbers(op), values, out)

    def reduce_scatter_async(self, values: Values, out: Any, op: str = "sum") -> Ticket:
        """Starts a reduce_scatter() in the background."""
        return Ticket(_REDUCE_SCATTER.prepare(self, _numbers(op), values, out), 0)

    def broadcast_from(self, array: Outs, root: int = 0) -> None:
        """Gives the array of the worker of rank `root` to all, which receive it in theirs.

        >>> kv.broadcast_from(weights, root=2)
        """
        _BROADCAST.run(self, _numbers(root=root), None, array)

    def broadcast_from_async(self, array: Outs, root: int = 0) -> Ticket:
        """Starts a broadcast_from() in the background."""
        return Ticket(_BROADCAST.prepare(self, _numbers(root=root), None, array), 0)

    def allgather(self, value: Any, out: Outs) -> None:
        """Gives the arrays of all workers to all: `out` has one for each rank, of its length."""
        _ALLGATHER.run(self, _numbers(), value, out)

    def allgather_async(self, value: Any, out: Outs) -> Ticket:
        """Starts an allgather() in the background."""
        return Ticket(_ALLGATHER.prepare(self, _numbers(), value, out), 0)

    def gather(self, value: Any, root: int = 0, out: Optional[Outs] = None) -> None:
        """As allgather(), for the worker of rank `root` alone, which passes `out`."""
        _GATHER.run(self, _numbers(root=root), value, out)

    def gather_async(self, value: Any, root: int = 0, out: Optional[Outs] = None) -> Ticket:
        """Starts a gather() in the background."""
        return Ticket(_GATHER.prepare(self, _numbers(root=root), value, out), 0)

    def scatter(self, out: Any, root: int = 0, values: Optional[Values] = None) -> None:
        """Gives each worker one of the arrays of the worker `root`, which passes `values`."""
        _SCATTER.run(self, _numbers(root=root), values, out)

    def scatter_async(
        self, out: Any, root: int = 0, values: Optional[Values] = None
    ) -> Ticket:
        """Starts a scatter() in the background."""
        return Ticket(_SCATTER.prepare(self, _numbers(root=root), values, out), 0)

    def all_to_all(self, values: Values, out: Outs) -> None:
        """Gives each worker one array of every worker: both lists have an array for each rank."""
        _ALL_TO_ALL.run(self, _numbers(), values, out)

    def all_to_all_async(self, values: Values, out: Outs) -> Ticket:
        """Starts an all_to_all() in the background."""
        return Ticket(_ALL_TO_ALL.prepare(self, _numbers(), values, out), 0)
