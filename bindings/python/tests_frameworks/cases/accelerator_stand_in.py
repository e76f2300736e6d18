"""A device where there is none: tensors in host memory, copied as late as a stream may do it.

What a program computes on the device is there at once, as if all kernels were instant. A copy to
host memory has the values of the moment at which it was asked for, and arrives later; a copy from
host memory reads it later, and an alteration meanwhile is found.
"""

import contextlib
import random
import threading
from collections import deque

import torch

from kvstore.torch import _hook, _staging


class Event:
    def __init__(self, stream, behind):
        self._stream, self._behind = stream, behind

    def query(self):
        # Some copies are made while the program goes on.
        self._stream.make(self._stream.random.randrange(3))
        return self._stream.made >= self._behind

    def synchronize(self):
        self._stream.make(self._behind - self._stream.made)


class StandIn(_staging.Accelerator):
    """One stream, with the copies that were not made yet."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self._lock = threading.RLock()
        self.made = 0
        self.asked = {"to host": 0, "to device": 0}
        self._waiting = deque()
        self._hosts = []

    def make(self, count):
        with self._lock:
            for _ in range(min(count, len(self._waiting))):
                self._waiting.popleft()()
                self.made += 1

    def like(self, tensor):
        host = torch.empty_like(tensor, requires_grad=False).fill_(77)
        self._hosts.append(host)
        return host

    def copy(self, to, source):
        with self._lock:
            values = source.detach().clone()
            is_to_host = any(to is host for host in self._hosts)
            self.asked["to host" if is_to_host else "to device"] += 1
            if is_to_host:
                self._waiting.append(lambda: to.copy_(values))
            else:
                to.copy_(values)
                self._waiting.append(lambda: check(source, values))

    def mark(self):
        with self._lock:
            return Event(self, self.made + len(self._waiting))

    def wait_for(self, event):
        pass

    def beside(self):
        return contextlib.nullcontext()

    def future(self):
        return torch.futures.Future()


def check(source, values):
    assert torch.equal(source, values), "host memory was written before its copy was made"


@contextlib.contextmanager
def on_stand_in(seed=0):
    """Tensors that are asked for inside are taken for those of a device."""
    stand_in = StandIn(seed)
    before = _staging.accelerator_of, _hook.accelerator_of
    _staging.accelerator_of = _hook.accelerator_of = lambda tensor: stand_in
    try:
        yield stand_in
    finally:
        _staging.accelerator_of, _hook.accelerator_of = before
        # What was never waited for is made now.
        stand_in.make(1 << 30)
