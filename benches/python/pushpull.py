"""Measures pushpull() from Python beside the C call and beside loops of numpy and PyTorch.

The C call is made by ctypes with arguments made before, in the same process. A loop adds the values of
each key and copies the sum into each out, as the store does. All sides alternate; a time is the median
of its rounds. `python pushpull.py --quick` shows that everything runs.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from ctypes import byref, c_int32, c_size_t, c_uint64, c_void_p
from typing import Any, Callable

import numpy as np
import torch

import kvstore
from kvstore._library import Tensor, loaded

_FLOAT32 = 2 | 32 << 8 | 1 << 16
_CPU = 1
# Seconds of a turn, in which a side is called over and over, and turns per side.
_TURN, _ROUNDS = 0.02, 41
# Floats of an array, keys of a call, arrays of a key on each side.
_CASES = [
    (floats, 1, devices) for devices in (1, 4) for floats in (1 << 10, 1 << 16, 1 << 20)
] + [(1 << 10, 1000, 4)]

Arrays = list[list[Any]]
Side = Callable[[], object]


def tensors_of(arrays: Arrays, kept: list[Any]) -> Any:
    """The arrays as kv_tensors, whose memory `kept` keeps."""
    flat = [array for of_key in arrays for array in of_key]
    tensors = (Tensor * len(flat))()
    for tensor, array in zip(tensors, flat):
        shape = (ctypes.c_int64 * 1)(array.size)
        kept.append((array, shape))
        tensor.data, tensor.shape = array.ctypes.data, ctypes.addressof(shape)
        tensor.device_type, tensor.ndim, tensor.dtype = _CPU, 1, _FLOAT32
    return tensors


def c_call(kv: kvstore.KVStore, keys: list[int], values: Arrays, outs: Arrays) -> Side:
    """The C function with arguments made before."""
    assert kv._handle is not None
    pairs = (c_void_p, c_void_p, c_size_t)
    function = loaded.kv_pushpull
    function.argtypes, function.restype = (c_void_p, *pairs, *pairs, c_int32, c_void_p), c_int32
    numbers = [key for key, of_key in zip(keys, values) for _ in of_key]
    kept: list[Any] = []
    parts = [(c_uint64 * len(numbers))(*numbers), tensors_of(values, kept), len(numbers)]
    parts += [parts[0], tensors_of(outs, kept), len(numbers)]
    pointers = [byref(part) if isinstance(part, ctypes.Array) else part for part in parts]
    arguments = (c_void_p(kv._handle.pointer), *pointers, 0, None)

    def call(kept: object = (kv, kept, parts)) -> None:
        status = function(*arguments)
        assert status == 0, status

    return call


def numpy_loop(values: Arrays, outs: Arrays) -> None:
    for of_key, to_fill in zip(values, outs):
        total = of_key[0]
        if len(of_key) > 1:
            total = np.add(total, of_key[1])
            for value in of_key[2:]:
                np.add(total, value, out=total)
        for out in to_fill:
            np.copyto(out, total)


def torch_loop(values: Arrays, outs: Arrays) -> None:
    for of_key, to_fill in zip(values, outs):
        total = of_key[0]
        if len(of_key) > 1:
            total = torch.add(total, of_key[1])
            for value in of_key[2:]:
                total.add_(value)
        for out in to_fill:
            out.copy_(total)


def sides_of(floats: int, count: int, devices: int) -> dict[str, Side]:
    """What is measured, by name; every side has arrays of its own."""
    keys = list(range(count))

    def arrays(value: float) -> Arrays:
        return [[np.full(floats, value, np.float32) for _ in range(devices)] for _ in keys]

    def tensors(value: float) -> Arrays:
        return [[torch.full((floats,), value) for _ in range(devices)] for _ in keys]

    def ours(values: Arrays, outs: Arrays) -> Side:
        kv = kvstore.create()
        kv.init(keys, [of_key[0] for of_key in values])
        if count == 1:
            return lambda: kv.pushpull(0, values[0], out=outs[0])
        return lambda: kv.pushpull(keys, values, out=outs)

    plain = kvstore.create()
    plain.init(keys, [of_key[0] for of_key in arrays(0)])
    v, o, t, u = arrays(1), arrays(0), tensors(1), tensors(0)
    return {
        "C call": c_call(plain, keys, arrays(1), arrays(0)),
        "kvstore, torch": ours(tensors(1), tensors(0)),
        "kvstore, numpy": ours(arrays(1), arrays(0)),
        "torch loop": lambda: torch_loop(t, u),
        "numpy loop": lambda: numpy_loop(v, o),
    }


def measure(sides: dict[str, Side], rounds: int, turn: float) -> dict[str, float]:
    """Microseconds of a call, by side."""
    counts = {}
    for name, side in sides.items():
        side()
        start = time.perf_counter()
        side()
        counts[name] = max(1, int(turn / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            count = counts[name]
            start = time.perf_counter()
            for _ in range(count):
                side()
            times[name].append(1e6 * (time.perf_counter() - start) / count)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only show that everything runs")
    quick = parser.parse_args().quick
    rounds, turn = (1, 0.0) if quick else (_ROUNDS, _TURN)
    versions = f"torch {torch.__version__}, numpy {np.__version__}"
    print(f"kvstore {kvstore.__version__}, {versions}; us per call, medians of {rounds}")
    first = True
    with torch.no_grad():
        for floats, count, devices in _CASES:
            times = measure(sides_of(floats, count, devices), rounds, turn)
            if first:
                print(f"{'case':24}" + "".join(f"{name:>16}" for name in times))
                first = False
            case = f"{count} x ({devices}+{devices}) of {floats // 1024}K"
            print(f"{case:24}" + "".join(f"{each:16.2f}" for each in times.values()))
            c = times["C call"]
            ratios = "".join(f"{each / c:16.2f}" for each in times.values())
            print(f"{'  beside the C call':24}{ratios}", flush=True)


if __name__ == "__main__":
    main()
