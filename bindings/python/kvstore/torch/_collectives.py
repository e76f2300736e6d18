"""Calls of all ranks without keys of yours: sums, broadcasts, gathered objects.

They are the store's collective calls: ranks exchange the bytes directly, and nothing stays on the
servers.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

import torch

import kvstore
from kvstore._agreement import agree, describe, gather_bytes

from ._job import Job, job

_NAMES_OF_SUMMED = (
    *("float32", "float64", "float16", "bfloat16"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
# Older versions of PyTorch have one unsigned type.
SUMMED = {getattr(torch, name): name for name in _NAMES_OF_SUMMED if hasattr(torch, name)}


# Sums.


def allreduce(tensor: Any, op: str = "mean") -> Any:
    """The mean or the sum over all ranks, in a new tensor; of a number a number.

    All ranks call it with the same shape and dtype. Sums are added by rank and rounded once.
    `op` is "mean" or "sum"; integers have no mean.

    >>> accuracy = kvstore.torch.allreduce(correct / count)
    """
    if op not in ("mean", "sum"):
        raise kvstore.InvalidArgumentError(f'allreduce: op is "mean" or "sum", not {op!r}')
    if not isinstance(tensor, torch.Tensor):
        dtype = torch.int64 if isinstance(tensor, int) and op == "sum" else torch.float64
        return allreduce(torch.tensor(tensor, dtype=dtype), op).item()
    if tensor.dtype not in SUMMED or tensor.layout != torch.strided:
        raise kvstore.UnsupportedError(
            f"allreduce: {tensor.dtype} with layout {tensor.layout} is not added up"
        )
    if op == "mean" and not tensor.dtype.is_floating_point:
        raise kvstore.UnsupportedError(f'allreduce: {tensor.dtype} has no mean; pass op="sum"')
    of = job()
    result = tensor.detach().to("cpu", copy=True).contiguous()
    if of.size > 1:
        of.store.allreduce(result, op=op)
    return result.to(tensor.device)


# Broadcasts.


def broadcast_parameters(
    model: Union[torch.nn.Module, Mapping[str, Any], Iterable[tuple[str, Any]]], root: int = 0
) -> None:
    """Gives all ranks the parameters and buffers of one rank, in place.

    `model` is a module, a state_dict or pairs of names and tensors; those that are no tensors are
    left out. A rank with other names, shapes or dtypes is an error on all ranks.

    >>> kvstore.torch.broadcast_parameters(model)
    """
    of = job()
    named = [(name, each) for name, each in _named(model) if isinstance(each, torch.Tensor)]
    agree(of.store, "broadcast_parameters", [describe(name, each) for name, each in named])
    broadcast_tensors(of, [each for _, each in named], _checked(of, root))


def _named(model: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(model, torch.nn.Module):
        model = model.state_dict(keep_vars=True)
    return list(model.items()) if isinstance(model, Mapping) else list(model)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root: int = 0) -> None:
    """Gives all ranks the state of the optimizer of one rank, with its learning rates.

    >>> kvstore.torch.broadcast_optimizer_state(optimizer)
    """
    of = job()
    mine = optimizer.state_dict() if of.rank == _checked(of, root) else None
    state = broadcast_object(mine, root)
    if of.rank != root:
        optimizer.load_state_dict(state)


def broadcast_object(value: Any, root: int = 0) -> Any:
    """Gives the object of one rank to all ranks, which get a copy of it.

    Objects travel as by torch.save() and are read with `weights_only=True`: numbers, texts,
    tensors, and lists, tuples and dicts of them. No code comes with them; another class must be
    known to torch.serialization.add_safe_globals() on all ranks.
    """
    of = job()
    if of.size == 1:
        _checked(of, root)
        return _from_bytes(_to_bytes(value))
    mine = _to_bytes(value) if of.rank == _checked(of, root) else None
    length = torch.tensor([len(mine) if mine is not None else 0])
    broadcast_tensors(of, [length], root)
    room = torch.empty(int(length), dtype=torch.uint8)
    if mine is not None:
        room = torch.frombuffer(mine, dtype=torch.uint8)
    broadcast_tensors(of, [room], root)
    return _from_bytes(bytearray(room.numpy()))


def broadcast_tensors(of: Job, tensors: list[torch.Tensor], root: int) -> None:
    """The bytes of tensors of equal shapes and dtypes, all at once."""
    tensors = [tensor for tensor in tensors if tensor.numel()]
    if of.size == 1 or not tensors:
        return
    flats = [_bytes_of(tensor) for tensor in tensors]
    tickets = [of.store.broadcast_from_async(flat, root) for flat in flats]
    for ticket in tickets:
        ticket.wait()
    if of.rank != root:
        with torch.no_grad():
            for tensor, flat in zip(tensors, flats):
                tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor's bytes in host memory."""
    flat = tensor.detach().to("cpu", copy=True).contiguous().reshape(-1)
    return flat.view(torch.uint8)


# Gathered objects.


def allgather_object(value: Any) -> list[Any]:
    """The objects of all ranks, by rank; for which objects, see broadcast_object().

    >>> kvstore.torch.allgather_object({"rank": kvstore.torch.rank(), "loss": loss.item()})
    """
    return [_from_bytes(each) for each in gather_bytes(job().store, _to_bytes(value))]


def _to_bytes(value: Any) -> bytearray:
    file = io.BytesIO()
    torch.save(value, file)
    return bytearray(file.getbuffer())


def _from_bytes(data: Union[bytes, bytearray]) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def barrier(timeout: Optional[float] = None) -> None:
    """Waits until all ranks have arrived here. `timeout` is in seconds; None waits for ever."""
    job().store.barrier(timeout)


def _checked(of: Job, root: int) -> int:
    if not 0 <= root < of.size:
        raise kvstore.InvalidArgumentError(f"root is {root}, and ranks are 0 to {of.size - 1}")
    return root
