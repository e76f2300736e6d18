"""Calls into the library: statuses become exceptions, waits stay interruptible."""

from __future__ import annotations

import math
import threading
import time
from typing import Callable, Optional

from ._errors import InvalidArgumentError, Status, error_for
from ._library import library

# A wait is made of pieces, because Python handles Ctrl-C only between two calls.
_PIECE_SECONDS = 0.1
_OK = int(Status.OK)
_TIMEOUT = int(Status.TIMEOUT)


class _Thread(threading.local):
    """What this thread is doing in the library."""

    # How many callbacks of the library this thread is inside of. Finalizers, which the garbage
    # collector may run anywhere, must not call the library there.
    depth = 0
    # What an updater raised inside the call that this thread is making. On the library's own
    # threads it vanishes when the updater returns, together with Python's state of the thread.
    failure: Optional[BaseException] = None


thread = _Thread()


def failure_of(status: int) -> BaseException:
    """The exception for the last call of this thread, which returned `status`."""
    message = library.kv_last_error().decode("utf-8", "replace")
    cause, thread.failure = thread.failure, None
    error = error_for(status, message)
    if status != Status.CALLBACK or cause is None:
        return error
    if not isinstance(cause, Exception):
        return cause  # KeyboardInterrupt and SystemExit are not errors of the updater.
    error.__cause__ = cause
    return error


def check(status: int) -> None:
    """Raises the exception that belongs to a status, if it is one of failure."""
    if status != _OK:
        raise failure_of(status)


def wait(attempt: Callable[[int], int], timeout: Optional[float]) -> int:
    """Calls `attempt(milliseconds)` until it gives another status than TIMEOUT or time is over."""
    if timeout is not None and not timeout >= 0:
        raise InvalidArgumentError(f"timeout is {timeout}: give seconds, or None to wait for ever")
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        status = attempt(math.ceil(1000 * max(0.0, min(left, _PIECE_SECONDS))))
        if status != _TIMEOUT or left <= _PIECE_SECONDS:
            return status
