"""The life of a store: from kv_create() to kv_free(), with everything that must outlive a call."""

from __future__ import annotations

import atexit
import ctypes
import sys
import weakref
from ctypes import byref
from typing import Any, Callable, Optional

from . import _callbacks, _native
from ._call import can_call, check, library, run_apart, wait
from ._errors import ClosedError, Status
from ._keys import integer_key
from ._library import loaded
from ._texts import c_text
from ._unique import Unique

# How long pending operations may take at the end of the program.
_EXIT_SECONDS = 10.0

_open_handles: weakref.WeakSet[Handle] = weakref.WeakSet()
# Work of finalizers that ran where the library must not be called.
postponed: list[Callable[[], None]] = []


class Handle(_native.Handle, Unique):
    """Owns a kv_store.

    Each call that is being made, and each pending ticket, holds a reference: the last one that goes
    frees the store, so that kv_free() never meets another call.
    """

    def __init__(self, create: Callable[[ctypes.c_void_p], None]) -> None:
        """`create` fills in the handle of a new store."""
        # How often somebody has waited for all operations.
        self.waits = 0
        # Set at the end of the program: all is done, or given up.
        self.has_ended = False
        # A mark for each serve() at work.
        self._serving: set[object] = set()
        self.names: dict[int, str] = {}
        self._updaters: list[_callbacks.Updater] = []
        self._loans_until_free: list[object] = []
        self._given_up = False
        self.pointer = _created(create)
        _open_handles.add(self)

    def number_of(self, key: Any) -> int:
        """The library's number of a key, which is an integer or a name."""
        if not isinstance(key, str):
            return integer_key(key)
        number = self.numbers.get(key)
        if number is None:
            number = self._intern(key)
        return number

    def key_of(self, number: int) -> Any:
        """The key that a number of the library stands for."""
        if number < 2**63 or number in self.names:
            return self.names.get(number, number)
        # A name that came from a file.
        name = ctypes.c_char_p()
        check(library.kv_key_name(self.pointer, number, byref(name)))
        return self.names.setdefault(number, (name.value or b"").decode())

    def _intern(self, name: str) -> int:
        number = ctypes.c_uint64()
        check(library.kv_intern(self.pointer, c_text("the name", name), byref(number)))
        self.names[number.value] = name
        self.numbers[name] = number.value
        return number.value

    def set_updater(self, function: Optional[Callable[..., Any]]) -> None:
        """Hands a Python function to the library, and keeps it until the library drops it."""
        self._updaters = [updater for updater in self._updaters if updater.in_use]
        if function is None:
            check(_callbacks.remove_updater(self.pointer))
            return
        updater = _callbacks.Updater(function, self.names)
        self._updaters.append(updater)
        check(updater.install(self.pointer))

    def serve(self) -> None:
        """Serves until the job ends, or somebody ends it."""
        mark = object()
        self._serving.add(mark)
        try:
            run_apart(lambda: check(library.kv_serve(self.pointer)), self.end_serving)
        finally:
            self._serving.discard(mark)

    def end_serving(self) -> None:
        """Aborts the store if it serves."""
        if self._serving:
            loaded.kv_abort(self.pointer)

    def end_loan(self, ticket: int, loan: object) -> None:
        """Cancels an operation whose ticket is gone; keeps its arrays for as long as it needs."""
        if self.has_ended and not self._given_up:
            return
        if can_call():
            self._end_loan(ticket, loan)
        else:
            postponed.append(lambda: self._end_loan(ticket, loan))

    def keep_until_free(self, loan: object) -> None:
        """Keeps arrays that an operation may still use, although its call has ended."""
        self._loans_until_free.append(loan)

    def _end_loan(self, ticket: int, loan: object) -> None:
        if self._given_up:
            _callbacks.keep_for_ever(loan)
        elif self.pointer is not None and not self.has_ended:
            try:
                status = library.kv_cancel(self.pointer, ticket)
            except ClosedError:
                _callbacks.keep_for_ever(loan)
                return
            except BaseException:
                # Ctrl-C has ended the wait: the operation may still be at work.
                self._loans_until_free.append(loan)
                raise
            if status not in (Status.OK, Status.TICKET, Status.FORKED):
                self._loans_until_free.append(loan)

    def close_at_exit(self) -> None:
        """Closes without freeing: another thread may be inside a call while the program ends."""
        if self.has_ended:
            return
        self.end_serving()
        if ends_by_exception() and self._has_other_workers():
            # A worker that closes has left in order, and the others go on without it.
            loaded.kv_abort(self.pointer)
        status = wait(lambda ms: loaded.kv_close(self.pointer, ms), _EXIT_SECONDS)
        self.has_ended = True
        if status == Status.TIMEOUT:
            loaded.kv_abort(self.pointer)
            self._give_up()

    def _has_other_workers(self) -> bool:
        workers = ctypes.c_int32()
        status: int = loaded.kv_num_workers(self.pointer, byref(workers))
        return status == Status.OK and workers.value > 1

    def _give_up(self) -> None:
        """An updater does not return: what it and its operation use must stay as it is."""
        self._given_up = True
        _callbacks.keep_for_ever(self._updaters)
        _callbacks.keep_for_ever(self._loans_until_free)

    def __del__(self) -> None:
        if self.pointer is None or self.has_ended:
            return
        if can_call():
            self._free()
        else:
            postponed.append(self._free)

    def _free(self) -> None:
        pointer, self.pointer = self.pointer, None
        try:
            library.kv_free(pointer)
        except ClosedError:
            return  # The process is about to free everything.
        if any(updater.in_use for updater in self._updaters):
            self._give_up()


def _created(create: Callable[[ctypes.c_void_p], None]) -> Optional[int]:
    store = ctypes.c_void_p()
    try:
        create(store)
    except BaseException:
        # Ctrl-C may come at the moment at which the store is there; NULL does nothing.
        library.kv_free(store)
        raise
    return store.value


def creation(kind: str, options: dict[str, Any]) -> Callable[[ctypes.c_void_p], None]:
    """What makes a store of a type."""

    def create(store: ctypes.c_void_p) -> None:
        config = ctypes.c_void_p()
        check(library.kv_config_create(byref(config)))
        try:
            for name, value in options.items():
                check(library.kv_config_set(config, name.encode(), _option_text(value).encode()))
            check(library.kv_create(kind.encode(), config, byref(store)))
        finally:
            library.kv_config_free(config)

    return create


def _option_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def ends_by_exception() -> bool:
    """Whether an exception that nothing has caught ends the program.

    An interactive interpreter goes on behind one.
    """
    is_interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    return getattr(sys, "last_value", None) is not None and not is_interactive


def run_postponed() -> None:
    """Does what finalizers could not do where they ran."""
    if postponed and can_call():
        _run_postponed()


def _run_postponed() -> None:
    while True:
        try:
            work = postponed.pop()
        except IndexError:  # Another thread may have taken the last one.
            return
        work()


@atexit.register
def _close_all() -> None:
    """After this the library calls no Python code any more."""
    _run_postponed()
    _close_open_handles()
    _callbacks.set_logger(None)
    _native.end_calls(_EXIT_SECONDS)
    # Those that other threads have made meanwhile.
    _close_open_handles()
    _native.unwatch()


def _close_open_handles() -> None:
    for handle in list(_open_handles):
        handle.close_at_exit()
