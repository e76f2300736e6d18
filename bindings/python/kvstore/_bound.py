"""Bound lists: arrays that the library has checked once, for calls that repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._call import can_call
from ._handle import postponed
from ._native import BoundLists
from ._unique import Unique

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Optional


class Bound(BoundLists, Unique):
    """Keys with their values and outs, as `KVStore.bind()` has checked them.

    Each call uses what the arrays have then. It first looks whether they are where they were: the
    memory of an array that was resized or replaced since is never used, and the call raises
    `InvalidArgumentError`. Threads may share it; their calls are made one after the other.

    >>> with kv.bind(keys, gradients, weights) as bound:
    ...     for batch in batches:
    ...         compute(batch, weights, gradients)
    ...         bound.pushpull()
    """

    _instead = "it stands for arrays of this process: bind them in each process"

    def __enter__(self) -> Bound:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvstore.Bound{', closed' if self.closed else ''}>"

    def __del__(self) -> None:
        if can_call():
            self.close()
        else:
            postponed.append(self.close)
