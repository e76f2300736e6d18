"""Models, data and comparisons that cases share."""

import copy

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import kvstore.torch as kt


def needs_pytorch(*version):
    """Skips a case of what older releases of PyTorch do not have."""
    here = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if here < version:
        pytest.skip(f"PyTorch {torch.__version__} has no such thing")


def small_model(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        # Above the bytes of gradients that travel together.
        torch.nn.Linear(16 * 6 * 6, 10),
    )


def batch(step, rank=None, seed=0, size=8):
    """Other inputs and labels in each step, on each rank."""
    rank = kt.rank() if rank is None else rank
    random = torch.Generator().manual_seed(seed + 1000 * step + rank)
    inputs = torch.randn(size, 1, 8, 8, generator=random)
    return inputs, torch.randint(0, 10, (size,), generator=random)


def loss_of(model, step, **options):
    inputs, labels = batch(step, **options)
    return torch.nn.functional.cross_entropy(model(inputs), labels)


def sgd(model, **options):
    return torch.optim.SGD(
        model.parameters(), **{"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, **options}
    )


def with_ddp(model, make=sgd, **options):
    """A copy of a model under DistributedDataParallel, and its optimizer."""
    theirs = DistributedDataParallel(copy.deepcopy(model), broadcast_buffers=False, **options)
    return theirs, make(theirs.module)


def with_kvstore(model, make=sgd, **options):
    """A copy of a model, and its optimizer, distributed by the store."""
    mine = copy.deepcopy(model)
    return mine, kt.DistributedOptimizer(make(mine), mine, **options)


def same(one, other):
    """Equal to the last digit with two ranks; more are added up in another order."""
    if isinstance(one, torch.Tensor):
        one, other = one.detach(), other.detach()
        return torch.equal(one, other) if kt.size() <= 2 else torch.allclose(one, other, 1e-4, 1e-6)
    return one == other if kt.size() <= 2 else abs(one - other) <= 1e-4 * abs(other)


def same_weights(mine, theirs):
    pairs = zip(mine.parameters(), getattr(theirs, "module", theirs).parameters())
    return all(same(one, other) for one, other in pairs)


def equal_on_all_ranks(model):
    """Bit for bit."""
    states = kt.allgather_object(dict(model.state_dict()))
    first, *others = [list(state.values()) for state in states]
    return all(torch.equal(*pair) for other in others for pair in zip(first, other))
