"""How the ranks of a collective group find each other."""

from __future__ import annotations

import secrets
import time
from typing import Any

import ray

import kvstore
from kvstore import KVStore

from ._address import hold_port

# Timeout in seconds of the start of a group: some actors import for minutes.
_START_SECONDS = 600.0
_POLL_SECONDS = 0.1


class Notice:
    """An actor of rank 0 with address and token of a group; Ray ends it with rank 0 at latest."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def read(self) -> dict[str, str]:
        """The options by which a rank joins."""
        return self._options


def join(group: str, rank: int, size: int) -> KVStore:
    """The store of a rank. The ranks serve it themselves (option `servers=embedded`)."""
    if size == 1:
        return kvstore.create("local")
    name = f"kvstore.ray {group}"
    common: dict[str, Any] = {
        "servers": "embedded",
        "rank": rank,
        "num_workers": size,
        "start_timeout_ms": round(1000 * _START_SECONDS),
    }
    if rank > 0:
        return kvstore.create("dist_sync", **common, **_read(name, group))
    held, root = hold_port()
    with held:
        options = {"root": root, "token": secrets.token_hex(32)}
        notice = ray.remote(num_cpus=0)(Notice).options(name=name).remote(options)
        try:
            return kvstore.create("dist_sync", **common, **options)
        finally:
            # All have read it, or the group has failed.
            ray.kill(notice)


def _read(name: str, group: str) -> Any:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            return ray.get(ray.get_actor(name).read.remote())
        except (ValueError, ray.exceptions.RayActorError) as error:
            if time.monotonic() > deadline:
                raise kvstore.TimeoutError(
                    f"collective group {group!r}: rank 0 has not come within {_START_SECONDS:g} s"
                ) from error
            time.sleep(_POLL_SECONDS)
