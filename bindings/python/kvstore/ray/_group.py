"""A group of ray.util.collective over a store that its actors serve themselves."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import (
    AllGatherOptions,
    AllReduceOptions,
    BarrierOptions,
    BroadcastOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
)

import kvstore

from ._backend import BACKEND
from ._collectives import Collectives
from ._rendezvous import join

_Array = np.ndarray[Any, Any]
# Timeout in seconds of a rank that leaves the group, for ranks that do not.
_LEAVE_SECONDS = 60.0
_REDUCTIONS = {
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


class Group(BaseGroup):
    """Collective operations on arrays of numpy and on PyTorch's tensors in host memory."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self._store = join(group_name, rank, world_size)
        self._all = Collectives(self._store, f"group {group_name}")

    @classmethod
    def backend(cls) -> str:
        """The name under which backend() registers it."""
        return BACKEND

    @classmethod
    def check_backend_availability(cls) -> bool:
        """It needs no device."""
        return True

    def destroy_group(self) -> None:
        """Returns when all ranks have left, since each of them serves the others."""
        self._store.close(_LEAVE_SECONDS)

    def barrier(self, barrier_options: Any = BarrierOptions) -> None:
        """Waits for all ranks."""
        self._store.barrier()

    def allreduce(self, tensor: list[Any], allreduce_options: Any = AllReduceOptions) -> None:
        """Replaces a tensor by its sum, product, minimum or maximum over all ranks."""
        (only,), op = tensor, allreduce_options.reduceOp
        if op == ReduceOp.SUM:
            self._all.sum("allreduce", _on_host("allreduce", only))
        else:
            mine = _out("allreduce", only)
            mine[...] = self._reduced("allreduce", mine, op)

    def reduce(self, tensor: list[Any], reduce_options: Any = ReduceOptions) -> None:
        """The same on one rank."""
        (only,), op, root = tensor, reduce_options.reduceOp, reduce_options.root_rank
        if op == ReduceOp.SUM:
            self._all.sum_at("reduce", _on_host("reduce", only), root)
            return
        result = self._reduced("reduce", _array("reduce", only), op)
        if self._rank == root:
            _out("reduce", only)[...] = result

    def _reduced(self, call: str, mine: _Array, op: ReduceOp) -> Any:
        return functools.reduce(_REDUCTIONS[op], self._all.gather(f"{call} {op.name}", mine))

    def broadcast(self, tensor: list[Any], broadcast_options: Any = BroadcastOptions) -> None:
        """Replaces the tensor of each rank by that of one."""
        only = _out("broadcast", tensor[0])
        self._all.broadcast("broadcast", only, broadcast_options.root_rank)

    def allgather(
        self,
        tensor_list: list[list[Any]],
        tensor: list[Any],
        allgather_options: Any = AllGatherOptions,
    ) -> None:
        """Copies the tensors of all ranks, of one shape and dtype, into a list."""
        mine = _array("allgather", tensor[0])
        outs = [_out("allgather", each) for each in tensor_list[0]]
        for out, value in zip(outs, self._all.gather("allgather", mine)):
            out[...] = value

    def reducescatter(
        self,
        tensor: list[Any],
        tensor_list: list[list[Any]],
        reducescatter_options: Any = ReduceScatterOptions,
    ) -> None:
        """Reduces a list with a tensor for each rank, and gives each rank its one."""
        out = _out("reducescatter", tensor[0])
        parts = np.stack([_array("reducescatter", each) for each in tensor_list[0]])
        op = reducescatter_options.reduceOp
        if op == ReduceOp.SUM:
            self._all.sum_parts("reducescatter", parts, out)
        else:
            out[...] = self._reduced("reducescatter", parts, op)[self._rank]

    def send(self, tensor: list[Any], send_options: Any) -> None:
        """Raises `UnsupportedError`."""
        raise _unsupported("send")

    def recv(self, tensor: list[Any], recv_options: Any) -> None:
        """Raises `UnsupportedError`."""
        raise _unsupported("recv")


def _unsupported(call: str) -> kvstore.UnsupportedError:
    return kvstore.UnsupportedError(
        f"{call}: a store has no messages between two workers; use broadcast, which all ranks "
        "call, or Ray's objects"
    )


def _on_host(call: str, tensor: Any) -> Any:
    """A tensor that the library reads and writes in place."""
    device = getattr(tensor, "device", "cpu")
    if str(device) != "cpu":
        raise kvstore.UnsupportedError(f"{call}: a tensor is on {device}, and must be on the CPU")
    return tensor.detach() if hasattr(tensor, "detach") else tensor


def _array(call: str, tensor: Any) -> _Array:
    """The same memory as an array of numpy."""
    tensor = _on_host(call, tensor)
    if isinstance(tensor, np.ndarray):
        return tensor
    try:
        array: _Array = tensor.numpy()
    except TypeError as error:
        raise kvstore.UnsupportedError(f"{call}: numpy has no {tensor.dtype}") from error
    return array


def _out(call: str, tensor: Any) -> _Array:
    """The same of a tensor that is written."""
    array = _array(call, tensor)
    if not array.flags.writeable:
        raise kvstore.InvalidArgumentError(
            f"{call}: the array is read-only, as are arrays that Ray passes as arguments: copy it"
        )
    return array
