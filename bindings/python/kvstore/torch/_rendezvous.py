"""Jobs inside of training processes: the library serves them itself (option `servers=embedded`).

Address and token of the scheduler travel through torchrun's own key-value store, which all ranks
reach already: the scheduler takes any free port, and MASTER_PORT stays torchrun's.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
from datetime import timedelta
from typing import Any, Optional

import torch.distributed

import kvstore
from kvstore import KVStore

_numbers = itertools.count(1)


class Rendezvous:
    """Rank and number of processes, and the store of torchrun, from the environment.

    Or those of a process group, whose store may be any.
    """

    def __init__(
        self,
        timeout_s: float,
        rank: Optional[int] = None,
        size: Optional[int] = None,
        store: Optional[Any] = None,
    ) -> None:
        environment = os.environ
        self.rank = int(environment["RANK"]) if rank is None else rank
        self.size = int(environment["WORLD_SIZE"]) if size is None else size
        local_size = environment.get("LOCAL_WORLD_SIZE")
        # Processes of one machine need no route.
        one_machine = local_size is not None and int(local_size) == self.size
        self.host = environment.get("MASTER_ADDR") or _host_of(store)
        if one_machine:
            self.host = "127.0.0.1"
        self.timeout_s = timeout_s
        self._given = store
        self._store: Optional[Any] = None

    def store(self) -> Any:
        """The given store, or the one at MASTER_ADDR and MASTER_PORT, which torchrun serves."""
        if self._store is None:
            store = self._connect() if self._given is None else self._given
            # A restarted group must not read what an earlier one has left.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            self._store = torch.distributed.PrefixStore(f"kvstore/{attempt}", store)
        return self._store

    def _connect(self) -> Any:
        served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return torch.distributed.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            self.size,
            is_master=self.rank == 0 and not served,
            timeout=timedelta(seconds=self.timeout_s),
            wait_for_workers=False,
            # Shared with init_process_group() where no torchrun serves it.
            multi_tenant=True,
        )


def _host_of(store: Any) -> str:
    """Where rank 0 serves a store, behind its prefixes; this machine, if it is a file."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", "127.0.0.1")


def join(rendezvous: Rendezvous, options: dict[str, Any]) -> KVStore:
    """The store of this process in a job that all ranks serve; a local one for a rank alone."""
    if rendezvous.size == 1:
        return kvstore.create("local", **options)
    shared, held = rendezvous.store(), None
    # All ranks join equally often; a second job must not read what the first one has left.
    name = f"job {next(_numbers)}"
    try:
        if rendezvous.rank == 0:
            held, root = _hold_port(rendezvous.host)
            shared.set(name, f"{root} {secrets.token_hex(32)}")
        root, token = shared.get(name).decode().split()
        ours = {
            "servers": "embedded",
            "rank": rendezvous.rank,
            "num_workers": rendezvous.size,
            "root": root,
            "token": token,
            "start_timeout_ms": round(1000 * rendezvous.timeout_s),
        }
        return kvstore.create("dist_sync", **{**ours, **options})
    finally:
        if held is not None:
            held.close()


def _hold_port(host: str) -> tuple[socket.socket, str]:
    """A free port of a host, which no other program gets before the scheduler listens at it."""
    family = socket.getaddrinfo(host, None)[0][0]
    held = socket.socket(family)
    # With it the scheduler, which sets it too, may bind a port that is held and not listened at.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    address = f"[{host}]" if ":" in host else host
    return held, f"{address}:{held.getsockname()[1]}"
