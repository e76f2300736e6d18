"""What all workers must have alike: compared by a collective call, told as the user knows it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Union

from ._errors import DiffersError

if TYPE_CHECKING:
    from ._store import KVStore


def gather_bytes(store: KVStore, mine: Union[bytes, bytearray]) -> list[bytes]:
    """The bytes of all workers, by rank."""
    import numpy as np

    if store.num_workers == 1:
        return [bytes(mine)]
    lengths = [np.zeros(1, np.int64) for _ in range(store.num_workers)]
    store.allgather(np.array([len(mine)]), lengths)
    rooms = [np.empty(int(length[0]), np.uint8) for length in lengths]
    store.allgather(np.frombuffer(bytes(mine), np.uint8), rooms)
    return [room.tobytes() for room in rooms]


def agree(store: KVStore, call: str, lines: list[str]) -> None:
    """Raises `DiffersError` on all workers unless all have the same lines; names the first ones."""
    text = "\n".join(lines).encode()
    digest = hashlib.sha256(text).digest()
    if len(set(gather_bytes(store, digest))) > 1:
        all_lines = [each.decode().split("\n") for each in gather_bytes(store, text)]
        raise DiffersError(f"{call}: {difference(all_lines)}")


def describe(name: str, array: Any) -> str:
    """The name of an array as the user knows it, with its dtype and shape."""
    dtype = str(array.dtype).replace("torch.", "")
    return f"{name}: {dtype}{list(array.shape)}"


def difference(all_lines: list[list[str]]) -> str:
    """How the first rank that differs from rank 0 does so."""
    first = all_lines[0]
    rank, other = next((i, each) for i, each in enumerate(all_lines) if each != first)
    ours, theirs = (dict(line.rpartition(": ")[::2] for line in each) for each in (first, other))
    for name, what in ours.items():
        if name not in theirs:
            return f"rank {rank} has no `{name}`; it is {what} on rank 0"
        if theirs[name] != what:
            return f"`{name}` is {theirs[name]} on rank {rank} and {what} on rank 0"
    for name, what in theirs.items():
        if name not in ours:
            return f"rank 0 has no `{name}`; it is {what} on rank {rank}"
    place = next(i for i, pair in enumerate(zip(first, other)) if pair[0] != pair[1])
    mine, others = (each[place].rpartition(": ")[0] for each in (first, other))
    return f"another order: number {place} is `{others}` on rank {rank} and `{mine}` on rank 0"
