"""Collective operations over a store, for arrays without keys of the user."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

import kvstore
from kvstore import KVStore

_Array = np.ndarray[Any, Any]
# Maximum number of keys: what stays on the servers is bounded, however many shapes a program uses.
_MAX_KEYS = 64
# Gathered texts of unequal lengths are padded to powers of two from here, which share a key.
_MIN_PADDED = 256


class Collectives:
    """Sums, gathers and broadcasts. All ranks make the same calls in the same order.

    A key stands for an operation, a dtype and a shape. Values that are not added up travel as rows
    of bytes: each rank pushes its own rows, or none, so one round moves what is needed.
    """

    def __init__(self, store: KVStore, name: str) -> None:
        self.store = store
        self._name = name
        self._rank = store.rank
        self._size = store.num_workers
        self._keys: OrderedDict[str, str] = OrderedDict()
        self._made = 0

    def sum(self, what: str, array: Any) -> None:
        """Replaces an array by its sum over all ranks, added by rank."""
        self.store.pushpull(self._summed(what, array), array)

    def sum_at(self, what: str, array: Any, root: int) -> None:
        """The same on one rank; arrays of the others stay as they are."""
        key = self._summed(what, array)
        if self._rank == root:
            self.store.pushpull(key, array)
        else:
            self.store.push(key, array)

    def sum_parts(self, what: str, parts: _Array, out: _Array) -> None:
        """Sums arrays with a part for each rank, and gives this rank its part."""
        key = self._summed(what, parts)
        self.store.push(key, parts)
        part = np.empty((1, *parts.shape[1:]), parts.dtype)
        self.store.pull_rows(key, np.array([self._rank]), out=part)
        out[...] = part[0]

    def _summed(self, what: str, array: Any) -> str:
        line = self._line(what, array)
        if line not in self._keys:
            self.agree(what, [line])
            is_tensor = hasattr(array, "new_zeros")
            self._make(line, array.new_zeros(array.shape) if is_tensor else np.zeros_like(array))
        return self._key(line)

    def gather(self, what: str, mine: _Array) -> _Array:
        """The arrays of all ranks, of one shape and dtype, along a new first axis."""
        line = self._line(what, mine)
        if line not in self._keys:
            self.agree(what, [line])
        return self._gather(line, mine)

    def _gather(self, line: str, mine: _Array) -> _Array:
        row = _bytes_of(mine)
        gathered = np.empty((self._size, row.size), np.uint8)
        if row.size:
            key = self._rows(line, gathered.shape)
            self.store.push_rows(key, np.array([self._rank]), row[None])
            self.store.pull(key, out=gathered)
        return gathered.view(mine.dtype).reshape(self._size, *mine.shape)

    def broadcast(self, what: str, array: _Array, root: int) -> None:
        """Replaces the array of each rank by that of one."""
        line = self._line(what, array)
        if line not in self._keys:
            self.agree(what, [line])
        row = _bytes_of(array)[None]
        if not row.size:
            return
        key = self._rows(line, row.shape)
        if self._rank == root:
            self.store.push_rows(key, np.array([0]), row)
            return
        self.store.push_rows(key, np.array([], np.int64), row[:0])
        row = np.empty_like(row)
        self.store.pull(key, out=row)
        array[...] = row.view(array.dtype).reshape(array.shape)

    # Keys.

    def _line(self, what: str, array: Any) -> str:
        return describe(f"{what} of {self._name}", array)

    def _rows(self, line: str, shape: tuple[int, ...]) -> str:
        if line not in self._keys:
            self._make(line, np.zeros(shape, np.uint8))
        return self._key(line)

    def _make(self, line: str, zeros: Any) -> None:
        while len(self._keys) >= _MAX_KEYS:
            _, oldest = self._keys.popitem(last=False)
            self.store.remove(oldest)
        # A removed key is made again under another name, since ranks remove it at unequal times.
        self._made += 1
        self._keys[line] = key = f"{line} ({self._made})"
        # A rule that the user has set for all keys must not change it.
        self.store.set_optimizer_for(key, "none")
        self.store.init(key, zeros)

    def _key(self, line: str) -> str:
        self._keys.move_to_end(line)
        return self._keys[line]

    def forget(self) -> None:
        """Removes all keys: a checkpoint must not have them."""
        if self._keys:
            self.store.remove(list(self._keys.values()))
            self._keys.clear()

    # Agreement.

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks, of unequal lengths."""
        length = np.array([len(data)], np.int64)
        lengths = self._gather(self._line("lengths", length), length)[:, 0]
        padded = max(_MIN_PADDED, 1 << int(max(lengths) - 1).bit_length())
        row = np.zeros(padded, np.uint8)
        row[: len(data)] = np.frombuffer(data, np.uint8)
        rows = self._gather(self._line("texts", row), row)
        return [bytes(each[:length]) for each, length in zip(rows, lengths)]

    def agree(self, call: str, lines: list[str]) -> None:
        """Raises `DiffersError` on all ranks unless all have the same lines of describe()."""
        texts = self.gather_bytes("\n".join(lines).encode())
        for rank, text in enumerate(texts):
            if text != texts[0]:
                first, other = (each.decode().split("\n") for each in (texts[0], text))
                raise kvstore.DiffersError(f"{call}: {difference(first, other, rank)}")


def describe(name: str, array: Any) -> str:
    """A name with the dtype and the shape of its array."""
    dtype = str(array.dtype).replace("torch.", "")
    return f"{name}: {dtype}{list(array.shape)}"


def difference(first: list[str], other: list[str], rank: int) -> str:
    """The first line in which a rank differs from rank 0."""
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
    names = [each[place].rpartition(": ")[0] for each in (other, first)]
    return f"number {place} is `{names[0]}` on rank {rank} and `{names[1]}` on rank 0"


def _bytes_of(array: _Array) -> _Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
