"""Measures the mean of a tree of gradients over all processes by JAX's own collectives, and by kvstore.jax.

Usage: kvstore run -n 2 -- python jax_trees.py [--quick]

JAX's own is `lax.pmean` under `jax.pmap`, over gloo, as multi-process JAX has it on CPUs. A time is that
of the slowest rank until all arrays can be read; series alternate. The means must be equal to five
digits. `make bench-jax` runs it with 2 and 4 processes.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import time
from typing import Any, Callable

import jax
import numpy as np

import kvstore
import kvstore.jax

# Shapes of the gradients, and steps of a series.
MODELS: dict[str, tuple[list[tuple[int, ...]], int]] = {
    "the script's: 4 arrays, 4,810 floats": ([(64, 64), (64,), (64, 10), (10,)], 100),
    "200 arrays of 64 floats": ([(64,)] * 200, 5),
    "12 arrays of 1M floats": ([(1 << 20,)] * 12, 5),
}


def begin(kv: kvstore.KVStore) -> None:
    """Joins JAX's own processes, at a free port of rank 0."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = np.array([server.getsockname()[1]])
    ports = [np.zeros_like(port) for _ in range(kv.num_workers)]
    kv.allgather(port, ports)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{ports[0][0]}", kv.num_workers, kv.rank)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    kv = kvstore.jax.init()
    begin(kv)
    theirs = jax.pmap(lambda tree: jax.lax.pmean(tree, "all"), axis_name="all")
    if kv.rank == 0:
        print(f"| {kv.num_workers} processes: ms a mean, JAX, here, JAX / here")
    for title, (shapes, steps) in MODELS.items():
        random = np.random.default_rng(kv.rank)
        tree = [jax.numpy.asarray(random.normal(size=shape), "float32") for shape in shapes]
        # Of one device of this process.
        wide = [each[None] for each in tree]

        def series(call: Callable[[Any], Any], values: Any) -> tuple[float, Any]:
            """Milliseconds of a call on the slowest rank, and its last result."""
            kv.barrier()
            start, count = time.perf_counter(), 2 if quick else steps
            for _ in range(count):
                result = jax.block_until_ready(call(values))
            slowest = np.array([1000 * (time.perf_counter() - start) / count])
            kv.allreduce(slowest, op="max")
            return float(slowest[0]), result

        times: tuple[list[float], list[float]] = ([], [])
        # The first series compiles, and makes the keys.
        for number in range(2 if quick else 8):
            own, expected = series(theirs, wide)
            ours, found = series(kvstore.jax.allreduce, tree)
            if number > 0:
                times[0].append(own)
                times[1].append(ours)
        for one, other in zip(expected, found):
            np.testing.assert_allclose(one.addressable_data(0)[0], other, rtol=1e-5, atol=1e-6)
        if kv.rank == 0:
            own, ours = (statistics.median(each) for each in times)
            print(f"| {title} | {own:.3g} | {ours:.3g} ({own / ours:.2g})", flush=True)


if __name__ == "__main__":
    main()
