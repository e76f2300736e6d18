"""Copies in host memory of tensors on an accelerator, for the calls of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Optional

import torch

import kvstore


class Accelerator:
    """The streams of a device. Copies are in the order of the current one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        module = getattr(torch, device.type, None)
        # A kind of device without streams copies at once.
        self._streams = module if hasattr(module, "Event") and hasattr(module, "Stream") else None
        self._side: Any = None

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory for the values of a tensor, pinned where that can be."""
        pinned = self._streams is not None
        return torch.empty_like(tensor, device="cpu", pin_memory=pinned, requires_grad=False)

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Copies between device and host; the host does not wait for it."""
        to.copy_(source, non_blocking=self._streams is not None)

    def mark(self) -> Any:
        """An event behind all that the current stream has been given, or None if all is done."""
        if self._streams is None:
            return None
        event = self._streams.Event()
        event.record(self._streams.current_stream(self._device))
        return event

    def wait_for(self, event: Any) -> None:
        """What the current stream is given from now on comes behind an event."""
        if self._streams is not None:
            self._streams.current_stream(self._device).wait_event(event)

    def beside(self) -> AbstractContextManager[Any]:
        """A context whose current stream is beside those of the program."""
        if self._streams is None:
            return nullcontext()
        if self._side is None:
            self._side = self._streams.Stream(self._device)
        context: AbstractContextManager[Any] = self._streams.stream(self._side)
        return context

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """A future whose users wait for the stream on which its tensor is set."""
        return torch.futures.Future(devices=[self._device])


_accelerators: dict[torch.device, Accelerator] = {}


def accelerator_of(tensor: torch.Tensor) -> Optional[Accelerator]:
    """The accelerator with the memory of a tensor; None for one in host memory."""
    device = tensor.device
    if device.type == "cpu":
        return None
    if device not in _accelerators:
        _accelerators[device] = Accelerator(device)
    return _accelerators[device]


class HostCopies:
    """For each of some tensors what stands for it in a call: itself, or its copy in host memory.

    A copy is pinned and has the strides of the tensor. It is used again and again: what is copied
    to it comes behind the last copy from it, whatever the streams.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._accelerators = [accelerator_of(each) for each in tensors]
        self._hosts = [
            None if accelerator is None else accelerator.like(each.detach())
            for accelerator, each in zip(self._accelerators, tensors)
        ]
        # By place, behind the last copy from host memory.
        self._given: dict[int, Any] = {}

    def begin(self, place: int, tensor: torch.Tensor) -> Any:
        """Begins to copy to host memory; gives an event behind it, or None if all is done."""
        accelerator, host = self._accelerators[place], self._hosts[place]
        if accelerator is None or host is None:
            return None
        given = self._given.pop(place, None)
        if given is not None:
            accelerator.wait_for(given)
        accelerator.copy(host, tensor.detach())
        return accelerator.mark()

    def to_host(self, places: Sequence[int], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a call takes as values, and may take as outs; copies have arrived."""
        events = [self.begin(place, tensor) for place, tensor in zip(places, tensors)]
        for event in events:
            if event is not None:
                event.synchronize()
        return self.hosts(places, tensors)

    def hosts(self, places: Sequence[int], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The same, without a copy."""
        hosts = [self._hosts[place] for place in places]
        return [tensor if host is None else host for host, tensor in zip(hosts, tensors)]

    def outs(self, places: Sequence[int], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a call takes as outs; the last copies from there have ended."""
        for place in places:
            given = self._given.pop(place, None)
            if given is not None:
                given.synchronize()
        return self.hosts(places, tensors)

    @torch.no_grad()
    def to_device(self, places: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
        """Copies the outs of a call to the tensors; the host does not wait for it."""
        for place, tensor in zip(places, tensors):
            accelerator, host = self._accelerators[place], self._hosts[place]
            if accelerator is not None and host is not None:
                accelerator.copy(tensor, host)
                event = accelerator.mark()
                if event is not None:
                    self._given[place] = event


class Arrivals:
    """Copies to host memory that have begun, by place, in their order."""

    def __init__(self) -> None:
        self._events: dict[int, Any] = {}

    def __contains__(self, place: int) -> bool:
        return place in self._events

    def __len__(self) -> int:
        return len(self._events)

    def add(self, place: int, event: Any) -> None:
        """Adds what HostCopies.begin() gave."""
        self._events[place] = event

    def take(self, wait: bool) -> Iterator[int]:
        """The places whose copies have arrived, or all, each when its copy is there."""
        for place, event in list(self._events.items()):
            if event is not None:
                if wait:
                    event.synchronize()
                elif not event.query():
                    return
            del self._events[place]
            yield place

    def clear(self) -> None:
        """Forgets all."""
        self._events.clear()


def refuse_without_memory(call: str, named: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Parameters on the device `meta` have no values."""
    for name, each in named:
        if each.device.type == "meta":
            raise kvstore.UnsupportedError(f"{call}: `{name}` is on meta, and has no values")
