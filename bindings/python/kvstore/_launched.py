"""Which store a script opens that may run alone, or be started several times by a launcher."""

from __future__ import annotations

import os

# What tells that a launcher has started several processes.
_ROOTS = ("KV_ROOT", "DMLC_PS_ROOT_URI")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def type_of_store() -> str:
    """ "dist_sync" in a job, "local" in a process without a launcher."""
    is_job = any(os.environ.get(name) for name in _ROOTS)
    is_job = is_job or any(int(os.environ.get(name) or 1) > 1 for name in _SIZES)
    return "dist_sync" if is_job else "local"
