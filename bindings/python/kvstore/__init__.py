"""The key-value store of data-parallel training: create, init, push, pull.

    >>> import kvstore, numpy as np
    >>> kv = kvstore.create("local")
    >>> shape = (2, 3)
    >>> kv.init(3, np.ones(shape) * 2)
    >>> a = np.zeros(shape)
    >>> kv.pull(3, out=a)                                   # a is 2
    >>> kv.push(3, [np.ones(shape)] * 4)                    # four devices
    >>> kv.pull(3, out=a)                                   # a is 4

    >>> def update(key, input, stored):
    ...     stored += input * 2
    >>> kv.set_updater(update)
    >>> kv.push(3, np.ones(shape))
    >>> kv.pull(3, out=a)                                   # a is 6

    >>> kv.set_optimizer("sgd", learning_rate=0.5)          # a rule of the library
    >>> kv.push(3, np.ones(shape))
    >>> kv.pull(3, out=a)                                   # a is 5.5

    >>> ticket = kv.push_async(3, np.ones(shape))           # in the background
    >>> ticket.wait(timeout=30)
    >>> kv.close()

Arrays are numpy arrays and all objects with `__dlpack__`, such as PyTorch's tensors; nothing is
copied on the way into the library. Each failure is a `KVStoreError` whose text names the key, the
shapes and the dtypes, and also the builtin exception that fits best. At the end of the program open
stores close themselves; what is pending gets ten seconds. Where an exception that nothing has
caught ends it, stores of jobs are aborted: the other workers get `PeerLostError`. `sys.exit` is no
such end.

See `help(kvstore.KVStore)` for the forms that keys and arrays may take.
"""

from __future__ import annotations

from pathlib import Path as _Path

from . import _library
from ._bound import Bound
from ._callbacks import set_logger
from ._errors import (
    BufferTooSmallError,
    CallbackError,
    CancelledError,
    ClosedError,
    CorruptError,
    DeviceError,
    DiffersError,
    DtypeMismatchError,
    EvictedError,
    ExpiredError,
    ForkedError,
    InternalError,
    InvalidArgumentError,
    IoError,
    KeyExistsError,
    KeyNotFoundError,
    KVStoreError,
    NameCollisionError,
    NetworkError,
    OptionError,
    OutOfMemoryError,
    OverlapError,
    PeerLostError,
    PoisonedError,
    ReentrantError,
    RefusedError,
    RoleError,
    ShapeMismatchError,
    Status,
    TicketError,
    TimeoutError,
    UnsupportedError,
)
from ._foreign import warn_of_foreign as _warn_of_foreign
from ._lent import DeviceArray
from ._store import Commit, KeyDigest, KeyInfo, KeyRound, KVStore, LastNorm, capable, create
from ._streams import set_stream, stream
from ._ticket import Ticket

__version__: str = _library.loaded.kv_version().decode()

__all__ = [
    "Bound",
    "BufferTooSmallError",
    "CallbackError",
    "CancelledError",
    "ClosedError",
    "Commit",
    "CorruptError",
    "DeviceArray",
    "DeviceError",
    "DiffersError",
    "DtypeMismatchError",
    "EvictedError",
    "ExpiredError",
    "ForkedError",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "KVStore",
    "KVStoreError",
    "KeyDigest",
    "KeyExistsError",
    "KeyInfo",
    "KeyNotFoundError",
    "KeyRound",
    "LastNorm",
    "NameCollisionError",
    "NetworkError",
    "OptionError",
    "OutOfMemoryError",
    "OverlapError",
    "PeerLostError",
    "PoisonedError",
    "ReentrantError",
    "RefusedError",
    "RoleError",
    "ShapeMismatchError",
    "Status",
    "Ticket",
    "TicketError",
    "TimeoutError",
    "UnsupportedError",
    "capable",
    "create",
    "set_logger",
    "set_stream",
    "stream",
]

_warn_of_foreign(_Path(__file__).parent)

for _name in __all__:
    # Tracebacks and help() show the public place of each name.
    globals()[_name].__module__ = __name__
del _name
