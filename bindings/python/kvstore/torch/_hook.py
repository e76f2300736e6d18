"""A communication hook of DistributedDataParallel: its buckets travel through the store."""

from __future__ import annotations

from typing import Any, Callable

import torch

from kvstore import KVStore, Ticket

from ._job import job


def ddp_hook() -> Callable[[Any, Any], torch.futures.Future[torch.Tensor]]:
    """A hook that averages the gradients of a DistributedDataParallel model through the store.

    All of its features stay, such as `no_sync`, `join` and `find_unused_parameters`. One hook is
    for one model.

    >>> model = torch.nn.parallel.DistributedDataParallel(model)
    >>> model.register_comm_hook(None, kvstore.torch.ddp_hook())
    """
    of = job()
    number = sum(key.startswith("DistributedDataParallel ") for key in of.keys)
    prefix = f"DistributedDataParallel {number}"
    of.keys.add(prefix)
    buckets = _Buckets(of.store, of.size, prefix)

    def kvstore_hook(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        return buckets.average(bucket)

    # PyTorch compares annotations, if there are any, with types, which texts are not.
    kvstore_hook.__annotations__.clear()
    return kvstore_hook


class _Buckets:
    """A key for each bucket. Autograd goes on while they are under way."""

    def __init__(self, store: KVStore, size: int, prefix: str) -> None:
        self._store = store
        self._size = size
        self._prefix = prefix
        # By the number of a bucket. DDP makes them anew after its first pass.
        self._keys: dict[int, tuple[str, int, torch.dtype]] = {}

    def average(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        buffer: torch.Tensor = bucket.buffer()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        if self._size == 1:
            future.set_result(buffer)
            return future
        # As DDP does it: of two ranks the bits are those of its own mean.
        buffer.div_(self._size)
        ticket = self._store.pushpull_async(self._key(bucket.index(), buffer), buffer)
        ticket.add_done_callback(lambda done: _settle(done, future, buffer))
        return future

    def _key(self, index: int, buffer: torch.Tensor) -> str:
        known = self._keys.get(index)
        if known is not None:
            key, length, dtype = known
            if (length, dtype) == (buffer.numel(), buffer.dtype):
                return key
            self._store.remove(key)
        key = f"{self._prefix} bucket {index} of {buffer.numel()}"
        self._store.init(key, torch.zeros_like(buffer))
        self._keys[index] = key, buffer.numel(), buffer.dtype
        return key


def _settle(
    ticket: Ticket, future: torch.futures.Future[torch.Tensor], buffer: torch.Tensor
) -> None:
    try:
        ticket.wait()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(buffer)
