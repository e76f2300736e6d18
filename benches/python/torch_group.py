"""Measures all-reduces of 4 bytes to 64 MB: gloo, the process group "kv", and the store's own call.

Usage: torchrun --nproc-per-node 2 torch_group.py [--quick]

Sides alternate: a series is some calls of each, and a time is the median over the medians of five
series, of the slowest rank. All sides must have the same sums. `make bench-torch` runs it with 2
and 4 processes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Callable

import torch
import torch.distributed as dist

import kvstore.torch as kt

SIZES = [4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
# Bytes of a series, and the numbers of calls between which it stays.
SERIES_BYTES, MOST_CALLS, FEWEST_CALLS = 64 << 20, 200, 5


def sides_of(tensor: torch.Tensor, gloo: dist.ProcessGroup) -> dict[str, Callable[[], object]]:
    return {
        "gloo": lambda: dist.all_reduce(tensor, group=gloo),
        "gloo, async": lambda: dist.all_reduce(tensor, group=gloo, async_op=True).wait(),
        "kv": lambda: dist.all_reduce(tensor),
        "kv, async": lambda: dist.all_reduce(tensor, async_op=True).wait(),
        "store.allreduce": lambda: kt.store().allreduce(tensor),
    }


def seconds_of(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def check(count: int, gloo: dist.ProcessGroup) -> None:
    """All sides have the same sum; the numbers are whole, so any order of a sum is right."""
    start = torch.arange(count, dtype=torch.float32).remainder_(97).add_(kt.rank())
    results = []
    for name in sides_of(start, gloo):
        tensor = start.clone()
        sides_of(tensor, gloo)[name]()
        results.append(tensor)
    if not all(torch.equal(results[0], each) for each in results):
        raise SystemExit("the sides have different sums")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    dist.init_process_group("kv")
    gloo = dist.new_group(backend="gloo")
    series = 2 if arguments.quick else 5
    if kt.rank() == 0:
        names = [f"{name} (us)" for name in sides_of(torch.zeros(1), gloo)]
        print(
            f"\nall-reduce of float32, {kt.size()} processes, in brackets: time of gloo / its time"
        )
        print("| bytes |", " | ".join(names), "|", flush=True)
    for size in SIZES:
        check(size // 4, gloo)
        # Zeros stay zeros, however often they are added.
        sides = sides_of(torch.zeros(size // 4), gloo)
        calls = max(FEWEST_CALLS, min(MOST_CALLS, SERIES_BYTES // size))
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(series):
            for name, call in sides.items():
                dist.barrier(gloo)
                call()
                slowest = torch.tensor(statistics.median(seconds_of(call) for _ in range(calls)))
                dist.all_reduce(slowest, dist.ReduceOp.MAX, gloo)
                times[name].append(slowest.item())
        if kt.rank() == 0:
            medians = {name: statistics.median(each) for name, each in times.items()}
            base = medians["gloo"]
            cells = [f"{1e6 * each:.0f} ({base / each:.2f})" for each in medians.values()]
            print(f"| {size} |", " | ".join(cells), "|", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
