"""Measures LightGBM's distributed training over its own sockets, and over kvstore.lightgbm.

Usage: kvstore run -n 2 -- python lightgbm_network.py [--quick]

A series is a training over each; they alternate. A time is that of the rounds after the first one, of
the slowest rank: it has no connecting and no binning. The trees must be the same texts. Each rank
trains with one thread. `make bench-lightgbm` runs it with 2 and 4 processes.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import time
from contextlib import nullcontext
from typing import Any

import lightgbm as lgb
import numpy as np

import kvstore
import kvstore.lightgbm

# Rows, features, classes, leaves, rounds.
JOBS = {
    "200,000 rows of 28, 2 classes, 31 leaves": (200_000, 28, 2, 31, 40),
    "200,000 rows of 28, 2 classes, 255 leaves": (200_000, 28, 2, 255, 10),
    "20,000 rows of 28, 5 classes, 31 leaves": (20_000, 28, 5, 31, 20),
    "5,000 rows of 500, 2 classes, 31 leaves": (5_000, 500, 2, 31, 20),
    "2,000 rows of 10, 2 classes, 31 leaves": (2_000, 10, 2, 31, 100),
}


def data_of(rows: int, features: int, classes: int) -> tuple[Any, Any]:
    """The same rows on all ranks, with labels by quantiles of a score."""
    random = np.random.default_rng(7)
    values = random.normal(size=(rows, features))
    score = values[:, :8] @ random.normal(size=8) + values[:, 8] * values[:, 9]
    score += random.normal(size=rows)
    return values, np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))


def hosts(kv: kvstore.KVStore) -> dict[str, Any]:
    """Parameters of LightGBM's own sockets, with free ports of all ranks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = np.array([server.getsockname()[1]])
    ports = [np.zeros_like(port) for _ in range(kv.num_workers)]
    kv.allgather(port, ports)
    machines = ",".join(f"127.0.0.1:{each[0]}" for each in ports)
    return {
        "machines": machines,
        "local_listen_port": int(port[0]),
        "num_machines": kv.num_workers,
        "tree_learner": "data",
    }


def train(
    kv: kvstore.KVStore, parameters: dict[str, Any], rows: Any, labels: Any, rounds: int, own: bool
) -> tuple[str, float]:
    """The trees, and the seconds of a round after the first one."""
    if own:
        parameters = {**parameters, **hosts(kv)}
    times: list[float] = []
    with nullcontext() if own else kvstore.lightgbm.network(kv):
        booster = lgb.train(
            parameters,
            lgb.Dataset(rows, labels),
            rounds,
            callbacks=[lambda _: times.append(time.perf_counter())],
        )
    trees = booster.model_to_string().split("parameters:")[0]
    slowest = np.array([(times[-1] - times[0]) / (rounds - 1)])
    kv.allreduce(slowest, op="max")
    return trees, float(slowest[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    with kvstore.create("dist_sync") as kv:
        if kv.rank == 0:
            print(f"\n{kv.num_workers} processes: ms a round, sockets, store, store / sockets")
        for title, (rows, features, classes, leaves, rounds) in JOBS.items():
            values, labels = data_of(rows, features, classes)
            mine = slice(kv.rank, None, kv.num_workers)
            parameters: dict[str, Any] = {"num_leaves": leaves, "num_threads": 1, "verbosity": -1, "seed": 1}
            parameters.update(objective="multiclass", num_class=classes)
            if classes == 2:
                parameters.update(objective="binary", num_class=1)
            times: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(1 if quick else 7):
                trees = {}
                for own in (True, False):
                    count = 3 if quick else rounds
                    trees[own], seconds = train(
                        kv, parameters, values[mine], labels[mine], count, own
                    )
                    times[own].append(1000 * seconds)
                if trees[True] != trees[False]:
                    raise SystemExit("the trees differ")
            if kv.rank == 0:
                own_ms, ours = (statistics.median(times[own]) for own in (True, False))
                series = " ".join(f"{a:.1f}/{b:.1f}" for a, b in zip(times[True], times[False]))
                print(
                    f"| {title} | {own_ms:.2f} | {ours:.2f} | {ours / own_ms:.2f} | {series}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
