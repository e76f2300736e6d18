"""Calls into the library: errors are exceptions, Ctrl-C ends waits, none outlives the program."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from types import SimpleNamespace
from typing import Any, Callable, Optional

from . import _library, _signals
from ._errors import ClosedError, InvalidArgumentError, Status, error_for

# A wait is made of pieces: between two of them a thread notices that the program ends.
_PIECE_SECONDS = 0.1
# How long a call that was stopped may take to return.
_STOP_SECONDS = 10.0
_OK = int(Status.OK)
_TIMEOUT = int(Status.TIMEOUT)


class _Calls:
    """How many calls of the library a thread is inside of; only that thread changes it."""

    __slots__ = ("__weakref__", "number", "raised")

    def __init__(self) -> None:
        self.number = 0
        # What the handler of a signal has raised while the thread waited.
        self.raised: Optional[BaseException] = None
        _calls_of_threads.add(self)
        _signals.watch(self)

    def raise_it(self) -> None:
        """Raises what a handler has raised."""
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised


_calls_of_threads: weakref.WeakSet[_Calls] = weakref.WeakSet()


class _Thread(threading.local):
    """What this thread is doing in the library."""

    # None until its first call; then the counter, which is 0 between two calls.
    calls: Optional[_Calls] = None
    # How many callbacks of the library this thread is inside of.
    depth = 0
    # What an updater raised inside the call that this thread is making. On the library's own
    # threads it vanishes when the updater returns, together with Python's state of the thread.
    failure: Optional[BaseException] = None


thread = _Thread()
_is_over = False


def _begin_in_child() -> None:
    """In the child of a fork the other threads do not exist, and this one is the main thread."""
    _calls_of_threads.clear()
    thread.calls = None


os.register_at_fork(after_in_child=_begin_in_child)


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        calls = thread.calls
        if calls is None:
            calls = thread.calls = _Calls()
        calls.number += 1
        try:
            if _is_over:
                raise ClosedError("the program is ending")
            status = function(*arguments)
        finally:
            calls.number -= 1
        if calls.raised is not None:
            calls.raise_it()
        return status

    return call


library: Any = SimpleNamespace(
    **{name: _counted(getattr(_library.loaded, name)) for name in _library.ARGUMENTS}
)


def can_call() -> bool:
    """Whether a finalizer, which the garbage collector may run anywhere, may call the library here.

    Not inside a callback: neither on a thread that is making a call, nor on one of the library's
    own, which are among those that have made none.
    """
    calls = thread.calls
    return calls is not None and calls.number == 0 and thread.depth == 0


def end_calls(seconds: float) -> None:
    """Lets no thread call the library any more, and waits for those that are inside of it.

    A thread that the interpreter ends inside a callback, as it does while the program ends, would
    take the process down: it has the library's frames on its stack.
    """
    global _is_over
    _is_over = True
    end = time.monotonic() + seconds
    while any(calls.number for calls in list(_calls_of_threads)) and time.monotonic() < end:
        time.sleep(0.001)


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
        if thread.calls is not None:
            thread.calls.raise_it()
        if status != _TIMEOUT or left <= _PIECE_SECONDS:
            return status
