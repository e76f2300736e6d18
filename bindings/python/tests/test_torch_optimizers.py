"""The rules of the library against PyTorch's optimizers; runs where PyTorch is installed.

Where formulas differ, a case has the options that make them equal:

- epsilon is 0 for adam, which corrects its bias together with that of the moments, for adagrad and
  rmsprop, which have it below the root, PyTorch beside it, and for Adamax, as adamax has none.
- wd is 0 for nag, whose second part decays by the new value, and for adagrad and adadelta, which
  decay the value itself, where PyTorch adds to the gradient.
- adadelta has no learning rate, as in the paper: PyTorch's is 1.

PyTorch has no groupadagrad, ftrl, ftml, signum, lamb, lars, dcasgd and lion.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

STEPS = 20
RATE = {"learning_rate": 0.1}
LR = {"lr": 0.1}
DECAY = {"learning_rate": 0.1, "wd": 0.02}
LR_DECAY = {"lr": 0.1, "weight_decay": 0.02}
BETAS = {"beta1": 0.8, "beta2": 0.95}
CASES = {
    "sgd": (DECAY, "SGD", LR_DECAY),
    "momentum": ({**DECAY, "momentum": 0.8}, "SGD", {**LR_DECAY, "momentum": 0.8}),
    "nag": ({**RATE, "momentum": 0.8}, "SGD", {**LR, "momentum": 0.8, "nesterov": True}),
    "adam": (
        {**DECAY, **BETAS, "epsilon": 0},
        "Adam",
        {**LR_DECAY, "betas": (0.8, 0.95), "eps": 0},
    ),
    "adamw": (
        {**DECAY, **BETAS, "epsilon": 0.01},
        "AdamW",
        {**LR_DECAY, "betas": (0.8, 0.95), "eps": 0.01},
    ),
    "adamax": ({**DECAY, **BETAS}, "Adamax", {**LR_DECAY, "betas": (0.8, 0.95), "eps": 0}),
    "nadam": (
        {**DECAY, **BETAS, "epsilon": 0.01, "schedule_decay": 0.02},
        "NAdam",
        {**LR_DECAY, "betas": (0.8, 0.95), "eps": 0.01, "momentum_decay": 0.02},
    ),
    "adagrad": ({**RATE, "eps": 0}, "Adagrad", {**LR, "eps": 0}),
    "rmsprop": (
        {**DECAY, "gamma1": 0.8, "epsilon": 0},
        "RMSprop",
        {**LR_DECAY, "alpha": 0.8, "eps": 0},
    ),
    "rmsprop centered": (
        {**DECAY, "gamma1": 0.8, "gamma2": 0.7, "epsilon": 0, "centered": True},
        "RMSprop",
        {**LR_DECAY, "alpha": 0.8, "eps": 0, "momentum": 0.7, "centered": True},
    ),
    "adadelta": ({"rho": 0.8, "epsilon": 0.01}, "Adadelta", {"lr": 1, "rho": 0.8, "eps": 0.01}),
}


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    """Also PyTorch's default, the dtype in which its optimizers keep counts and products."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, request.param))
    yield torch.get_default_dtype()
    torch.set_default_dtype(before)


def start(kv, dtype, rule, options, theirs, theirs_options):
    """A value under the key "w", and PyTorch's copy of it with its optimizer."""
    random = torch.Generator().manual_seed(7)
    value = torch.randn(20, 10, generator=random, dtype=dtype)
    kv.init("w", value)
    kv.set_optimizer(rule, **options)
    return random, value, getattr(torch.optim, theirs)([value], **theirs_options)


def agrees(kv, value, dtype):
    mine = torch.empty_like(value)
    kv.pull("w", out=mine)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
    return torch.allclose(mine, value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES)
def test_rules_do_what_pytorch_does(kv, dtype, case):
    rule = case.split()[0]
    random, value, optimizer = start(kv, dtype, rule, *CASES[case])
    for _ in range(STEPS):
        value.grad = torch.randn(20, 10, generator=random, dtype=dtype)
        kv.push("w", value.grad)
        optimizer.step()
        assert agrees(kv, value, dtype)


@pytest.mark.parametrize(
    ("schedule", "theirs", "theirs_options"),
    [
        ({"lr_scheduler": "factor", "step": 3}, "StepLR", {"step_size": 3}),
        ({"lr_scheduler": "multifactor", "steps": "[4,9]"}, "MultiStepLR", {"milestones": [4, 9]}),
    ],
    ids=["factor", "multifactor"],
)
def test_schedules_do_what_pytorch_does(kv, dtype, schedule, theirs, theirs_options):
    """The others count from 1, PyTorch's from 0."""
    random, value, optimizer = start(
        kv, dtype, "sgd", {**RATE, **schedule, "factor": 0.5}, "SGD", LR
    )
    scheduler = getattr(torch.optim.lr_scheduler, theirs)(optimizer, gamma=0.5, **theirs_options)
    for _ in range(STEPS):
        value.grad = torch.randn(20, 10, generator=random, dtype=dtype)
        kv.push("w", value.grad)
        optimizer.step()
        scheduler.step()
        assert agrees(kv, value, dtype)


@pytest.mark.parametrize(
    ("rule", "options", "theirs", "theirs_options"),
    [
        ("sgd", RATE, "SGD", LR),
        # Dense, 0 / 0 would be added to the other rows.
        ("adagrad", {**RATE, "eps": 0, "lazy_update": True}, "Adagrad", {**LR, "eps": 0}),
        # Has its epsilon where adam has it, unlike PyTorch's Adam.
        (
            "adam",
            {**RATE, **BETAS, "epsilon": 0.01, "lazy_update": True},
            "SparseAdam",
            {**LR, "betas": (0.8, 0.95), "eps": 0.01},
        ),
    ],
    ids=["sgd", "adagrad", "adam"],
)
def test_rows_do_what_pytorch_does_with_sparse_gradients(
    kv, dtype, rule, options, theirs, theirs_options
):
    random, value, optimizer = start(kv, dtype, rule, options, theirs, theirs_options)
    before = value.clone()
    seen = np.zeros(20, bool)
    for _ in range(STEPS):
        ids = torch.randint(0, 15, (6,), generator=random)
        rows = torch.randn(6, 10, generator=random, dtype=dtype)
        seen[ids] = True
        kv.push_rows("w", ids, rows)
        with torch.sparse.check_sparse_tensor_invariants():
            value.grad = torch.sparse_coo_tensor(ids[None], rows, (20, 10))
            optimizer.step()
        assert agrees(kv, value, dtype)
    assert torch.equal(value[~seen], before[~seen])
    assert 0 < seen.sum() < 20
