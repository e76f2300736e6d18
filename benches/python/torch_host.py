"""Measures training loops with `kvstore.torch.HostOptimizer` beside their parts, and PyTorch's own loop.

A pass is forward and backward of a stack of linear layers with bfloat16 or float32 parameters, on one
thread of PyTorch. Where another processor is free, a loop that steps during backward (`overlap`) takes
the time of forward and of the slower of backward and step, and one that steps beside the next pass
(`late`) that of the slower of pass and step: its bound. The bound of other loops is the sum. All
sides alternate in one process; the batch is such that a pass takes about as long as a step, or longer.
With a norm that no gradient reaches gradients are measured, and a step of `overlap` begins before the norm
of all is known, in a transaction.
`make bench-python` runs it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable

import torch

import kvstore.torch as kt

_RATE, _DECAY = 1e-3, 0.01
_DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}

Turn = Callable[[], object]


class Loop:
    """A model of its own, and an optimizer for it."""

    def __init__(self, dtype: torch.dtype, width: int, depth: int, rows: int) -> None:
        torch.manual_seed(1)
        layers = [torch.nn.Linear(width, width, bias=False) for _ in range(depth)]
        for each in layers:
            # Activations keep their size: tiny gradients have squares that are subnormal, and slow.
            torch.nn.init.normal_(each.weight, std=width**-0.5)
        self.model = torch.nn.Sequential(*layers).to(dtype)
        self.batch = torch.randn(rows, width).to(dtype)

    def clear(self) -> None:
        """As zero_grad() of an optimizer."""
        for each in self.model.parameters():
            each.grad = None

    def forward(self) -> torch.Tensor:
        """Gives the loss, whose gradients are of a size that no dtype loses."""
        self.clear()
        loss: torch.Tensor = self.model(self.batch).square().sum()
        return loss

    def run(self) -> None:
        """Forward and backward."""
        self.forward().backward()


class FusedOnMasters:
    """PyTorch's fused AdamW on float32 masters, with the conversions that it needs."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._masters = [
            torch.nn.Parameter(each.detach().to(torch.float32, copy=True))
            for each in self._parameters
        ]
        self._optimizer = torch.optim.AdamW(
            self._masters, lr=_RATE, weight_decay=_DECAY, fused=True
        )

    @torch.no_grad()
    def step(self) -> None:
        """One step of all parameters."""
        for master, each in zip(self._masters, self._parameters):
            assert each.grad is not None
            master.grad = each.grad.float()
        self._optimizer.step()
        for master, each in zip(self._masters, self._parameters):
            each.copy_(master)


def turns_of(
    kind: str, width: int, depth: int, rows: int, threads: int
) -> dict[str, Turn]:
    """What is measured, by name."""

    def loop() -> Loop:
        return Loop(_DTYPES[kind], width, depth, rows)

    def host(of: Loop, **options: Any) -> kt.HostOptimizer:
        return kt.HostOptimizer(
            "adamw", of.model, lr=_RATE, wd=_DECAY, threads=threads, **options
        )

    def trained(of: Loop, step: Turn) -> Turn:
        def turn() -> None:
            of.run()
            step()

        return turn

    alone, stepped, plain, overlapped, delayed, fused = (loop() for _ in range(6))
    clipped, tried = loop(), loop()
    stepped.run()
    late = host(delayed, late=True)
    turns: dict[str, Turn] = {
        "forward": alone.forward,
        "pass": alone.run,
        "step": host(stepped).step,
        "loop": trained(plain, host(plain).step),
        "overlap": trained(overlapped, host(overlapped, overlap=True).step),
        "late": trained(delayed, late.step),
        # With a norm that no gradient reaches: measured, and the step begins before it is known.
        "loop, norm": trained(clipped, host(clipped, max_norm=1e30).step),
        "overlap, norm": trained(
            tried, host(tried, overlap=True, max_norm=1e30).step
        ),
        "torch fused": trained(fused, FusedOnMasters(fused.model).step),
    }
    return turns, late.wait_for_weights


def measure(turns: dict[str, Turn], rounds: int, repeats: int) -> dict[str, float]:
    """Seconds of a turn, by name: medians, each of some turns in sequence."""
    times: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, turn in turns.items():
            turn()
            start = time.perf_counter()
            for _ in range(repeats):
                turn()
            times[name].append((time.perf_counter() - start) / repeats)
    return {name: statistics.median(each) for name, each in times.items()}


def rows_for(kind: str, width: int, depth: int, threads: int) -> int:
    """The batch whose pass takes about as long as a step."""
    rows = 8
    for _ in range(6):
        turns, _ = turns_of(kind, width, depth, rows, threads)
        times = measure({name: turns[name] for name in ("pass", "step")}, 1, 2)
        if times["pass"] >= times["step"]:
            break
        rows = max(rows + 8, int(rows * min(4.0, times["step"] / times["pass"])))
    return rows


def main() -> None:
    """Measures both kinds and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="only show that everything runs"
    )
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="of the optimizer")
    parser.add_argument(
        "--rows", type=int, help="of a batch; else those of a pass that takes a step's time"
    )
    options = parser.parse_args()
    width, depth, rounds, repeats = options.width, options.depth, 7, 4
    if options.quick:
        width, depth, rounds, repeats = 64, 2, 1, 1
    torch.set_num_threads(1)
    print(
        f"\nHostOptimizer, adamw, {depth} layers of {width} x {width}, one thread of PyTorch and "
        f"{options.threads} of the optimizer, torch {torch.__version__}"
    )
    print(
        f"{'':6}{'rows':>6}{'side':>14}{'ms':>10}{'of its bound':>14}{'of the sum':>12}"
    )
    for kind in _DTYPES:
        rows = options.rows or rows_for(kind, width, depth, options.threads)
        turns, wait_for_last = turns_of(kind, width, depth, rows, options.threads)
        times = measure(turns, rounds, repeats)
        wait_for_last()
        forward, whole, step = times["forward"], times["pass"], times["step"]
        bounds = {
            "overlap": forward + max(whole - forward, step),
            "overlap, norm": forward + max(whole - forward, step),
            "late": max(whole, step),
        }
        for name, each in times.items():
            both = whole + step
            own = each / bounds.get(name, both)
            print(
                f"{kind:6}{rows:6}{name:>14}{1000 * each:10.2f}{own:14.2f}{each / both:12.2f}"
            )


if __name__ == "__main__":
    main()
