"""A communication hook of DistributedDataParallel: its buckets go from rank to rank."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional

import torch

from kvstore import Ticket

from ._job import Job, job
from ._staging import Accelerator, HostCopies, accelerator_of


def ddp_hook() -> Callable[[Any, Any], torch.futures.Future[torch.Tensor]]:
    """A hook that averages the gradients of a DistributedDataParallel model through the store.

    All of its features stay, such as `no_sync`, `join` and `find_unused_parameters`.

    >>> model = torch.nn.parallel.DistributedDataParallel(model)
    >>> model.register_comm_hook(None, kvstore.torch.ddp_hook())
    """
    of, staged = job(), _StagedBuckets()

    def kvstore_hook(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        return _average(of, bucket, staged)

    # PyTorch compares annotations, if there are any, with types, which texts are not.
    kvstore_hook.__annotations__.clear()
    return kvstore_hook


def _average(of: Job, bucket: Any, staged: _StagedBuckets) -> torch.futures.Future[torch.Tensor]:
    """Starts the sum of a bucket; autograd goes on while it is under way."""
    buffer: torch.Tensor = bucket.buffer()
    accelerator = accelerator_of(buffer)
    future: torch.futures.Future[torch.Tensor] = (
        torch.futures.Future() if accelerator is None else accelerator.future()
    )
    if of.size == 1:
        future.set_result(buffer)
        return future
    # As DDP does it: of two ranks the bits are those of its own mean.
    buffer.div_(of.size)
    if accelerator is not None:
        staged.start(of, bucket.index(), buffer, accelerator, future)
        return future
    ticket = of.store.allreduce_async(buffer)
    ticket.add_done_callback(lambda done: _settle(done, future, buffer))
    return future


def _settle(
    ticket: Ticket,
    future: torch.futures.Future[torch.Tensor],
    buffer: torch.Tensor,
    copies: Optional[HostCopies] = None,
) -> None:
    """Gives the sum to autograd, behind the copy from host memory if it is there."""
    try:
        ticket.wait()
        if copies is not None:
            copies.to_device([0], [buffer])
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(buffer)


class _StagedBuckets:
    """Buckets on an accelerator, whose sums are made of copies in host memory.

    A thread waits for the copies, in the order of the buckets, so that backward goes on.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[torch.Size, HostCopies]] = {}
        self._waiter: Optional[ThreadPoolExecutor] = None

    def _copies_of(self, index: int, buffer: torch.Tensor) -> HostCopies:
        # DDP makes its buckets anew after the first pass.
        known = self._copies.get(index)
        if known is None or known[0] != buffer.shape:
            known = self._copies[index] = (buffer.shape, HostCopies([buffer]))
        return known[1]

    def start(
        self,
        of: Job,
        index: int,
        buffer: torch.Tensor,
        accelerator: Accelerator,
        future: torch.futures.Future[torch.Tensor],
    ) -> None:
        copies = self._copies_of(index, buffer)
        event = copies.begin(0, buffer)

        def send() -> None:
            try:
                if event is not None:
                    event.synchronize()
                [host] = copies.hosts([0], [buffer])
                ticket = of.store.allreduce_async(host)
                ticket.add_done_callback(take)
            except Exception as error:
                future.set_exception(error)

        def take(ticket: Ticket) -> None:
            # The users of the result wait for this stream.
            with accelerator.beside():
                _settle(ticket, future, buffer, copies)

        if self._waiter is None:
            self._waiter = ThreadPoolExecutor(1, "kvstore-buckets")
        self._waiter.submit(send)
