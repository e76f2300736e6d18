"""Jobs inside of training processes: rank 0 runs the scheduler, and each rank a server, as threads.

Each thread has a store of its own role, and serves until all workers have closed. Address and token
of the scheduler travel through torchrun's own key-value store, which all ranks reach already: the
scheduler takes any free port, and MASTER_PORT stays torchrun's.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from datetime import timedelta
from typing import Any, Optional

import torch.distributed

import kvstore
from kvstore import KVStore

# A free port may be taken between its choice and its use.
_PORTS_TRIED = 8
_LISTEN_SECONDS = 10.0
_POLL_SECONDS = 0.001


class Rendezvous:
    """Rank and number of processes, and the store of torchrun, from the environment."""

    def __init__(self, timeout_s: float) -> None:
        environment = os.environ
        self.rank = int(environment["RANK"])
        self.size = int(environment["WORLD_SIZE"])
        self.host = environment["MASTER_ADDR"]
        local_size = environment.get("LOCAL_WORLD_SIZE")
        # Processes of one machine need no route.
        self.one_machine = local_size is not None and int(local_size) == self.size
        self.timeout_s = timeout_s
        self._store: Optional[Any] = None

    def store(self) -> Any:
        """A connection with the store at MASTER_ADDR and MASTER_PORT, which torchrun serves."""
        if self._store is None:
            served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            store = torch.distributed.TCPStore(
                self.host,
                int(os.environ["MASTER_PORT"]),
                self.size,
                is_master=self.rank == 0 and not served,
                timeout=timedelta(seconds=self.timeout_s),
                wait_for_workers=False,
                # Shared with init_process_group() where no torchrun serves it.
                multi_tenant=True,
            )
            # A restarted group must not read what an earlier one has left.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            self._store = torch.distributed.PrefixStore(f"kvstore/{attempt}", store)
        return self._store


class EmbeddedJob:
    """The worker store of this process in a job of its own, with the threads that serve it."""

    def __init__(self, rendezvous: Rendezvous, name: str, options: dict[str, Any]) -> None:
        self._threads: list[_ServingThread] = []
        self._common = {
            "num_workers": rendezvous.size,
            "num_servers": rendezvous.size,
            "start_timeout_ms": round(1000 * rendezvous.timeout_s),
            **options,
        }
        try:
            self._join(rendezvous, name)
        except BaseException:
            self.abort()
            raise

    def _join(self, rendezvous: Rendezvous, name: str) -> None:
        shared = rendezvous.store()
        if rendezvous.rank == 0:
            self._common["token"] = secrets.token_hex(32)
            root = self._start_scheduler(rendezvous)
            shared.set(name, f"{root} {self._common['token']}")
        root, token = shared.get(name).decode().split()
        self._common.update(root=root, token=token)
        self._threads.append(_ServingThread("server", {**self._common, "rank": rendezvous.rank}))
        self.store: KVStore = kvstore.create(
            "dist_sync", role="worker", rank=rendezvous.rank, **self._common
        )

    def _start_scheduler(self, rendezvous: Rendezvous) -> str:
        host = "127.0.0.1" if rendezvous.one_machine else rendezvous.host
        address = f"[{host}]" if ":" in host else host
        for _ in range(_PORTS_TRIED):
            port = _free_port(host)
            options = {**self._common, "root": f"{address}:{port}"}
            if not rendezvous.one_machine and not _is_loopback(host):
                # A name may mean the loopback on its own machine.
                any_address = "[::]" if _family(host) == socket.AF_INET6 else "0.0.0.0"
                options["bind"] = f"{any_address}:{port}"
            thread = _ServingThread("scheduler", options)
            self._threads.append(thread)
            if thread.listens(host, port):
                return f"{address}:{port}"
            self._threads.remove(thread)
            if not isinstance(thread.failure, kvstore.NetworkError):
                break
        raise thread.failure or kvstore.NetworkError(f"the scheduler does not listen at {host}")

    def close(self, timeout: Optional[float] = None) -> None:
        """Leaves the job, and serves on until all other workers have left it."""
        self.store.close(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            thread.join(left)
            if thread.is_alive():
                raise kvstore.TimeoutError(
                    f"shutdown: the {thread.role} of rank {self._common.get('rank', 0)} still "
                    f"serves after {timeout} s: another worker has not left the job"
                )

    def abort(self) -> None:
        """Ends at once; other workers lose this one."""
        store: Optional[KVStore] = getattr(self, "store", None)
        if store is not None:
            store.abort()
        for thread in self._threads:
            thread.store.abort()


class _ServingThread(threading.Thread):
    """A server or the scheduler, until its job ends."""

    def __init__(self, role: str, options: dict[str, Any]) -> None:
        super().__init__(name=f"kvstore-{role}", daemon=True)
        self.role = role
        self.failure: Optional[BaseException] = None
        self.store = kvstore.create("dist_sync", role=role, **options)
        self.start()

    def run(self) -> None:
        try:
            self.store.serve()
            self.store.close()
        except kvstore.KVStoreError as error:
            # The worker of this process has an error of its own, which names the peer.
            self.failure = error

    def listens(self, host: str, port: int) -> bool:
        """Waits until the scheduler accepts connections; False if it cannot."""
        deadline = time.monotonic() + _LISTEN_SECONDS
        while self.is_alive() and time.monotonic() < deadline:
            try:
                socket.create_connection((host, port), timeout=1).close()
                return self.is_alive()
            except OSError:
                time.sleep(_POLL_SECONDS)
        return False


def _family(host: str) -> int:
    return socket.getaddrinfo(host, None)[0][0]


def _free_port(host: str) -> int:
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _is_loopback(host: str) -> bool:
    addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    return all(str(each).startswith("127.") or each == "::1" for each in addresses)
