"""What runs in the process of a worker: its store, and the calls of a Job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Optional, Union

import numpy as np

import kvstore
from kvstore import KVStore
from kvstore._agreement import agree, describe

_Path = Union[str, os.PathLike[str]]

# A key of checkpoints beside those of the user.
_STEP = "kvstore.ray step"


class _Member:
    """The part of this process in a generation of the job."""

    def __init__(self, store: KVStore) -> None:
        self.store = store
        # Whether all ranks have made or loaded the key; none asks the servers, where it may be from
        # a rank that is ahead.
        self.has_step = False


_member: Optional[_Member] = None


def _own() -> _Member:
    if _member is None:
        raise kvstore.ClosedError(
            "kvstore.ray: this process has no store: Job.start() makes an actor a worker after its "
            "constructor, and Job.stop() or an error of a method ends that"
        )
    return _member


def store() -> KVStore:
    """The store of this worker; its `rank` and `num_workers` are those of the job.

    For methods that Job.run() calls. The constructor of the class runs earlier, without a store.
    """
    return _own().store


def init(parameters: Mapping[str, Any]) -> None:
    """Makes a key of each array, all with the values of rank 0, which all ranks get in place.

    All ranks call it with equal names, dtypes and shapes; otherwise it is `DiffersError` on each of
    them, with the name of the first array that differs.
    """
    own = _own()
    agree(own.store, "init", [describe(name, each) for name, each in parameters.items()])
    values = list(parameters.values())
    own.store.broadcast(list(parameters), values, out=values)


def save(path: _Path, step: int) -> None:
    """Writes a checkpoint, with the number of the step that comes next; a call of all ranks.

    It is KVStore.save() with one more key. Rank 0 writes the file, and Ray may start it again on
    another machine: use a shared folder.
    """
    own = _own()
    if not own.has_step:
        # A rule that the user has set for all keys must not change it.
        own.store.set_optimizer_for(_STEP, "none")
        own.store.init(_STEP, np.zeros(1, np.int64))
        own.has_step = True
    rows = np.array([0] if own.store.rank == 0 else [], np.int64)
    own.store.push_rows(_STEP, rows, np.full(len(rows), step))
    own.store.save(path)


def resume(path: _Path) -> int:
    """Loads the checkpoint of save() if rank 0 has the file; a call of all ranks.

    Gives the number of the step that comes next; 0 where there is no file. After a load the keys
    are there with values, rules and states, and no init() is needed.
    """
    own = _own()
    found = np.array([os.path.exists(path)], np.uint8)
    own.store.broadcast_from(found)
    if not found[0]:
        return 0
    own.store.load(path)
    step = np.empty(1, np.int64)
    try:
        own.store.pull(_STEP, out=step)
    except kvstore.KeyNotFoundError as error:
        raise kvstore.InvalidArgumentError(
            f"resume: {os.fspath(path)} has no number of a step: kvstore.ray.save() writes one"
        ) from error
    own.has_step = True
    return int(step[0])


# Called by Job, by means of __ray_call__.


def join(actor: Any, type: str, options: dict[str, Any]) -> None:
    """Makes this process a worker of a generation."""
    global _member
    abort()
    _member = _Member(kvstore.create(type, **options))


def call(actor: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A method of the user's class. If it raises, the other ranks wait for this one no longer."""
    try:
        return getattr(actor, method)(*args, **kwargs)
    except BaseException:
        abort()
        raise


def answer(actor: Any) -> None:
    """Shows that this process is there."""


def leave(actor: Any, timeout: float) -> None:
    """Ends the part of this worker."""
    global _member
    ended, _member = _member, None
    if ended is not None:
        ended.store.close(timeout)


def abort() -> None:
    """The store of an ended generation has no further use."""
    global _member
    ended, _member = _member, None
    if ended is not None:
        ended.store.abort()
