"""Clipping by the norm of a round on the servers, beside PyTorch's on the sum of all gradients."""

import copy
import math

import torch
from models import loss_of

import kvstore.torch as kt

STEPS = 10
MAX_NORM = 0.5


def plain_model():
    """Without a bias before a BatchNorm: its gradient is rounding, which Adam scales up."""
    torch.manual_seed(2)
    layers = torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


def gradients(model, step, rank):
    loss = loss_of(model, step, rank=rank)
    return torch.autograd.grad(loss, list(model.parameters()))


def mean_gradients(model, step):
    """Of the batches of all ranks."""
    of_ranks = [gradients(model, step, rank) for rank in range(kt.size())]
    return [sum(parts) / kt.size() for parts in zip(*of_ranks)]


def equals_torch(rule, make, **params):
    """A rule on the servers, with clipping, gives what clip_grad_norm_ and a step give."""
    store, model = kt.store(), plain_model()
    theirs = copy.deepcopy(model)
    optimizer = make(theirs.parameters())
    names = [f"{rule}.{name}" for name, _ in model.named_parameters()]
    weights = [weight.detach() for weight in model.parameters()]
    store.init(names, weights)
    store.set_optimizer_for(names, rule, rescale_grad=1 / kt.size(), **params)
    store.set_clipping(MAX_NORM)
    clipped = 0
    for step in range(STEPS):
        store.pushpull(names, list(gradients(model, step, kt.rank())), out=weights)
        for weight, gradient in zip(theirs.parameters(), mean_gradients(theirs, step)):
            weight.grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), MAX_NORM)
        optimizer.step()
        clipped += bool(norm > MAX_NORM)
        assert math.isclose(store.last_norm().norm, norm, rel_tol=1e-5)
        for mine, other in zip(weights, theirs.parameters()):
            torch.testing.assert_close(mine, other.detach(), rtol=1e-6, atol=1e-6)
    assert store.last_norm().skips == 0
    assert clipped > 0, "no gradient was clipped"


def case_sgd_with_clipping_in_a_job_equals_pytorch():
    def make(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    equals_torch("sgd", make, learning_rate=0.1, momentum=0.9)


def case_adamw_with_clipping_in_a_job_equals_pytorch():
    def make(parameters):
        return torch.optim.AdamW(parameters, lr=1e-3)

    equals_torch("adamw", make, learning_rate=1e-3)


def case_a_norm_that_is_not_finite_skips_the_step_on_all_ranks():
    store, value = kt.store(), torch.zeros(4)
    store.init("skipped", value)
    store.set_optimizer_for("skipped", "sgd", learning_rate=1.0)
    store.set_clipping(1.0)
    before = store.last_norm().skips
    bad = torch.full((4,), math.nan if kt.rank() == kt.size() - 1 else 1.0)
    store.pushpull("skipped", bad, out=value)
    assert torch.equal(value, torch.zeros(4))
    assert store.last_norm().skips == before + 1
    # Of sqrt(4) times the ranks.
    store.pushpull("skipped", torch.ones(4), out=value)
    scale = kt.size() / (2.0 * kt.size() + 1e-6)
    torch.testing.assert_close(value, torch.full((4,), -scale), rtol=1e-6, atol=0.0)
