"""Operations in the background."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _callbacks
from ._call import failure_of, library, wait
from ._errors import Status
from ._native import Operation
from ._unique import Unique

if TYPE_CHECKING:
    import asyncio


class Ticket(Unique):
    """An operation in the background, as given by `push_async()` and its sisters.

    Its arrays belong to the operation until it has ended: do not change the values, do not read the
    outs. The ticket keeps them alive. Keep the ticket, too: an operation whose ticket is dropped is
    cancelled.
    """

    _instead = "it stands for an operation of this process: wait for it where it was made"

    def __init__(self, operation: Operation, priority: int) -> None:
        self._operation: Optional[Operation] = operation
        self._number = 0
        self._failure: Optional[BaseException] = None
        self._asked = False
        self._waits_before = operation.handle.waits
        operation.start(priority)
        self._number = operation.ticket

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until the operation has ended; raises what it failed with.

        `timeout` is in seconds, None waits for ever. `kvstore.TimeoutError` means that the result
        is not known yet: the operation goes on, so never repeat a push because of it;
        `kvstore.ExpiredError` that it has failed because its own time was over. May be called
        again, and from any thread.
        """
        self._asked = True
        operation = self._operation
        if operation is not None:
            pointer, number = operation.handle.pointer, operation.ticket
            self._settle(wait(lambda ms: library.kv_wait(pointer, number, ms), timeout))
        if self._failure is not None:
            raise self._failure

    def __await__(self) -> Generator[Any, None, None]:
        """Waits in a coroutine: `await kv.push_async(...)` raises what the operation failed with.

        The event loop goes on meanwhile, and is told of the end. Cancelling the coroutine, as
        `asyncio.wait_for` does, leaves the operation as it is.
        """
        return self._wait_in_loop().__await__()

    async def _wait_in_loop(self) -> None:
        import asyncio  # Takes half as long to import as all the rest.

        operation = self._operation
        if operation is not None and not self.done():
            loop = asyncio.get_running_loop()
            ended = loop.create_future()
            # Without the ticket: dropped with its coroutine, it cancels its operation.
            wake = partial(_wake, loop, ended)
            _callbacks.on_done(operation.handle.pointer, operation.ticket, wake)
            await ended
        self.wait()

    def add_done_callback(self, function: Callable[[Ticket], object]) -> None:
        """Has `function(ticket)` called once when the operation has ended, well or not.

        On a thread of the library, which calls one function after the other, or now if it has
        ended. Inside, `ticket.wait()` tells without waiting; calls on the store that could wait
        raise `kvstore.ReentrantError`, those ending in `_async` work. What the function raises goes
        to `sys.unraisablehook`. The ticket need not be kept: the function keeps it until then.
        """
        self._asked = True
        operation = self._operation
        if operation is None:
            _callbacks.call_unraisable(partial(function, self))
        else:
            tell = partial(self._tell, function)
            _callbacks.on_done(operation.handle.pointer, operation.ticket, tell)

    def _tell(self, function: Callable[[Ticket], object], status: int) -> None:
        if self._operation is not None:
            self._settle(status)
        function(self)

    def done(self) -> bool:
        """Whether the operation has ended, well or not; wait() then tells without waiting."""
        self._asked = True
        operation = self._operation
        if operation is not None:
            status = library.kv_wait(operation.handle.pointer, operation.ticket, 0)
            if status == Status.TIMEOUT:
                return False
            self._settle(status)
        return True

    def cancel(self) -> None:
        """Ends the operation; once this returns, its arrays are yours again.

        One that has not begun is withdrawn, one at work stops at the next key, one that has ended
        stays as it is. Then wait() raises `CancelledError`, or returns if all was done before.
        """
        self._asked = True
        operation = self._operation
        if operation is not None:
            status = library.kv_cancel(operation.handle.pointer, operation.ticket)
            if status not in (Status.OK, Status.TICKET):
                raise failure_of(status)
            self._settle(library.kv_wait(operation.handle.pointer, operation.ticket, 0))

    def _settle(self, status: int) -> None:
        """Keeps the operation's result and lets its arrays go."""
        failure = None if status == Status.OK else failure_of(status)
        if failure is not None and status in (Status.TIMEOUT, Status.REENTRANT):
            raise failure  # These say nothing about the operation.
        self._failure = failure
        operation, self._operation = self._operation, None
        if operation is not None:
            # What was made of an out while it was being filled is void, too.
            operation.note_written()

    def __repr__(self) -> str:
        if self._operation is not None:
            state = "pending"
        else:
            state = "done" if self._failure is None else f"failed: {self._failure}"
        return f"<kvstore.Ticket {self._number:#x}, {state}>"

    def __del__(self) -> None:
        operation = self._operation
        # Not of `_number`: Ctrl-C may come between the start and the next line.
        if operation is None or operation.ticket == 0:
            return
        handle = operation.handle
        handle.end_loan(operation.ticket, operation)
        if not (self._asked or handle.has_ended) and self._waits_before == handle.waits:
            warnings.warn(
                "a kvstore.Ticket was dropped and nobody waited for it: its operation is cancelled "
                "unless it has ended",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )


def _wake(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None], status: int) -> None:
    """Ends the wait of a coroutine, from another thread than that of its event loop."""
    # RuntimeError: the loop has been closed, and its coroutines with it.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_end, ended)


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
