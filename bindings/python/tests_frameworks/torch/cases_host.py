"""HostOptimizer beside PyTorch's optimizers."""

import copy
import os
import tempfile

import pytest
import torch
from models import batch, equal_on_all_ranks, loss_of

import kvstore
import kvstore.torch as kt

ADAMW = {"lr": 0.01, "weight_decay": 0.02}
STEPS = 20


def new_model(dtype=torch.float32):
    torch.manual_seed(1)
    layers = [torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10)]
    return torch.nn.Sequential(*layers).to(dtype)


def train(model, optimizer, steps=STEPS, passes=1):
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            inputs, labels = batch(10 * step + part, rank=0)
            hidden = model(inputs.to(next(model.parameters()).dtype))
            torch.nn.functional.cross_entropy(hidden.float(), labels).backward()
        optimizer.step()
    return model


def case_steps_are_those_of_pytorch():
    expected = new_model()
    train(expected, torch.optim.AdamW(expected.parameters(), **ADAMW))
    for overlap in (False, True):
        mine = new_model()
        train(mine, kt.HostOptimizer("adamw", mine, overlap=overlap, **ADAMW))
        for one, other in zip(mine.parameters(), expected.parameters()):
            assert torch.allclose(one, other, 1e-4, 1e-6)


def case_bits_are_those_without_overlap_and_of_one_thread():
    for dtype in (torch.float32, torch.bfloat16):
        models = []
        for options in ({}, {"overlap": True}, {"threads": 1}):
            model = new_model(dtype)
            models.append(train(model, kt.HostOptimizer("adamw", model, **options, **ADAMW)))
        first, *others = [list(model.parameters()) for model in models]
        for other in others:
            assert all(torch.equal(one, two) for one, two in zip(first, other))


def case_bfloat16_has_a_master_in_float32():
    """As PyTorch's optimizer over float32 copies of parameters and gradients."""
    mine, expected = new_model(torch.bfloat16), new_model(torch.bfloat16)
    masters = [each.detach().float().requires_grad_() for each in expected.parameters()]
    theirs = torch.optim.AdamW(masters, **ADAMW)
    optimizer = kt.HostOptimizer("adamw", mine, **ADAMW)
    for step in range(STEPS):
        inputs, labels = batch(step, rank=0)
        for model in (mine, expected):
            model.zero_grad()
            hidden = model(inputs.bfloat16()).float()
            torch.nn.functional.cross_entropy(hidden, labels).backward()
        optimizer.step()
        for master, each in zip(masters, expected.parameters()):
            master.grad = each.grad.float()
        theirs.step()
        with torch.no_grad():
            for master, each in zip(masters, expected.parameters()):
                each.copy_(master)
    for one, other in zip(mine.parameters(), expected.parameters()):
        assert torch.allclose(one.float(), other.float(), 1e-2, 1e-4)


def case_accumulation_in_backward():
    models = []
    for overlap in (False, True):
        model = new_model()
        options = {"overlap": overlap, "backward_passes_per_step": 2}
        models.append(train(model, kt.HostOptimizer("adamw", model, **options, **ADAMW), 5, 2))
    pairs = zip(*(model.parameters() for model in models))
    assert all(torch.equal(one, other) for one, other in pairs)
    model = new_model()
    kt.HostOptimizer("adamw", model, overlap=True, **ADAMW)
    loss_of(model, 0).backward()
    with pytest.raises(RuntimeError, match=r"`3.bias`: a second gradient before step\(\)"):
        loss_of(model, 0).backward()


def case_parameters_without_a_gradient_are_not_stepped():
    for overlap in (False, True):
        model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 2), "b": torch.nn.Linear(3, 2)})
        before = copy.deepcopy(model["b"].state_dict())
        optimizer = kt.HostOptimizer("adamw", model, overlap=overlap, **ADAMW)
        model["a"](torch.ones(1, 3)).sum().backward()
        optimizer.step(lambda: None)
        for name, each in model["b"].state_dict().items():
            assert torch.equal(each, before[name])


def case_gradients_are_averaged_first():
    model = new_model()
    optimizer = kt.DistributedOptimizer(kt.HostOptimizer("adamw", model, **ADAMW), model)
    other = new_model()
    on_servers = kt.ServerOptimizer("adamw", other, **ADAMW)
    for step in range(5):
        for network, each in ((model, optimizer), (other, on_servers)):
            each.zero_grad()
            loss_of(network, step).backward()
            each.step()
    assert equal_on_all_ranks(model)
    for one, two in zip(model.parameters(), other.parameters()):
        assert torch.allclose(one, two, 1e-4, 1e-6)
    stepping = kt.HostOptimizer("adamw", new_model(), overlap=True, **ADAMW)
    with pytest.raises(kvstore.InvalidArgumentError, match="steps in backward"):
        kt.DistributedOptimizer(stepping, model)


def case_rates_multipliers_and_states():
    model, serial = new_model(), new_model()
    optimizer = kt.HostOptimizer("sgd", model, lr=0.4, weight_decay=0.1)
    optimizer.set_hyperparameter("wd_mult", 0, key="1.bias")
    groups = [
        {"params": [each], "weight_decay": 0.0 if name == "1.bias" else 0.1}
        for name, each in serial.named_parameters()
    ]
    stepper = torch.optim.SGD(groups, lr=0.4)
    for network, each in ((model, optimizer), (serial, stepper)):
        scheduler = torch.optim.lr_scheduler.StepLR(each, 2, gamma=0.5)
        for _ in range(3):
            train(network, each, 2)
            scheduler.step()
    for one, other in zip(model.parameters(), serial.parameters()):
        assert torch.allclose(one, other, 1e-4, 1e-6)
    path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    optimizer.save(path)
    before = copy.deepcopy(model.state_dict())
    train(model, optimizer, 1)
    optimizer.load(path)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
