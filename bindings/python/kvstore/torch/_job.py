"""The job of this process: how it starts and ends, and what its parts share."""

from __future__ import annotations

import atexit
import math
import os
import threading
from typing import Any, Optional

import kvstore
from kvstore import KVStore
from kvstore._handle import ends_by_exception

from ._rendezvous import Rendezvous, join

# As long as torchrun waits for its own processes: some import for minutes.
_START_SECONDS = 1800.0
# The store's own, docs/use/config.md.
_TIMEOUT_MS = 600_000
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_OF_LAUNCHERS = ("KV_ROOT", "DMLC_PS_ROOT_URI")
# Of mpirun, mpiexec and srun, which kvstore.create() understands.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def _size_of_launcher() -> int:
    """The number of processes that an MPI or Slurm has started, unless torchrun is inside of it."""
    if os.environ.get("RANK"):
        return 1
    return max(int(os.environ.get(name) or 1) for name in _SIZES)


class Job:
    """The store of init(), and further ones with rules of their own."""

    def __init__(
        self,
        start_timeout: float,
        options: dict[str, Any],
        rendezvous: Optional[Rendezvous] = None,
    ) -> None:
        self.options = options
        self.process = os.getpid()
        # Keys of gradients, so that two models may have parameters of one name.
        self.keys: set[str] = set()
        self._others: list[KVStore] = []
        self._numbered = 0
        if any(os.environ.get(name) for name in _OF_LAUNCHERS) or _size_of_launcher() > 1:
            self.store = kvstore.create("dist_sync", **options)
        elif rendezvous or all(os.environ.get(name) for name in _OF_TORCHRUN):
            # Kept: rank 0 may serve its store, which PyTorch uses too.
            self._rendezvous = rendezvous or Rendezvous(start_timeout)
            self.store = join(self._rendezvous, options)
        else:
            self.store = kvstore.create("local", **options)
        self.rank = self.store.rank
        self.size = self.store.num_workers

    def another_store(self) -> KVStore:
        """A store of all ranks with settings of its own: its rule and codec hold for all keys.

        All ranks make this call, and equally often. The processes of the job serve it.
        """
        self._numbered += 1
        return self.enter(self.store.group(f"kvstore.torch {self._numbered}", range(self.size)))

    @property
    def timeout_s(self) -> float:
        """The timeout of a call of the store, in seconds."""
        given = self.options.get("timeout_ms", os.environ.get("KV_TIMEOUT_MS"))
        milliseconds = _TIMEOUT_MS if given is None else int(given)
        return math.inf if milliseconds < 0 else milliseconds / 1000

    def enter(self, store: KVStore) -> KVStore:
        """Has a store of some ranks closed together with the job."""
        self._others.append(store)
        return store

    def leave(self, store: KVStore, timeout: Optional[float]) -> None:
        """Closes a store of enter() before the job ends."""
        store.close(timeout)
        self._others.remove(store)

    def close(self, timeout: Optional[float]) -> None:
        for store in (*reversed(self._others), self.store):
            store.close(timeout)

    def abort(self) -> None:
        for store in (self.store, *self._others):
            store.abort()


_job: Optional[Job] = None
_has_ended = False
_starting = threading.Lock()


def init(*, start_timeout: float = _START_SECONDS, **options: Any) -> KVStore:
    """Joins the job of this process and gives its store; a second call gives the same store.

    Other calls of this module do it first where it has not been done; options need a call.

    - Inside of `torchrun train.py` all ranks are workers. Rank 0 runs the scheduler and each rank
      a server, as threads of these processes.
    - Inside of `mpirun`, `mpiexec` and `srun` too, where PyTorch's rendezvous is not needed.
    - Inside of `kvstore run` the processes of that job serve.
    - Otherwise the store is local, with one worker: the same script runs alone.

    `options` are those of kvstore.create(), such as `timeout_ms` or `sum_order`. `start_timeout` is
    the time in seconds in which all ranks of torchrun must come.

    >>> kvstore.torch.init()
    """
    global _job, _has_ended
    with _starting:
        if _job is None:
            _job = Job(start_timeout, options)
            _has_ended = False
        elif options and options != _job.options:
            raise kvstore.InvalidArgumentError(
                f"init: the job has been started with other options: {_job.options}"
            )
        return _job.store


def begin_job(rendezvous: Rendezvous, options: dict[str, Any]) -> bool:
    """Joins the job of a process group of all ranks, unless this process has one already."""
    global _job, _has_ended
    with _starting:
        if _job is not None:
            return False
        _job = Job(rendezvous.timeout_s, options, rendezvous)
        _has_ended = False
        return True


def has_job() -> bool:
    """Whether this process is in a job."""
    return _job is not None


def job() -> Job:
    """What init() has made, or makes now."""
    if _job is None:
        if _has_ended:
            raise kvstore.ClosedError("kvstore.torch: shutdown() has ended the job; call init()")
        init()
    assert _job is not None
    if _job.process != os.getpid():
        raise kvstore.ForkedError("kvstore.torch: the job belongs to the process of its init()")
    return _job


def store() -> KVStore:
    """The store of init(), for keys of your own."""
    return job().store


def rank() -> int:
    """The rank of this worker, from 0."""
    return job().rank


def size() -> int:
    """The number of workers."""
    return job().size


def shutdown(timeout: Optional[float] = None) -> None:
    """Leaves the job. Returns when all ranks have left it, since each of them serves the others.

    The end of the program does it, too. `timeout` is in seconds; None waits for ever.
    """
    global _job, _has_ended
    if _job is not None and _job.process == os.getpid():
        _job.close(timeout)
        _job, _has_ended = None, True


@atexit.register
def _at_exit() -> None:
    """Serves the others to their end; a program that ends by an exception leaves at once."""
    if _job is None or _job.process != os.getpid():
        return
    if ends_by_exception():
        _job.abort()
        return
    try:
        shutdown()
    except KeyboardInterrupt:
        _job.abort()
