"""A communication hook of DistributedDataParallel: its buckets go from rank to rank."""

from __future__ import annotations

from typing import Any, Callable

import torch

from kvstore import Ticket

from ._job import Job, job


def ddp_hook() -> Callable[[Any, Any], torch.futures.Future[torch.Tensor]]:
    """A hook that averages the gradients of a DistributedDataParallel model through the store.

    All of its features stay, such as `no_sync`, `join` and `find_unused_parameters`.

    >>> model = torch.nn.parallel.DistributedDataParallel(model)
    >>> model.register_comm_hook(None, kvstore.torch.ddp_hook())
    """
    of = job()

    def kvstore_hook(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        return _average(of, bucket)

    # PyTorch compares annotations, if there are any, with types, which texts are not.
    kvstore_hook.__annotations__.clear()
    return kvstore_hook


def _average(of: Job, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Starts the sum of a bucket; autograd goes on while it is under way."""
    buffer: torch.Tensor = bucket.buffer()
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    if of.size == 1:
        future.set_result(buffer)
        return future
    # As DDP does it: of two ranks the bits are those of its own mean.
    buffer.div_(of.size)
    ticket = of.store.allreduce_async(buffer)
    ticket.add_done_callback(lambda done: _settle(done, future, buffer))
    return future


def _settle(
    ticket: Ticket, future: torch.futures.Future[torch.Tensor], buffer: torch.Tensor
) -> None:
    try:
        ticket.wait()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(buffer)
