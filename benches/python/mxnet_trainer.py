"""Measures steps of Gluon's Trainer with MXNet's stores, and with those of kvstore.mxnet.

Usage: python mxnet_trainer.py [--quick]

The model has four contexts of one machine. A step is `trainer.step` with momentum, until all weights can
be read; series alternate. After them the weights must be equal to four digits. `make bench-mxnet` runs
it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Union

import mxnet as mx
import numpy as np
from mxnet import gluon

import kvstore.mxnet  # noqa: F401

# Shapes of the parameters, and steps of a series.
MODELS: dict[str, tuple[list[tuple[int, ...]], int]] = {
    "the script's: 4 arrays, 4,810 floats": ([(64, 64), (64,), (10, 64), (10,)], 200),
    "200 arrays of 64 floats": ([(64,)] * 200, 30),
    "12 arrays of 1M floats": ([(1 << 20,)] * 12, 6),
}
OPTIONS = {"learning_rate": 0.01, "momentum": 0.9}


class Side:
    """A model and its trainer. The first context has a place among those of all ranks."""

    def __init__(
        self,
        store: Union[str, Any],
        shapes: list[tuple[int, ...]],
        contexts: list[Any],
        first: int = 0,
    ) -> None:
        self.parameters = []
        self.first = first
        for index, shape in enumerate(shapes):
            parameter = gluon.Parameter(f"p{index}", shape=shape)
            parameter.initialize(mx.init.Constant(0.25), ctx=contexts)
            self.parameters.append(parameter)
        self.trainer = gluon.Trainer(self.parameters, "sgd", dict(OPTIONS), kvstore=store)
        self.step()

    def step(self) -> float:
        """Seconds of a step, behind new gradients: MXNet's dist_sync leaves weights in them."""
        for index, parameter in enumerate(self.parameters):
            for place, gradient in enumerate(parameter.list_grad(), self.first):
                gradient[:] = 0.001 * (1 + index % 7) * (1 + place)
        mx.nd.waitall()
        start = time.perf_counter()
        self.trainer.step(1, ignore_stale_grad=True)
        mx.nd.waitall()
        return time.perf_counter() - start

    def series(self, steps: int) -> float:
        """Milliseconds of a step."""
        return 1000 * sum(self.step() for _ in range(steps)) / steps

    def weights(self) -> Any:
        """The last number of each array on each context."""
        each = [data for parameter in self.parameters for data in parameter.list_data()]
        return np.array([data.asnumpy().flat[-1] for data in each])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    contexts = [mx.cpu(index) for index in range(4)]
    names = ["device", "local", "kvstore"]
    print(f"ms a step: {', '.join(names)}; theirs / ours")
    for title, (shapes, steps) in MODELS.items():
        sides = [Side(name, shapes, contexts) for name in names]
        times: list[list[float]] = [[] for _ in names]
        for _ in range(1 if quick else 7):
            for side, ms in zip(sides, times):
                ms.append(side.series(2 if quick else steps))
        found = [side.weights() for side in sides]
        for other in found[:-1]:
            np.testing.assert_allclose(other, found[-1], rtol=1e-4)
        medians = [statistics.median(ms) for ms in times]
        ratios = " ".join(f"{each / medians[-1]:.2f}" for each in medians[:-1])
        print(f"| {title} | {' | '.join(f'{ms:.3g}' for ms in medians)} | {ratios}", flush=True)


if __name__ == "__main__":
    main()
