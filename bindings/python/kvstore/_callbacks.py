"""Python functions that the library calls: updaters, those for ends of operations, the logger."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._arrays import view
from ._call import check, library, thread
from ._errors import Status
from ._lent import CUDA, DeviceArray
from ._library import Done, Drop, KeyNamer, Logger, Tensor, loaded
from ._library import Updater as UpdaterFunction
from ._texts import c_text
from ._unique import Unique

if TYPE_CHECKING:
    import logging

# The library knows a Python object by a number, its `context`. A number here is one whose `drop`
# has not been called yet.
_numbers = itertools.count(1)
_in_use: set[int] = set()
# Weak, so that an updater that refers to its own store is garbage together with it.
_updaters: weakref.WeakValueDictionary[int, Updater] = weakref.WeakValueDictionary()
_loggers: dict[int, logging.Logger] = {}
_listeners: dict[int, Callable[[int], None]] = {}

# ERROR, WARNING, INFO and DEBUG of the module logging, which an import need not wait for.
_LOG_LEVELS = {1: 40, 2: 30, 3: 20, 4: 10}


class Updater(Unique):
    """A Python function in use as an updater."""

    def __init__(self, function: Callable[..., Any], names: dict[int, str]) -> None:
        self._number = next(_numbers)
        self._function: Optional[Callable[..., Any]] = function
        self._names = names
        _updaters[self._number] = self
        _in_use.add(self._number)

    def install(self, store: Optional[int]) -> int:
        """Makes it the updater of a store; gives the status of the library."""
        status: int = library.kv_set_updater(store, _UPDATE, self._number, _DROP)
        return status

    @property
    def in_use(self) -> bool:
        """Whether the library may still call it."""
        return self._number in _in_use

    def forget(self) -> None:
        """Lets go of the function, which the library has dropped."""
        self._function = None

    def run(self, number: int, merged: Tensor, stored: Tensor) -> None:
        """Calls the function with numpy arrays, or with arrays on the GPU where the value is."""
        assert self._function is not None
        key = self._names.get(number, number)
        if stored.device_type != CUDA:
            self._function(key, view(merged, writable=False), view(stored, writable=True))
            return
        lent = DeviceArray(merged, writable=False), DeviceArray(stored, writable=True)
        try:
            self._function(key, *lent)
        finally:
            for array in lent:
                array.end()


def remove_updater(store: Optional[int]) -> int:
    """Makes a store assign again; gives the status of the library."""
    status: int = library.kv_set_updater(store, _NO_UPDATE, None, _NO_DROP)
    return status


def _update(context: int, key: int, merged: Any, stored: Any) -> int:
    thread.depth += 1
    try:
        updater = _updaters.get(context)
        if updater is None:
            raise RuntimeError("the store is being freed")
        updater.run(key, merged.contents, stored.contents)
        return Status.OK
    except BaseException as error:
        _release_views(error)
        return _failed(error)
    finally:
        thread.depth -= 1


def _failed(error: BaseException) -> int:
    """Keeps what a callback raised, for the exception of the call that it is in."""
    import traceback

    message = "".join(traceback.format_exception_only(type(error), error)).strip()
    loaded.kv_set_callback_error(message.encode("utf-8", "replace"))
    thread.failure = error
    return Status.CALLBACK


def load_values(store: Optional[int], path: bytes, name: Callable[[str], Optional[str]]) -> None:
    """Loads the values of a file for the keys that `name` gives its tensors."""
    text: Optional[bytes] = None

    def name_key(_context: int, tensor: bytes, key: Any) -> int:
        nonlocal text
        thread.depth += 1
        try:
            named = name(tensor.decode())
            # Kept here: the library reads it after the return.
            text = None if named is None else c_text("the name of a key", named)
            key[0] = text
            return Status.OK
        except BaseException as error:
            return _failed(error)
        finally:
            thread.depth -= 1

    check(library.kv_load_values(store, path, KeyNamer(name_key), None))


def on_done(store: Optional[int], ticket: int, function: Callable[[int], None]) -> None:
    """Has `function(status)` called when an operation has ended: now, or on another thread."""
    context = next(_numbers)
    _listeners[context] = function
    check(library.kv_on_done(store, ticket, _DONE, context, _DROP))


def _tell(context: int, ticket: int, status: int) -> None:
    thread.depth += 1
    try:
        # Nothing here keeps the function: with it the last owner of a store may go.
        _listeners.pop(context)(status)
    finally:
        thread.depth -= 1


def _release_views(error: BaseException) -> None:
    """Empties the finished frames that an exception keeps: their arrays are about to be invalid."""
    import traceback

    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    pending: list[Optional[BaseException]] = [error]
    seen: set[int] = set()
    while pending:
        each = pending.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            pending += [each.__cause__, each.__context__]


def _drop(context: int) -> None:
    thread.depth += 1
    try:
        _in_use.discard(context)
        _loggers.pop(context, None)
        _listeners.pop(context, None)
        updater = _updaters.pop(context, None)
        if updater is not None:
            updater.forget()
    finally:
        thread.depth -= 1


def _log(context: int, level: int, message: bytes) -> None:
    thread.depth += 1
    try:
        text = message.decode("utf-8", "replace")
        _loggers[context].log(_LOG_LEVELS.get(level, 40), "%s", text)
    finally:
        thread.depth -= 1


def call_unraisable(function: Callable[[], object]) -> None:
    """Calls a function as the library would: what it raises goes to `sys.unraisablehook`."""
    _Function(function)()


def keep_for_ever(thing: object) -> None:
    """Keeps an object also while the interpreter takes everything else apart."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


_UPDATE, _DROP, _LOG = UpdaterFunction(_update), Drop(_drop), Logger(_log)
_DONE = Done(_tell)
_Function = ctypes.CFUNCTYPE(None)
_NO_UPDATE, _NO_DROP, _NO_LOG = UpdaterFunction(), Drop(), Logger()
# The library may hold these addresses until the process ends.
for _function in (_UPDATE, _DROP, _LOG, _DONE):
    keep_for_ever(_function)


def set_logger(logger: Optional[logging.Logger] = None, level: Optional[int] = None) -> None:
    """Sends what the library has to say to a logger; None makes it silent, as in the beginning.

    For the whole process. `level` is a level of the module logging, by default the logger's own
    when this is called. The library reports errors of its own, work that was lost, stores that
    open and close (INFO), keys and updaters that come and go (DEBUG).
    """
    if logger is None:
        check(library.kv_set_logger(0, _NO_LOG, None, _NO_DROP))
        return
    if level is None:
        level = logger.getEffectiveLevel()
    wanted = max((number for number, each in _LOG_LEVELS.items() if each >= level), default=0)
    context = next(_numbers)
    _loggers[context] = logger
    check(library.kv_set_logger(wanted, _LOG, context, _DROP))
