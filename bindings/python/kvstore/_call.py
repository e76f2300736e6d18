"""Calls into the library: errors are exceptions, Ctrl-C ends waits, none outlives the program."""

from __future__ import annotations

import math
import os
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any, Callable, Optional

from . import _library, _native
from ._errors import InvalidArgumentError, Status, error_for

# A wait is made of pieces: between two of them a thread notices that the program ends.
_PIECE_SECONDS = 0.1
# How long a call that was stopped may take to return.
_STOP_SECONDS = 10.0
_OK = int(Status.OK)
_TIMEOUT = int(Status.TIMEOUT)


class _Thread(threading.local):
    """What this thread is doing in callbacks of the library."""

    # How many of them this thread is inside of.
    depth = 0
    # What an updater raised inside the call that this thread is making. On the library's own
    # threads it vanishes when the updater returns, together with Python's state of the thread.
    failure: Optional[BaseException] = None


thread = _Thread()
os.register_at_fork(after_in_child=_native.begin_in_child)

# The rare calls, by ctypes; those with arrays are `_native.Call`s.
library: Any = SimpleNamespace(
    **{
        name: partial(_native.counted, getattr(_library.loaded, name))
        for name in _library.ARGUMENTS
    }
)


def can_call(
    thread: _Thread = thread, is_between_calls: Callable[[], bool] = _native.is_between_calls
) -> bool:
    """Whether a finalizer, which the garbage collector may run anywhere, may call the library here.

    Not inside a callback: neither on a thread that is making a call, nor on one of the library's
    own, which are among those that have made none. A finalizer may run when the interpreter has
    cleared the modules: what this needs are its own defaults.
    """
    return thread.depth == 0 and is_between_calls()


def failure_of(status: int) -> BaseException:
    """The exception for the last call of this thread, which returned `status`."""
    message = _library.loaded.kv_last_error().decode("utf-8", "replace")
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


def run_apart(call: Callable[[], None], stop: Callable[[], None]) -> None:
    """Makes a call without a time limit on a thread of its own: Ctrl-C reaches this one then.

    `stop` ends the call; it is called when this thread stops waiting for it.
    """
    if thread.depth:
        call()  # The library must see that it is called from inside a callback.
        return
    ended = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)
        finally:
            ended.set()

    worker = threading.Thread(target=run, name="kvstore", daemon=True)
    try:
        worker.start()
        ended.wait()
    except BaseException:
        stop()
        if worker.is_alive():
            ended.wait(_STOP_SECONDS)
        raise
    if failures:
        raise failures[0]


def wait(attempt: Callable[[int], int], timeout: Optional[float]) -> int:
    """Calls `attempt(milliseconds)` until it gives another status than TIMEOUT or time is over."""
    if timeout is not None and not timeout >= 0:
        raise InvalidArgumentError(f"timeout is {timeout}: give seconds, or None to wait for ever")
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        status = attempt(math.ceil(1000 * max(0.0, min(left, _PIECE_SECONDS))))
        _native.raise_interrupt()
        if status != _TIMEOUT or left <= _PIECE_SECONDS:
            return status
