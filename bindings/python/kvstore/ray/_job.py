"""A job whose processes are actors, in the program that starts them."""

from __future__ import annotations

import logging
import secrets
import time
from types import TracebackType
from typing import Any, Optional

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import kvstore

from . import _worker
from ._server import Server

_log = logging.getLogger("kvstore.ray")
# Timeout in seconds of ranks behind the first failure: twice peer_timeout_ms, within which they
# learn of a silent peer, and some time for a step of the model.
_GRACE_SECONDS = 15.0
# Timeout in seconds of servers whose workers have left or are lost; a kill costs a new process.
_END_SECONDS = 2.0
_POLL_SECONDS = 0.2
_LEAVE_SECONDS = 60.0
# What a rank gets when another process of the job has died.
_OF_LOSSES = (kvstore.PeerLostError, kvstore.EvictedError)

# By the names of actors.
_Failures = dict[str, Exception]


class Job:
    """A scheduler, servers and workers as actors of one placement group.

    >>> with kvstore.ray.Job(num_workers=4, num_servers=2) as job:
    ...     job.start(Trainer, "digits.csv")
    ...     accuracies = job.run("train", epochs=5)

    `placement` is the strategy of the group: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
    Each server and each worker has a bundle, with the resources that are given, by default one
    logical CPU; the scheduler is in that of server 0.

    `restarts` is how often the job begins again after an actor was lost; see run().
    `start_timeout` in seconds holds for the placement group, for actors, and for their rendezvous.
    `type` and `options` are those of kvstore.create(), such as `timeout_ms`.
    """

    def __init__(
        self,
        num_workers: int,
        num_servers: int = 1,
        *,
        placement: str = "PACK",
        worker_resources: Optional[dict[str, float]] = None,
        server_resources: Optional[dict[str, float]] = None,
        restarts: int = 3,
        start_timeout: float = 600.0,
        type: str = "dist_sync",
        **options: Any,
    ) -> None:
        if num_workers < 1 or num_servers < 1:
            raise kvstore.InvalidArgumentError(
                f"Job: {num_workers} workers and {num_servers} servers; it needs one of each"
            )
        self._num_workers, self._num_servers = num_workers, num_servers
        self._type, self._options = type, options
        self._worker_resources = worker_resources or {"CPU": 1}
        self._server_resources = server_resources or {"CPU": 1}
        self._restarts, self._timeout = restarts, start_timeout
        self._generation = 0
        # The calls by which scheduler and servers serve the current generation.
        self._serving: dict[str, Any] = {}
        self._of_scheduler: dict[str, Any] = {}
        self._actors: dict[str, Any] = {}
        self._group = self._place(placement)

    def _place(self, placement: str) -> Any:
        servers = [self._server_resources] * self._num_servers
        workers = [self._worker_resources] * self._num_workers
        group = placement_group([*servers, *workers], strategy=placement)
        try:
            ray.get(group.ready(), timeout=self._timeout)
        except GetTimeoutError as error:
            remove_placement_group(group)
            raise kvstore.TimeoutError(
                f"Job: no room within {self._timeout:g} s for {self._num_servers} servers with "
                f"{self._server_resources} and {self._num_workers} workers with "
                f"{self._worker_resources}, placed by {placement}; the cluster has "
                f"{ray.cluster_resources()}"
            ) from error
        return group

    # The user's part.

    @property
    def workers(self) -> list[Any]:
        """The actors of start(), by rank; Ray starts them again under the same handles."""
        return [self._actors[f"worker {rank}"] for rank in range(self._num_workers)]

    def start(self, worker: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Creates the actors: the workers of a class, with these arguments of its constructor.

        The class is the user's, with or without ray.remote. Gives the handles by rank.
        """
        if self._actors:
            raise kvstore.InvalidArgumentError("start: the workers have been started already")
        kind = worker if isinstance(worker, ray.actor.ActorClass) else ray.remote(worker)
        server = ray.remote(Server)
        self._actors["scheduler"] = server.options(**self._placed({"CPU": 0}, 0)).remote()
        for rank in range(self._num_servers):
            placed = self._placed(self._server_resources, rank)
            self._actors[f"server {rank}"] = server.options(**placed).remote()
        for rank in range(self._num_workers):
            placed = self._placed(self._worker_resources, self._num_servers + rank)
            self._actors[f"worker {rank}"] = kind.options(**placed).remote(*args, **kwargs)
        try:
            failures = self._begin()
            if failures:
                raise _first(failures)
        except BaseException:
            self._serving = {}
            self.stop()
            raise
        return self.workers

    def run(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Calls a method of all workers, and gives what they return, by rank.

        If a worker or a server was lost, Ray starts it again with the arguments of its constructor,
        all actors join a new generation of the job with empty servers, and the method is called
        again: `kvstore.ray.resume(path)` in it goes on from the last checkpoint. Without restarts
        left it is `PeerLostError`. A scheduler that was lost comes back into the same generation.

        Another error of the method ends the call on all ranks, and is raised here; the next run()
        begins with empty servers, too. Otherwise it finds the keys of the run() before.
        """
        if not self._actors:
            raise kvstore.InvalidArgumentError("run: start() comes first")
        while True:
            failures: _Failures = {} if self._serving else self._begin()
            if not failures:
                calls = self._call(_worker.call, method, args, kwargs)
                failures = self._wait(calls)
                if not failures:
                    return ray.get(list(calls.values()))
            self._end(failures)

    def stop(self) -> None:
        """Ends the job, its actors and its placement group."""
        try:
            if self._serving:
                left = self._wait(self._call(_worker.leave, _LEAVE_SECONDS))
                for name, error in left.items():
                    _log.warning("%s did not leave the job: %s", name, error)
        finally:
            for actor in self._actors.values():
                ray.kill(actor)
            self._actors, self._serving = {}, {}
            remove_placement_group(self._group)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """Ends the job."""
        if kind is not None:
            # Workers may be in the middle of a method.
            self._serving = {}
        self.stop()

    # Generations.

    def _placed(self, resources: dict[str, float], bundle: int) -> dict[str, Any]:
        others = {name: each for name, each in resources.items() if name not in ("CPU", "GPU")}
        return {
            "num_cpus": resources.get("CPU", 0),
            "num_gpus": resources.get("GPU", 0),
            "resources": others,
            "max_restarts": -1,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, bundle),
        }

    def _call(self, function: Any, *args: Any) -> dict[str, Any]:
        calls = [each.__ray_call__.remote(function, *args) for each in self.workers]
        return {f"worker {rank}": each for rank, each in enumerate(calls)}

    def _begin(self) -> _Failures:
        """Lets all actors join a new generation, as soon as all are there."""
        self._generation += 1
        deadline = time.monotonic() + self._timeout
        for name, actor in self._actors.items():
            _await(name, actor, deadline)
        common = {
            "root": ray.get(self._actors["scheduler"].reserve.remote()),
            # In the arguments of actors alone: environments are shown by Ray's dashboard.
            "token": secrets.token_hex(32),
            "num_workers": self._num_workers,
            "num_servers": self._num_servers,
            "start_timeout_ms": round(1000 * self._timeout),
        }
        self._of_scheduler = {**common, "role": "scheduler"}
        served = {"scheduler": self._of_scheduler}
        for rank in range(self._num_servers):
            served[f"server {rank}"] = {**common, "role": "server", "rank": rank}
        self._serving = {
            name: self._actors[name].serve.remote(options) for name, options in served.items()
        }
        joining = {}
        for rank, worker in enumerate(self.workers):
            options = {**common, "role": "worker", "rank": rank, **self._options}
            call = worker.__ray_call__.remote(_worker.join, self._type, options)
            joining[f"worker {rank}"] = call
        return self._wait(joining)

    def _wait(self, calls: dict[str, Any]) -> _Failures:
        """Waits for calls of workers, or for a failure of any actor; gives errors by actor."""
        names = {each: name for name, each in (*calls.items(), *self._serving.items())}
        pending = set(calls.values())
        failures: _Failures = {}
        deadline = None
        while pending:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            done, _ = ray.wait(list(names), num_returns=1, timeout=left)
            if not done:
                break
            pending.discard(done[0])
            name = names.pop(done[0])
            found = _failure(name, done[0])
            if found and name == "scheduler" and not failures:
                found = self._serve_again(names)
            failures.update(found)
            if failures and deadline is None:
                deadline = time.monotonic() + _GRACE_SECONDS
        for call in pending:
            # It is busy with something else than the store: Ray starts it again.
            ray.kill(self._actors[names[call]], no_restart=False)
        return failures

    def _serve_again(self, names: dict[Any, str]) -> _Failures:
        """Lets a scheduler that Ray starts again come back at its address; the job goes on."""
        actor = self._actors["scheduler"]
        try:
            _await("scheduler", actor, time.monotonic() + self._timeout)
        except (RayActorError, kvstore.TimeoutError) as error:
            return {"scheduler": error}
        call = actor.serve.remote(self._of_scheduler)
        self._serving["scheduler"] = call
        names[call] = "scheduler"
        return {}

    def _end(self, failures: _Failures) -> None:
        """Ends a generation that has failed; raises unless a new one may follow."""
        names = {each: name for name, each in self._serving.items()}
        self._serving = {}
        _, still = ray.wait(list(names), num_returns=len(names), timeout=_END_SECONDS)
        for call in still:
            ray.kill(self._actors[names[call]], no_restart=False)
        lost = _first(failures)
        if not _is_loss(lost):
            raise lost
        dead = [name for name, each in failures.items() if isinstance(each, RayActorError)]
        text = f"generation {self._generation} of the job has lost {', '.join(dead) or 'a process'}"
        if self._restarts == 0:
            raise kvstore.PeerLostError(f"{text}, and no restart is left") from lost
        self._restarts -= 1
        _log.warning("%s; %d restarts are left after this one", text, self._restarts)


def _await(name: str, actor: Any, deadline: float) -> None:
    """Waits until an actor answers, which Ray may be starting again."""
    while True:
        left = max(0.0, deadline - time.monotonic())
        try:
            ray.get(actor.__ray_call__.remote(_worker.answer), timeout=left)
            return
        except ActorDiedError:
            # Its constructor has raised, or Ray gives it up.
            raise
        except (RayActorError, GetTimeoutError) as error:
            if time.monotonic() > deadline:
                raise kvstore.TimeoutError(f"Job: {name} does not answer") from error
            time.sleep(_POLL_SECONDS)


def _failure(name: str, call: Any) -> _Failures:
    try:
        ray.get(call)
    except (RayActorError, RayTaskError) as error:
        return {name: error}
    return {}


def _is_loss(error: Exception) -> bool:
    cause = error.cause if isinstance(error, RayTaskError) else error
    return isinstance(cause, (RayActorError, *_OF_LOSSES))


def _first(failures: _Failures) -> Exception:
    """The failure that has caused the others."""
    return min(failures.values(), key=_is_loss)
