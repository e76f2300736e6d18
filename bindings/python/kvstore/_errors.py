"""One exception class for each status of the C library."""

from __future__ import annotations

import builtins
import enum


class Status(enum.IntEnum):
    """The status numbers of the C library; they never change.

    1-19 are the caller's mistake, 20-39 mean "not now", 40-59 that a peer is gone, 60-79 come from
    the environment, 90-99 are a bug of the library.
    """

    OK = 0
    INVALID_ARGUMENT = 1
    UNSUPPORTED = 2
    OPTION = 3
    KEY_NOT_FOUND = 4
    KEY_EXISTS = 5
    NAME_COLLISION = 6
    SHAPE_MISMATCH = 7
    DTYPE_MISMATCH = 8
    OVERLAP = 9
    TICKET = 10
    CALLBACK = 11
    REENTRANT = 12
    BUFFER_TOO_SMALL = 13
    CLOSED = 14
    FORKED = 15
    ROLE = 16
    DIFFERS = 17
    TIMEOUT = 20
    CANCELLED = 21
    EXPIRED = 22
    PEER_LOST = 40
    EVICTED = 41
    REFUSED = 42
    OUT_OF_MEMORY = 60
    IO = 61
    CORRUPT = 62
    NETWORK = 63
    DEVICE = 64
    INTERNAL = 90
    POISONED = 91


class KVStoreError(Exception):
    """A call failed; `status` says how, the text says with which key, shapes and dtypes.

    Each status has its own subclass, which is also the builtin exception that fits best.
    """

    status: int = Status.INTERNAL

    def __str__(self) -> str:
        # KeyError, a base of one subclass, would show the text in quotes.
        return str(self.args[0]) if self.args else ""


class InvalidArgumentError(KVStoreError, ValueError):
    """An argument is out of range, misaligned, read-only, or otherwise not usable."""

    status = Status.INVALID_ARGUMENT


class UnsupportedError(KVStoreError, NotImplementedError):
    """Known, but not served by this build or this store: a store type, rows of a CUDA tensor."""

    status = Status.UNSUPPORTED


class OptionError(KVStoreError, ValueError):
    """An option has an unknown name or a value that does not fit."""

    status = Status.OPTION


class KeyNotFoundError(KVStoreError, KeyError):
    """The key has not been initialised, or was removed."""

    status = Status.KEY_NOT_FOUND


class KeyExistsError(KVStoreError, ValueError):
    """The key has been initialised before."""

    status = Status.KEY_EXISTS


class NameCollisionError(KVStoreError, ValueError):
    """Two names have the same 63-bit hash; rename one of them."""

    status = Status.NAME_COLLISION


class ShapeMismatchError(KVStoreError, ValueError):
    """An array's shape differs from the key's."""

    status = Status.SHAPE_MISMATCH


class DtypeMismatchError(KVStoreError, TypeError):
    """An array's dtype differs from the key's and cannot be converted."""

    status = Status.DTYPE_MISMATCH


class OverlapError(KVStoreError, ValueError):
    """An out overlaps another array of the call, or itself."""

    status = Status.OVERLAP


class TicketError(KVStoreError, ValueError):
    """The library has forgotten the ticket: very many later operations did not succeed."""

    status = Status.TICKET


class CallbackError(KVStoreError, RuntimeError):
    """The updater raised an exception.

    `__cause__` is that exception if the updater ran on the calling thread; its text is always in
    the message.
    """

    status = Status.CALLBACK


class ReentrantError(KVStoreError, RuntimeError):
    """The store was called from inside one of its own updaters."""

    status = Status.REENTRANT


class BufferTooSmallError(KVStoreError, BufferError):
    """A buffer is too small. Listed for completeness: this package asks again with a larger one."""

    status = Status.BUFFER_TOO_SMALL


class ClosedError(KVStoreError, RuntimeError):
    """The store has been closed or aborted."""

    status = Status.CLOSED


class ForkedError(KVStoreError, RuntimeError):
    """The store was created before a fork() and belongs to the parent process."""

    status = Status.FORKED


class RoleError(KVStoreError, RuntimeError):
    """The call is not for processes of this role: serve() on a worker, a push on a server."""

    status = Status.ROLE


class DiffersError(KVStoreError, ValueError):
    """The processes of a job do not agree, such as about the optimizer."""

    status = Status.DIFFERS


class TimeoutError(KVStoreError, builtins.TimeoutError):
    """The time is over. After Ticket.wait() it means "not known yet": the operation goes on.

    `ExpiredError` says that it has failed.
    """

    status = Status.TIMEOUT


class CancelledError(KVStoreError):
    """The operation was cancelled before it took effect in full."""

    status = Status.CANCELLED


class ExpiredError(KVStoreError):
    """An operation with a ticket did not end within the option timeout_ms, and has failed."""

    status = Status.EXPIRED


class PeerLostError(KVStoreError, ConnectionError):
    """A process of the job that the call needs is gone; the text has its role, rank and address."""

    status = Status.PEER_LOST


class EvictedError(KVStoreError, ConnectionError):
    """This process was not heard for too long, and the job went on without it."""

    status = Status.EVICTED


class RefusedError(KVStoreError, ConnectionError):
    """The job does not take this process: its rank is taken, or it expects another job."""

    status = Status.REFUSED


class OutOfMemoryError(KVStoreError, MemoryError):
    """Not enough memory."""

    status = Status.OUT_OF_MEMORY


class IoError(KVStoreError, OSError):
    """A file cannot be read or written."""

    status = Status.IO


class CorruptError(KVStoreError, ValueError):
    """A file is cut off or altered."""

    status = Status.CORRUPT


class NetworkError(KVStoreError, OSError):
    """An address cannot be used or reached: a port in use, a name that nobody knows."""

    status = Status.NETWORK


class DeviceError(KVStoreError, RuntimeError):
    """A GPU failed, or cannot be used; the text has CUDA's name of the error."""

    status = Status.DEVICE


class InternalError(KVStoreError, RuntimeError):
    """A bug of the library; the store refuses to go on."""

    status = Status.INTERNAL


class PoisonedError(KVStoreError, RuntimeError):
    """The store met a bug of the library before and refuses to go on."""

    status = Status.POISONED


_CLASSES = {int(kind.status): kind for kind in KVStoreError.__subclasses__()}


def error_for(status: int, message: str) -> KVStoreError:
    """The exception of a status; one that is newer than this package becomes the base class."""
    kind = _CLASSES.get(status, KVStoreError)
    error = kind(message)
    if kind is KVStoreError:
        error.status = status
    return error
