"""Measures pushpull() from Python beside the C call and beside loops of numpy and PyTorch.

The C call has arguments made before, and is made twice: by a loop in C, and by ctypes, which adds
its own time. The loops of numpy and PyTorch add the values of each key and copy the sum into each
out, as the store does. All sides alternate in one process; a time is the median of its rounds.
`make bench-python` runs it.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from ctypes import c_int32, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch

import kvstore
from kvstore._library import Tensor, loaded

_FLOAT32 = 2 | 32 << 8 | 1 << 16
_CPU = 1
# Seconds of a turn, in which a side is called over and over, and turns per side. The first calls of
# a turn find the caches full of what other sides use.
_TURN, _ROUNDS = 0.1, 21
# Floats of an array, keys of a call, arrays of a key on each side.
_CASES = [(floats, 1, devices) for devices in (1, 4) for floats in (1 << 10, 1 << 16, 1 << 20)] + [
    (1 << 10, 1000, 4)
]

# The parameters of kv_pushpull().
_PARAMETERS = (c_void_p, *(c_void_p, c_void_p, c_size_t) * 2, c_int32, c_void_p)
_LOOP = """
#include <stddef.h>
#include <stdint.h>
typedef int (*pushpull)(void *, const void *, const void *, size_t,
                        const void *, const void *, size_t, int, void *);
int loop(pushpull call, int times, void *store, const void *keys, const void *values, size_t count,
         const void *out_keys, const void *outs, size_t out_count, int priority, void *ticket) {
  for (int i = 0; i < times; i++) {
    int status = call(store, keys, values, count, out_keys, outs, out_count, priority, ticket);
    if (status != 0) return status;
  }
  return 0;
}
"""

Arrays = list[list[Any]]
# Makes a call as often as it is told.
Side = Callable[[int], None]


def compiled_loop() -> Any:
    """A loop around the C call, in C."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "loop.c", Path(folder) / "loop.so"
        source.write_text(_LOOP)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        loop = ctypes.CDLL(str(library)).loop
    loop.argtypes = (c_void_p, c_int32, *_PARAMETERS)
    return loop


def tensors_of(arrays: Arrays, kept: list[Any]) -> Any:
    """Tensors of PyTorch as kv_tensors, whose memory `kept` keeps."""
    flat = [array for of_key in arrays for array in of_key]
    tensors = (Tensor * len(flat))()
    for tensor, array in zip(tensors, flat):
        shape = (ctypes.c_int64 * 1)(array.numel())
        kept.append((array, shape))
        tensor.data, tensor.shape = array.data_ptr(), ctypes.addressof(shape)
        tensor.device_type, tensor.ndim, tensor.dtype = _CPU, 1, _FLOAT32
    return tensors


def c_calls(kv: kvstore.KVStore, loop: Any, values: Arrays, outs: Arrays) -> dict[str, Side]:
    """The C function with arguments made before."""
    assert kv._handle is not None
    function = loaded.kv_pushpull
    function.argtypes, function.restype = _PARAMETERS, c_int32
    address = ctypes.cast(function, c_void_p)
    numbers = [key for key, of_key in enumerate(values) for _ in of_key]
    kept: list[Any] = [kv]
    keys = (c_uint64 * len(numbers))(*numbers)
    lists = [(keys, tensors_of(each, kept), len(numbers)) for each in (values, outs)]
    arguments = (c_void_p(kv._handle.pointer), *lists[0], *lists[1], 0, None)

    def by_loop(times: int, kept: object = kept) -> None:
        status = loop(address, times, *arguments)
        assert status == 0, status

    def by_ctypes(times: int, kept: object = kept) -> None:
        for _ in range(times):
            status = function(*arguments)
            assert status == 0, status

    return {"C": by_loop, "C by ctypes": by_ctypes}


def numpy_loop(values: Arrays, outs: Arrays) -> None:
    """Sums and copies by numpy."""
    for of_key, to_fill in zip(values, outs):
        total = of_key[0]
        if len(of_key) > 1:
            total = np.add(total, of_key[1])
            for value in of_key[2:]:
                np.add(total, value, out=total)
        for out in to_fill:
            np.copyto(out, total)


def torch_loop(values: Arrays, outs: Arrays) -> None:
    """Sums and copies by PyTorch."""
    for of_key, to_fill in zip(values, outs):
        total = of_key[0]
        if len(of_key) > 1:
            total = torch.add(total, of_key[1])
            for value in of_key[2:]:
                total.add_(value)
        for out in to_fill:
            out.copy_(total)


def repeated(call: Callable[[], object]) -> Side:
    """A side that makes a call in Python."""

    def side(times: int) -> None:
        for _ in range(times):
            call()

    return side


def sides_of(floats: int, count: int, devices: int, loop: Any) -> dict[str, Side]:
    """What is measured, by name; every side has arrays of its own."""
    keys = list(range(count))

    def arrays(value: float) -> Arrays:
        return [[np.full(floats, value, np.float32) for _ in range(devices)] for _ in keys]

    def tensors(value: float) -> Arrays:
        return [
            [torch.full((floats,), value, dtype=torch.float32) for _ in range(devices)]
            for _ in keys
        ]

    def store(values: Arrays) -> kvstore.KVStore:
        kv = kvstore.create()
        kv.init(keys, [of_key[0] for of_key in values])
        return kv

    def ours(values: Arrays, outs: Arrays) -> Side:
        kv = store(values)
        key, value, out = (keys, values, outs) if count > 1 else (0, values[0], outs[0])
        return repeated(lambda: kv.pushpull(key, value, out=out))

    v, o, t, u = arrays(1), arrays(0), tensors(1), tensors(0)
    return {
        **c_calls(store(t), loop, tensors(1), tensors(0)),
        "kvstore, torch": ours(tensors(1), tensors(0)),
        "kvstore, numpy": ours(arrays(1), arrays(0)),
        "torch loop": repeated(lambda: torch_loop(t, u)),
        "numpy loop": repeated(lambda: numpy_loop(v, o)),
    }


def measure(sides: dict[str, Side], rounds: int, turn: float) -> dict[str, float]:
    """Microseconds of a call, by side."""
    counts = {}
    for name, side in sides.items():
        side(1)
        start = time.perf_counter()
        side(1)
        counts[name] = max(1, int(turn / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            start = time.perf_counter()
            side(counts[name])
            times[name].append(1e6 * (time.perf_counter() - start) / counts[name])
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    """Measures all cases and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only show that everything runs")
    quick = parser.parse_args().quick
    rounds, turn = (1, 0.0) if quick else (_ROUNDS, _TURN)
    versions = f"torch {torch.__version__}, numpy {np.__version__}"
    print(f"kvstore {kvstore.__version__}, {versions}; us per call, medians of {rounds}")
    loop = compiled_loop()
    for number, (floats, count, devices) in enumerate(_CASES):
        with torch.no_grad():
            times = measure(sides_of(floats, count, devices, loop), rounds, turn)
        if number == 0:
            print(" " * 20 + "".join(f"{name:>15}" for name in times))
        case = f"{count} x ({devices}+{devices}) of {floats // 1024}K"
        print(f"{case:20}" + "".join(f"{each:15.2f}" for each in times.values()))
        ratios = (each / times["C"] for each in times.values())
        print(f"{'  beside C':20}" + "".join(f"{each:15.2f}" for each in ratios), flush=True)


if __name__ == "__main__":
    main()
