"""Calls of all ranks without keys of yours: sums, broadcasts, gathered objects.

Values pass through a few keys of fixed size, in blocks: what stays on the servers is bounded,
whatever is sent. Each rank pushes rows of its own, or none, so one round moves what is needed.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional, Union

import torch

import kvstore

from ._job import Job, job

_ROW_BYTES = 4096
# A block of 8 MiB of bytes or float32.
_BLOCK_ROWS = 2048
_SUM_ELEMENTS = 1024
# Rows of each rank in one round of a gather.
_GATHER_ROWS = 16
_LENGTH = struct.Struct("<Q")
_NAMES_OF_SUMMED = (
    "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64"
).split()
# Older versions of PyTorch have one unsigned type.
_SUMMED = {getattr(torch, name): name for name in _NAMES_OF_SUMMED if hasattr(torch, name)}


def _ready(of: Job, name: str, shape: tuple[int, int], dtype: torch.dtype) -> str:
    """A key of these calls, initialised by all ranks at its first use."""
    key = f"kvstore.torch/{name}"
    if key not in of.keys:
        of.store.init(key, torch.zeros(shape, dtype=dtype))
        of.keys.add(key)
    return key


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
    if tensor.dtype not in _SUMMED or tensor.layout != torch.strided:
        raise kvstore.UnsupportedError(
            f"allreduce: {tensor.dtype} with layout {tensor.layout} is not added up"
        )
    if op == "mean" and not tensor.dtype.is_floating_point:
        raise kvstore.UnsupportedError(f'allreduce: {tensor.dtype} has no mean; pass op="sum"')
    of = job()
    result = tensor.detach().to("cpu", copy=True).contiguous()
    if of.size > 1:
        _sum(of, result.view(-1) if result.dim() else result.reshape(1))
        if op == "mean":
            result.div_(of.size)
    return result.to(tensor.device)


def _sum(of: Job, flat: torch.Tensor) -> None:
    """Replaces values by their sums, a block at a time."""
    shape = (_BLOCK_ROWS, _SUM_ELEMENTS)
    key = _ready(of, f"sum {_SUMMED[flat.dtype]}", shape, flat.dtype)
    for block in flat.split(_BLOCK_ROWS * _SUM_ELEMENTS):
        if block.numel() == _BLOCK_ROWS * _SUM_ELEMENTS:
            of.store.pushpull(key, block.view(shape))
            continue
        count = -(-block.numel() // _SUM_ELEMENTS)
        rows = torch.zeros(count, _SUM_ELEMENTS, dtype=flat.dtype)
        rows.view(-1)[: block.numel()] = block
        ids = torch.arange(count)
        of.store.push_rows(key, ids, rows)
        of.store.pull_rows(key, ids, out=rows)
        block.copy_(rows.view(-1)[: block.numel()])


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
    agree(of, "broadcast_parameters", [describe(name, each) for name, each in named])
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
    """The bytes of tensors of equal shapes and dtypes, in blocks of 8 MiB."""
    if of.size == 1 or not tensors:
        return
    key = _ready(of, "bytes", (_BLOCK_ROWS, _ROW_BYTES), torch.uint8)
    flats = [_bytes_of(tensor) for tensor in tensors]
    block = torch.empty(_BLOCK_ROWS, _ROW_BYTES, dtype=torch.uint8)
    for pieces, length in _blocks([flat.numel() for flat in flats]):
        rows = block[: -(-length // _ROW_BYTES)]
        ids = torch.arange(len(rows))
        if of.rank == root:
            for index, begin, end, place in pieces:
                block.view(-1)[place : place + end - begin] = flats[index][begin:end]
            of.store.push_rows(key, ids, rows)
        else:
            of.store.push_rows(key, ids[:0], rows[:0])
        of.store.pull_rows(key, ids, out=rows)
        if of.rank != root:
            for index, begin, end, place in pieces:
                flats[index][begin:end] = block.view(-1)[place : place + end - begin]
    if of.rank != root:
        with torch.no_grad():
            for tensor, flat in zip(tensors, flats):
                if tensor.numel():
                    tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor's bytes in host memory."""
    flat = tensor.detach().to("cpu", copy=True).contiguous().reshape(-1)
    return flat.view(torch.uint8)


def _blocks(lengths: list[int]) -> Iterator[tuple[list[tuple[int, int, int, int]], int]]:
    """Cuts arrays into blocks: pieces as (array, begin, end, place in the block), and bytes."""
    pieces: list[tuple[int, int, int, int]] = []
    filled, limit = 0, _BLOCK_ROWS * _ROW_BYTES
    for index, length in enumerate(lengths):
        begin = 0
        while begin < length:
            end = min(length, begin + limit - filled)
            pieces.append((index, begin, end, filled))
            filled += end - begin
            begin = end
            if filled == limit:
                yield pieces, filled
                pieces, filled = [], 0
    if pieces:
        yield pieces, filled


# Gathered objects.


def allgather_object(value: Any) -> list[Any]:
    """The objects of all ranks, by rank; for which objects, see broadcast_object().

    >>> kvstore.torch.allgather_object({"rank": kvstore.torch.rank(), "loss": loss.item()})
    """
    return [_from_bytes(each) for each in _gather(job(), _to_bytes(value))]


def _gather(of: Job, mine: bytearray) -> list[bytearray]:
    if of.size == 1:
        return [mine]
    key = _ready(of, "gather", (of.size * _GATHER_ROWS, _ROW_BYTES), torch.uint8)
    capacity = _GATHER_ROWS * _ROW_BYTES
    sent = bytearray(_LENGTH.pack(len(mine))) + mine
    lengths, gathered = [0], [bytearray() for _ in range(of.size)]
    begin = 0
    while begin < max(lengths) or begin == 0:
        _push_part(of, key, sent[begin : begin + capacity])
        if begin == 0:
            lengths = _pull_lengths(of, key)
        parts = [max(0, min(length - begin, capacity)) for length in lengths]
        for whole, part in zip(gathered, _pull_parts(of, key, parts)):
            whole += part
        begin += capacity
    return [each[_LENGTH.size :] for each in gathered]


def _push_part(of: Job, key: str, part: bytearray) -> None:
    """Pushes a part of this rank's bytes into its rows, also if it is empty."""
    count = -(-len(part) // _ROW_BYTES)
    rows = torch.zeros(count, _ROW_BYTES, dtype=torch.uint8)
    if part:
        rows.view(-1)[: len(part)] = torch.frombuffer(part, dtype=torch.uint8)
    of.store.push_rows(key, torch.arange(count) + of.rank * _GATHER_ROWS, rows)


def _pull_lengths(of: Job, key: str) -> list[int]:
    """The bytes that each rank sends in all, from the beginnings of their first rows."""
    heads = torch.empty(of.size, _ROW_BYTES, dtype=torch.uint8)
    of.store.pull_rows(key, torch.arange(of.size) * _GATHER_ROWS, out=heads)
    return [_LENGTH.size + _LENGTH.unpack_from(head.numpy())[0] for head in heads]


def _pull_parts(of: Job, key: str, parts: list[int]) -> Iterator[bytearray]:
    """What all ranks have pushed in this round."""
    counts = [-(-part // _ROW_BYTES) for part in parts]
    ids = [rank * _GATHER_ROWS + row for rank, count in enumerate(counts) for row in range(count)]
    rows = torch.empty(len(ids), _ROW_BYTES, dtype=torch.uint8)
    of.store.pull_rows(key, torch.tensor(ids), out=rows)
    place = 0
    for part, count in zip(parts, counts):
        yield bytearray(rows[place : place + count].view(-1)[:part].numpy())
        place += count


def _to_bytes(value: Any) -> bytearray:
    file = io.BytesIO()
    torch.save(value, file)
    return bytearray(file.getbuffer())


def _from_bytes(data: bytearray) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


# Agreement.


def describe(name: str, tensor: torch.Tensor) -> str:
    """The name of a parameter as the user knows it, with its dtype and shape."""
    dtype = str(tensor.dtype).replace("torch.", "")
    return f"{name}: {dtype}{list(tensor.shape)}"


def refuse_devices(call: str, named: list[tuple[str, torch.nn.Parameter]]) -> None:
    """Jobs take no tensors of GPUs."""
    for name, each in named:
        if each.device.type != "cpu":
            raise kvstore.UnsupportedError(
                f"{call}: `{name}` is on {each.device}; parameters must be in CPU memory"
            )


def agree(of: Job, call: str, lines: list[str]) -> None:
    """Raises `DiffersError` on all ranks unless all have the same lines; names the first ones."""
    if of.size == 1:
        return
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    if len({bytes(each) for each in _gather(of, bytearray(digest))}) == 1:
        return
    all_lines = [bytes(each).decode().split("\n") for each in _gather(of, _joined(lines))]
    raise kvstore.DiffersError(f"{call}: {difference(all_lines)}")


def _joined(lines: list[str]) -> bytearray:
    return bytearray("\n".join(lines).encode())


def difference(all_lines: list[list[str]]) -> str:
    """How the first rank that differs from rank 0 does so."""
    first = all_lines[0]
    rank, other = next((i, each) for i, each in enumerate(all_lines) if each != first)
    ours, theirs = ({line.rpartition(": ")[0]: line for line in each} for each in (first, other))
    for name, line in ours.items():
        if name not in theirs:
            return f"rank {rank} has no `{name}`; it is {_what(line)} on rank 0"
        if theirs[name] != line:
            return f"`{name}` is {_what(theirs[name])} on rank {rank} and {_what(line)} on rank 0"
    for name, line in theirs.items():
        if name not in ours:
            return f"rank 0 has no `{name}`; it is {_what(line)} on rank {rank}"
    place = next(i for i, pair in enumerate(zip(first, other)) if pair[0] != pair[1])
    mine, others = (each[place].rpartition(": ")[0] for each in (first, other))
    return f"another order: number {place} is `{others}` on rank {rank} and `{mine}` on rank 0"


def _what(line: str) -> str:
    return line.rpartition(": ")[2]


def barrier(timeout: Optional[float] = None) -> None:
    """Waits until all ranks have arrived here. `timeout` is in seconds; None waits for ever."""
    job().store.barrier(timeout)


def _checked(of: Job, root: int) -> int:
    if not 0 <= root < of.size:
        raise kvstore.InvalidArgumentError(f"root is {root}, and ranks are 0 to {of.size - 1}")
    return root
