"""The library as a backend of ray.util.collective."""

from __future__ import annotations

BACKEND = "KVSTORE"


def backend() -> str:
    """Registers the backend in this process, and gives its name.

    Ray wants a backend registered in the driver and in each actor, so both call it:

    >>> collective.init_collective_group(size, rank, kvstore.ray.backend())

    Ray's collectives import PyTorch where it is installed, which takes seconds; hence this call,
    and no registration by `import kvstore.ray`.
    """
    from ray.util.collective import collective
    from ray.util.collective.backend_registry import register_collective_backend

    from ._group import Group

    if not collective.is_backend_available(BACKEND):
        register_collective_backend(BACKEND, Group)
    return BACKEND
