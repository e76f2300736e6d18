"""Measures a training step whose time is its communication: DistributedDataParallel and kvstore.torch.

Usage: torchrun --nproc-per-node 2 torch_ddp.py [--quick] [--resnet]

The model is a set of parameters whose loss is their sum, so a backward pass only writes gradients:
the 62 tensors of ResNet-18 (46.8 MB), and 200 tensors of 64 floats. With --resnet it is ResNet-18
itself on 64x64 images, 4 in each rank's batch. Sides alternate: a series is some steps of each, and
a time is the median over the series' medians, of the slowest rank. After the first steps all sides
must have the same weights. `make bench-torch` runs it with 2 and 4 processes.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import Any, Callable

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kvstore.torch as kt

Side = tuple[nn.Module, torch.optim.Optimizer]


class Sum(nn.Module):
    """Parameters of some shapes; its output is their sum, weighted by the rank's input."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.each = nn.ParameterList([torch.full(shape, 0.5) for shape in shapes])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Only the gradients cost time: each is the input in all elements."""
        return inputs * torch.stack([each.sum() for each in self.each]).sum()


class Block(nn.Module):
    """A residual block of ResNet-18."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = nn.Sequential()
        if stride != 1 or before != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """As torchvision's."""
        hidden = torch.relu(self.bn1(self.conv1(inputs)))
        return torch.relu(self.bn2(self.conv2(hidden)) + self.downsample(inputs))


def resnet18() -> nn.Sequential:
    """The layers of torchvision's resnet18."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    blocks, before = [], 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(before, width, stride), Block(width, width, 1)]
        before = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *blocks, *head)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def gloo(model: nn.Module) -> Side:
    return DistributedDataParallel(model, broadcast_buffers=False), optimizer_of(model)


def hook(model: nn.Module) -> Side:
    wrapped = DistributedDataParallel(model, broadcast_buffers=False)
    wrapped.register_comm_hook(None, kt.ddp_hook())
    return wrapped, optimizer_of(model)


def listed(model: nn.Module) -> Side:
    return model, kt.DistributedOptimizer(optimizer_of(model), model)


def overlapped(model: nn.Module) -> Side:
    return model, kt.DistributedOptimizer(optimizer_of(model), model, overlap=True)


SIDES: dict[str, Callable[[nn.Module], Side]] = {
    "DDP, gloo": gloo,
    "DDP, ddp_hook": hook,
    "DistributedOptimizer": listed,
    "DistributedOptimizer, overlap": overlapped,
}


def step(side: Side, batch: Callable[[nn.Module], torch.Tensor]) -> float:
    """Seconds of one step."""
    model, optimizer = side
    begin = time.perf_counter()
    optimizer.zero_grad()
    batch(model).backward()
    optimizer.step()
    return time.perf_counter() - begin


def compare(
    title: str,
    make: Callable[[], nn.Module],
    batch: Callable[[nn.Module], torch.Tensor],
    series: int,
    steps: int,
) -> None:
    sides = {}
    for name, wrap in SIDES.items():
        torch.manual_seed(0)
        sides[name] = wrap(make())
    for side in sides.values():
        for _ in range(3):
            step(side, batch)
    check(sides)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(series):
        for name, side in sides.items():
            torch.distributed.barrier()
            seconds = [step(side, batch) for _ in range(steps)]
            slowest = torch.tensor(statistics.median(seconds))
            torch.distributed.all_reduce(slowest, torch.distributed.ReduceOp.MAX)
            times[name].append(slowest.item())
    if kt.rank() == 0:
        base = statistics.median(times["DDP, gloo"])
        print(
            f"\n{title}, {kt.size()} processes: ms a step, series, time of DDP with gloo / its time"
        )
        for name, each in times.items():
            middle = statistics.median(each)
            listed_ms = " ".join(f"{1e3 * one:.1f}" for one in each)
            print(
                f"| {name} | {1e3 * middle:.1f} | {listed_ms} | {base / middle:.2f} |", flush=True
            )


def check(sides: dict[str, Side]) -> None:
    """All sides have made the same steps."""
    first, *others = [list(model.parameters()) for model, _ in sides.values()]
    for other in others:
        for one, two in zip(first, other):
            same = torch.equal(one, two) if kt.size() == 2 else torch.allclose(one, two, 1e-3, 1e-5)
            if not same:
                raise SystemExit("the sides have different weights")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resnet", action="store_true")
    arguments = parser.parse_args()
    # The newest PyTorch has another name for broadcast_buffers.
    warnings.simplefilter("ignore", FutureWarning)
    torch.distributed.init_process_group("gloo")
    kt.init()
    series, steps = (1, 3) if arguments.quick else (5, 15)
    weight = torch.tensor(1.0 + kt.rank())
    shapes = [tuple(each.shape) for each in resnet18().parameters()]
    one: Any = lambda model: model(weight)  # noqa: E731
    if arguments.resnet:
        images, labels = torch.randn(4, 3, 64, 64), torch.arange(4) + kt.rank()
        compare(
            "ResNet-18, 4 images a rank",
            resnet18,
            lambda model: nn.functional.cross_entropy(model(images), labels),
            series,
            min(steps, 8),
        )
    compare("62 tensors of ResNet-18", lambda: Sum(shapes), one, series, steps)
    compare("200 tensors of 64 floats", lambda: Sum([(64,)] * 200), one, series, 2 * steps)
    kt.shutdown(60)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
