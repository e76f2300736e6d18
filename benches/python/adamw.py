"""Measures a step of AdamW over one large tensor, beside PyTorch's fused one and DeepSpeed's.

bf16: gradients and weights are bfloat16, master and moments float32. PyTorch's optimizer works on
the master, so a step converts the gradient before and the weights after, as training in mixed
precision does. f32: all are float32. All sides alternate in one process and make the same steps; the
weights are compared before anything is timed. Rates are in billions of parameters a second; the
limit is the rate at which the better of a copy and a triad of PyTorch moves a step's bytes.
`make bench-python` runs it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Callable

import torch

import kvstore

_RATE, _DECAY = 1e-3, 0.01
_ROUNDS = 11
# Bytes of a step for each parameter: the gradient is read, stored weight and out are written, and
# master and moments are read and written. With float32 the stored weight is the master.
_BYTES = {"bf16": 2 + 2 + 2 + 8 + 8 + 8, "f32": 4 + 4 + 8 + 8 + 8}

Step = Callable[[], object]
# A step, and the weights after it.
Side = tuple[Step, torch.Tensor]


def ours(kind: str, weights: torch.Tensor, gradient: torch.Tensor, threads: int) -> Side:
    """The store's adamw."""
    kv = kvstore.create("local", threads=threads)
    kv.set_optimizer("adamw", learning_rate=_RATE, wd=_DECAY, multi_precision=kind == "bf16")
    kv.init(0, weights)
    out = torch.zeros_like(weights)
    return lambda: kv.pushpull(0, gradient, out=out), out


def on_master(
    make: Callable[[torch.Tensor], torch.optim.Optimizer],
    weights: torch.Tensor,
    gradient: torch.Tensor,
) -> Side:
    """An optimizer over a float32 master, with the conversions that it needs."""
    master = torch.nn.Parameter(weights.to(torch.float32, copy=True))
    optimizer = make(master)
    if weights.dtype == torch.float32:
        master.grad = gradient.clone()
        return optimizer.step, master.detach()
    master.grad = torch.zeros_like(master)
    out = torch.zeros_like(weights)

    def step() -> None:
        assert master.grad is not None
        master.grad.copy_(gradient)
        optimizer.step()
        out.copy_(master.detach())

    return step, out


def fused(master: torch.Tensor) -> torch.optim.Optimizer:
    """PyTorch's."""
    return torch.optim.AdamW([master], lr=_RATE, weight_decay=_DECAY, fused=True)


def deepspeed_of(master: torch.Tensor) -> torch.optim.Optimizer:
    """DeepSpeed's, which compiles its kernel at first use."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    made: torch.optim.Optimizer = DeepSpeedCPUAdam(
        [master], lr=_RATE, weight_decay=_DECAY, adamw_mode=True
    )
    return made


def sides_of(kind: str, count: int, threads: int) -> dict[str, Side]:
    """What is measured, by name; every side has weights and a gradient of its own."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(count, generator=generator).to(dtype)
    gradient = torch.randn(count, generator=generator).to(dtype)
    sides = {
        "kvstore": ours(kind, weights, gradient, threads),
        "torch fused": on_master(fused, weights, gradient.clone()),
    }
    try:
        sides["DeepSpeed"] = on_master(deepspeed_of, weights, gradient.clone())
    except Exception as error:  # noqa: BLE001 - it may fail in many ways, and is only a peer
        print(f"DeepSpeedCPUAdam left out: {str(error).splitlines()[-1]}")
    return sides


def compare(kind: str, sides: dict[str, Side]) -> None:
    """Makes two steps on each side; their weights may differ by rounding."""
    tolerance = 2e-2 if kind == "bf16" else 1e-5
    for step, _ in sides.values():
        step()
        step()
    expected = sides["torch fused"][1].float()
    for name, (_, weights) in sides.items():
        if not torch.allclose(weights.float(), expected, rtol=tolerance, atol=tolerance):
            worst = (weights.float() - expected).abs().max().item()
            raise SystemExit(f"{kind}: {name} differs from torch by {worst}")


def limits_of(count: int) -> dict[str, tuple[Step, int]]:
    """Ways to move memory, and the bytes that each moves for an element."""
    a, b, c = (torch.zeros(count) for _ in range(3))
    return {
        "copy": (lambda: a.copy_(b), 8),
        "triad": (lambda: torch.add(b, c, alpha=3, out=a), 12),
    }


def measure(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    """Seconds of a step, by side."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    """Measures both kinds and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only show that everything runs")
    parser.add_argument("--parameters", type=int, default=1 << 25, help="of the tensor")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    count, rounds = (1 << 16, 1) if options.quick else (options.parameters, _ROUNDS)
    torch.set_num_threads(options.threads)
    print(f"\nAdamW, {count} parameters, {options.threads} threads, torch {torch.__version__}")
    print(f"{'':6}{'side':>14}{'G params/s':>12}{'of the limit':>14}{'beside torch':>14}")
    for kind, moved in _BYTES.items():
        with torch.no_grad():
            sides = sides_of(kind, count, options.threads)
            compare(kind, sides)
            limits = limits_of(count)
            steps = {name: step for name, (step, _) in sides.items()}
            times = measure({**steps, **{name: it[0] for name, it in limits.items()}}, rounds)
        limit = max(of / times[name] for name, (_, of) in limits.items()) / moved
        for name in sides:
            rate, peer = 1 / times[name], times["torch fused"] / times[name]
            print(f"{kind:6}{name:>14}{count * rate / 1e9:12.3f}{rate / limit:14.2f}{peer:14.2f}")


if __name__ == "__main__":
    main()
