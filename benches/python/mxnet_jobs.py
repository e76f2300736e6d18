"""Measures steps of Gluon's Trainer in jobs, with MXNet's dist_sync and with that of kvstore.mxnet.

Usage: kvstore run -n 2 -- python mxnet_jobs.py MODEL [--quick]

A model is a number in the list of mxnet_trainer.py: a store of a job serves one. Both jobs have the same
workers, and one server. A step is `trainer.step` with momentum on the servers, until the slowest
rank can read all weights; series alternate. After them the weights must be equal to four digits.
`make bench-mxnet` runs it with 2 and 4 processes.
"""

from __future__ import annotations

import argparse
import gc
import os
import socket
import statistics
import subprocess
import sys
from contextlib import contextmanager
from typing import Any, Iterator

import mxnet as mx
import numpy as np
from mxnet_trainer import MODELS, Side

import kvstore
import kvstore.mxnet  # noqa: F401

# Of the end of MXNet's servers, behind that of its workers.
LIMIT_S = 30


def numbers(kv: kvstore.KVStore, number: float) -> Any:
    """A number of each rank."""
    own = np.array([float(number)])
    all_ranks = [np.zeros_like(own) for _ in range(kv.num_workers)]
    kv.allgather(own, all_ranks)
    return np.concatenate(all_ranks)


@contextmanager
def job_of_mxnet(kv: kvstore.KVStore) -> Iterator[None]:
    """MXNet's own scheduler and servers, started by rank 0; the process is one of its workers meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    names = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(int(numbers(kv, port)[0])),
        "DMLC_NUM_WORKER": str(kv.num_workers),
        "DMLC_NUM_SERVER": "1",
    }
    roles = ["scheduler", "server"] if kv.rank == 0 else []
    serve = [sys.executable, "-c", "import mxnet"]
    others = [
        subprocess.Popen(serve, env={**os.environ, **names, "DMLC_ROLE": role}) for role in roles
    ]
    os.environ.update(names, DMLC_ROLE="worker")
    try:
        yield
    finally:
        for other in others:
            try:
                other.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                other.kill()
                other.wait()


def measure(model: int, quick: bool) -> None:
    """Prints the row of a model."""
    title, (shapes, steps) = list(MODELS.items())[model]
    store = mx.kv.create("kvstore_dist_sync")
    kv = store._kv
    with job_of_mxnet(kv):
        stores = [mx.kv.create("dist_sync"), store]
        sides = [Side(each, shapes, [mx.cpu(0)], kv.rank) for each in stores]
        times: list[list[float]] = [[], []]
        for _ in range(1 if quick else 7):
            for side, ms in zip(sides, times):
                kv.barrier()
                ms.append(max(numbers(kv, side.series(2 if quick else steps))))
        theirs, ours = (side.weights() for side in sides)
        np.testing.assert_allclose(theirs, ours, rtol=1e-4)
        if kv.rank == 0:
            own, here = (statistics.median(each) for each in times)
            print(
                f"| {kv.num_workers} processes, {title} | {own:.3g} | {here:.3g} ({own / here:.2g})",
                flush=True,
            )
        # MXNet's servers end when all workers have closed their stores; trainers are parts of circles.
        del stores, sides, side
        gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=int)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    measure(given.model, given.quick)


if __name__ == "__main__":
    main()
