"""LightGBM's distributed learning over the workers of a job, without ports and lists of hosts.

    import kvstore.lightgbm

    with kvstore.lightgbm.network(kv):
        booster = lgb.train(parameters, data)

Started by `kvstore run -n 4 -- python train.py`, mpirun or srun, or alone.
docs/use/frameworks/lightgbm.md has an example.
"""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable, Optional

try:
    import lightgbm as _lightgbm
    from lightgbm.basic import _LIB
except ImportError as missing:
    raise ImportError("kvstore.lightgbm needs LightGBM: pip install lightgbm") from missing

import numpy as np

import kvstore
from kvstore import KVStore

from . import _native
from ._errors import Status, error_for
from ._launched import LaunchedJob

__all__ = ["init", "network", "rank", "shutdown", "size", "store"]

# Names of LightGBM's parameters, each with its aliases.
_HOSTS = ("machines", "workers", "nodes")
_SIZES = ("num_machines", "num_machine")
_LEARNERS = ("tree_learner", "tree", "tree_type", "tree_learner_type")

_job = LaunchedJob()
atexit.register(_job.leave_at_exit)


class _Thread(threading.local):
    """The size of the network that this thread has open; LightGBM keeps its network by thread."""

    size = 1


_thread = _Thread()


def init(**options: Any) -> KVStore:
    """Joins the job of this process, or opens a local store where no launcher has started it.

    The first other call does it, too. Options are those of kvstore.create().
    """
    return _job.join(options)


def store() -> KVStore:
    """The store of init(), for keys and collective calls of your own."""
    return init()


def rank() -> int:
    """The rank of this process, from 0."""
    return init().rank


def size() -> int:
    """The number of processes."""
    return init().num_workers


def shutdown(timeout: Optional[float] = None) -> None:
    """Leaves the job, which may wait for the others; the end of the program does it, too."""
    _job.leave(timeout)


@contextmanager
def network(kv: Optional[KVStore] = None) -> Iterator[KVStore]:
    """Distributes trainings of this thread over the workers of a store.

    All workers enter it, make the same trainings in the same order, and leave it, each with its
    own rows. Datasets are constructed inside. `kv` is a store of any type, else that of init().
    With one worker LightGBM trains as without it.

    A worker that is lost, leaves earlier or makes another call ends the training on all workers,
    with the store's error.

    >>> with kvstore.lightgbm.network(kv):
    ...     booster = lgb.train(parameters, lgb.Dataset(rows, labels))
    """
    kv = init() if kv is None else kv
    workers = kv.num_workers
    if _thread.size > 1 or _open_machines() > 1:
        raise kvstore.InvalidArgumentError(
            "network: this thread has one open; leave it, or free LightGBM's own by free_network()"
        )
    if workers == 1:
        yield kv
        return
    _native.open_lightgbm(kv, (_LIB._handle, _lightgbm.__version__), (kv.rank, workers))
    _thread.size = workers
    try:
        yield kv
    except BaseException as error:
        failure = _close()
        if failure is not None:
            raise _explained(*failure) from error
        if isinstance(error, Exception):
            _leave(kv, error)
        raise
    if _close() is None:
        _leave(kv)


def _open_machines() -> int:
    """The number of machines of LightGBM's network of this thread."""
    count = getattr(_LIB, "_ZN8LightGBM7Network12num_machinesEv", None)
    return int(count()) if count is not None else 1


def _close() -> Optional[tuple[int, str]]:
    """Closes the network; gives the status and the text of the call that has failed, if any has."""
    _thread.size = 1
    _LIB.LGBM_NetworkFree()
    return _native.close_lightgbm()


def _leave(kv: KVStore, error: Optional[Exception] = None) -> None:
    """Waits until all workers leave; tells those that still train that this one has left."""
    told = [np.zeros(1, bool) for _ in range(kv.num_workers)]
    try:
        kv.allgather(np.array([error is not None]), told)
    except kvstore.KVStoreError as failure:
        if error is None:
            raise _explained(failure.status, str(failure)) from None


def _explained(status: int, text: str) -> kvstore.KVStoreError:
    """The error of a call; says what the call of _leave() is."""
    if status == Status.DIFFERS and "allgather of bool" in text:
        text += (
            "; a worker that calls allgather of bool has left the network, and others still train: "
            "all end at the same round if they evaluate the same rows"
        )
    return error_for(status, text)


def _parameters(given: Any, workers: int) -> dict[str, Any]:
    """A training's parameters, and those that distribute it."""
    parameters = dict(given or {})
    for name in _HOSTS:
        if parameters.get(name) is not None:
            raise kvstore.InvalidArgumentError(
                f"network: the parameter {name} names hosts; leave it out: the store has workers"
            )
    for name in _SIZES:
        number = parameters.pop(name, workers)
        if int(number) != workers:
            raise kvstore.InvalidArgumentError(
                f"network: {name} is {number}, and the store has {workers} workers"
            )
    for name in _LEARNERS:
        if parameters.get(name) == "serial":
            raise kvstore.InvalidArgumentError(
                f'network: {name} is "serial", which trains alone; use "data" or "voting"'
            )
    if not any(name in parameters for name in _LEARNERS):
        parameters["tree_learner"] = "data"
    return {**parameters, "num_machines": workers}


def _distributed(init_booster: Callable[..., None]) -> Callable[..., None]:
    """Booster.__init__ that distributes the training of a thread whose network is open."""

    @functools.wraps(init_booster)
    def init_here(
        self: Any, params: Any = None, train_set: Any = None, *others: Any, **named: Any
    ) -> None:
        if train_set is not None and _thread.size > 1:
            params = _parameters(params, _thread.size)
        init_booster(self, params, train_set, *others, **named)

    return init_here


# LightGBM takes the number of machines from the parameters of each booster alone.
_lightgbm.Booster.__init__ = _distributed(_lightgbm.Booster.__init__)
