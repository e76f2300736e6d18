"""Which store a script opens that may run alone, or be started several times by a launcher."""

from __future__ import annotations

import os
import threading
from typing import Any, Optional

import kvstore
from kvstore import KVStore
from kvstore._handle import ends_by_exception

# What tells that a launcher has started several processes.
_ROOTS = ("KV_ROOT", "DMLC_PS_ROOT_URI")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def type_of_store() -> str:
    """ "dist_sync" in a job, "local" in a process without a launcher."""
    is_job = any(os.environ.get(name) for name in _ROOTS)
    is_job = is_job or any(int(os.environ.get(name) or 1) > 1 for name in _SIZES)
    return "dist_sync" if is_job else "local"


class LaunchedJob:
    """The store of a script that a launcher may have started; the first use opens it."""

    def __init__(self) -> None:
        self._store: Optional[KVStore] = None
        self._starting = threading.Lock()

    def join(self, options: dict[str, Any]) -> KVStore:
        """The store; options are for the first call."""
        with self._starting:
            if self._store is None:
                self._store = kvstore.create(type_of_store(), **options)
            elif options:
                raise kvstore.InvalidArgumentError("init: the job has been joined already")
            return self._store

    def leave_at_exit(self) -> None:
        """Leaves the job; if an exception ends the program, the store's end tells the others."""
        if not ends_by_exception():
            self.leave(None)

    def leave(self, timeout: Optional[float]) -> None:
        """Closes the store, if it is open."""
        if self._store is not None:
            self._store.close(timeout)
            self._store = None
