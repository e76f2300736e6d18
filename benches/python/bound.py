"""Measures bound lists from Python beside the list calls and beside a loop in C.

The loop makes the copies of each call, over arrays of its own, without keys, locks and checks. All
sides alternate in one process; a time is the median of its rounds, in ns a key. `make bench-python`
runs it.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch

import kvstore

_KEYS, _FLOATS = 1000, 64
# Seconds of a turn, and turns per side.
_TURN, _ROUNDS = 0.02, 21
_LOOP = """
#include <string.h>
void loop(char **stored, char **values, char **outs, int keys, int bytes) {
  for (int i = 0; i < keys; i++) {
    if (values) memcpy(stored[i], values[i], bytes);
    if (outs) memcpy(outs[i], stored[i], bytes);
  }
}
"""
_CALLS = {"push": (True, False), "pull": (False, True), "pushpull": (True, True)}

Side = Callable[[], object]


def compiled_loop() -> Any:
    """The loop, in C."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "loop.c", Path(folder) / "loop.so"
        source.write_text(_LOOP)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        return ctypes.CDLL(str(library)).loop


def plain_loop(loop: Any, pushes: bool, pulls: bool) -> Side:
    """The copies of a call."""

    def arrays() -> tuple[Any, Any]:
        own = [np.zeros(_FLOATS, np.float32) for _ in range(_KEYS)]
        return (ctypes.c_void_p * _KEYS)(*(each.ctypes.data for each in own)), own

    (stored, *kept), (values, *more), (outs, *rest) = arrays(), arrays(), arrays()
    kept += more + rest
    arguments = (stored, values if pushes else None, outs if pulls else None, _KEYS, 4 * _FLOATS)

    def side(kept: object = kept) -> None:
        loop(*arguments)

    return side


def sides_of(call: str, loop: Any, make: Callable[[float], Any]) -> dict[str, Side]:
    """The list call, the bound list and the loop."""
    kv = kvstore.create("local", threads=1)
    keys = list(range(_KEYS))
    values, outs = [make(key) for key in keys], [make(0) for _ in keys]
    kv.init(keys, values)
    pushes, pulls = _CALLS[call]
    lists = (keys, *([values] if pushes else []), *([outs] if pulls else []))
    bound = kv.bind(keys, values, outs)
    method = getattr(kv, call)
    return {
        "list": lambda: method(*lists),
        "bound": getattr(bound, call),
        "loop": plain_loop(loop, pushes, pulls),
    }


def measure(sides: dict[str, Side], rounds: int, turn: float) -> dict[str, float]:
    """Nanoseconds a key, by side."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            side()
            calls, start = 0, time.perf_counter()
            while time.perf_counter() - start < turn:
                side()
                calls += 1
            times[name].append((time.perf_counter() - start) / calls / _KEYS * 1e9)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    """Measures all calls with arrays of numpy and PyTorch, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only show that everything runs")
    options = parser.parse_args()
    rounds, turn = (1, _TURN / 20) if options.quick else (_ROUNDS, _TURN)
    loop = compiled_loop()
    makes: dict[str, Callable[[float], Any]] = {
        "numpy": lambda number: np.full(_FLOATS, number, np.float32),
        "torch": lambda number: torch.full((_FLOATS,), float(number)),
    }
    print(f"\nBound lists of {_KEYS} keys of {_FLOATS} floats, ns a key, torch {torch.__version__}")
    print(f"{'arrays':8}{'call':>10}{'list':>10}{'bound':>10}{'loop':>10}{'bound beyond':>14}")
    for name, make in makes.items():
        for call in _CALLS:
            times = measure(sides_of(call, loop, make), rounds, turn)
            row = "".join(f"{times[side]:10.1f}" for side in ("list", "bound", "loop"))
            print(f"{name:8}{call:>10}{row}{times['bound'] - times['loop']:14.1f}")


if __name__ == "__main__":
    main()
