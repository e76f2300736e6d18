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
from ._rendezvous import join

_Array = np.ndarray[Any, Any]
# Timeout in seconds of a rank that leaves the group, for ranks that do not.
_LEAVE_SECONDS = 60.0
# The others of Ray's reductions are the product alone.
_OPS = {ReduceOp.SUM: "sum", ReduceOp.MIN: "min", ReduceOp.MAX: "max"}


class Group(BaseGroup):
    """Collective operations on arrays of numpy and on PyTorch's tensors in host memory."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self._store = join(group_name, rank, world_size)

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
        mine, op = _out("allreduce", tensor[0]), allreduce_options.reduceOp
        if op in _OPS:
            self._store.allreduce(mine, op=_OPS[op])
        else:
            mine[...] = self._product(mine)

    def reduce(self, tensor: list[Any], reduce_options: Any = ReduceOptions) -> None:
        """The same on one rank."""
        op, root = reduce_options.reduceOp, reduce_options.root_rank
        mine = _array("reduce", tensor[0])
        out = _out("reduce", tensor[0]) if self._rank == root else None
        if op in _OPS:
            self._store.reduce(mine, root, out, op=_OPS[op])
            return
        product = self._product(mine)
        if out is not None:
            out[...] = product

    def _product(self, mine: _Array) -> Any:
        everything = [np.empty_like(mine) for _ in range(self._store.num_workers)]
        self._store.allgather(mine, everything)
        return functools.reduce(np.multiply, everything)

    def broadcast(self, tensor: list[Any], broadcast_options: Any = BroadcastOptions) -> None:
        """Replaces the tensor of each rank by that of one."""
        self._store.broadcast_from(_out("broadcast", tensor[0]), broadcast_options.root_rank)

    def allgather(
        self,
        tensor_list: list[list[Any]],
        tensor: list[Any],
        allgather_options: Any = AllGatherOptions,
    ) -> None:
        """Copies the tensors of all ranks into a list."""
        outs = [_out("allgather", each) for each in tensor_list[0]]
        self._store.allgather(_array("allgather", tensor[0]), outs)

    def reducescatter(
        self,
        tensor: list[Any],
        tensor_list: list[list[Any]],
        reducescatter_options: Any = ReduceScatterOptions,
    ) -> None:
        """Reduces a list with a tensor for each rank, and gives each rank its one."""
        out, op = _out("reducescatter", tensor[0]), reducescatter_options.reduceOp
        parts = [_array("reducescatter", each) for each in tensor_list[0]]
        if op in _OPS:
            self._store.reduce_scatter(parts, out, op=_OPS[op])
        else:
            out[...] = self._product(np.stack(parts))[self._rank]

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
