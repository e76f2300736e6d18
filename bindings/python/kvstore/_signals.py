"""Signals that arrive while a thread waits inside the library.

Python runs the handlers of signals, one of which raises KeyboardInterrupt, on its main thread,
between two steps of the interpreter. A call that waits in the library asks a check of its thread
every 50 ms, which makes such a step. What a handler raises there ends the call.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

from ._library import InterruptCheck, loaded

# The library may call it until the process ends.
_checks: list[Any] = []


def watch(calls: Any) -> None:
    """Has the waits of this thread run the handlers of signals, if it is the one that does so.

    What a handler raises is left in `calls.raised`.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    answers = _answers(calls)
    next(answers)
    # The argument that is sent is the context, NULL.
    check = InterruptCheck(answers.send)
    _checks.append(check)
    loaded.kv_set_interrupt(check, None)


def unwatch() -> None:
    """Asks this thread nothing any more: the interpreter is about to end."""
    loaded.kv_set_interrupt(InterruptCheck(), None)


def _answers(calls: Any) -> Generator[int, None, None]:
    """Answers whether a call is to end.

    A function would begin with a step outside of every `try`, where an exception of a handler is
    lost. A generator goes on inside of its own.
    """
    while True:
        try:
            while True:
                yield int(calls.raised is not None)
        except GeneratorExit:
            return
        except BaseException as error:
            calls.raised = error
