"""HostOptimizer beside PyTorch's optimizers."""

import copy
import os
import tempfile
from functools import partial

import pytest
import torch
from cases_server import RULES
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


def fail_in_backward(model, step):
    """A pass that ends by an exception behind the last layer."""

    def fail(gradient):
        raise ValueError("in backward")

    inputs, labels = batch(step, rank=0)
    hidden = model[:3](inputs)
    hidden.register_hook(fail)
    torch.nn.functional.cross_entropy(model[3](hidden), labels).backward()


def case_a_pass_that_fails_is_taken_back_by_zero_grad():
    """As if it had not been; without max_norm, what it has stepped stays so."""
    models, options = [], {"overlap": True, "max_norm": 1e9, **ADAMW}
    for fails in (False, True):
        model = new_model()
        models.append(model)
        optimizer = kt.HostOptimizer("adamw", model, **options)
        train(model, optimizer, 2)
        if fails:
            before = copy.deepcopy(model.state_dict())
            optimizer.zero_grad()
            with pytest.raises(ValueError, match="in backward"):
                fail_in_backward(model, 7)
            assert optimizer._is_open, "no step has begun"
            optimizer.zero_grad()
            assert all(torch.equal(each, before[it]) for it, each in model.state_dict().items())
        train(model, optimizer, 2)
    assert all(torch.equal(one, two) for one, two in zip(*(it.parameters() for it in models)))


def case_states_behind_a_failed_pass_are_those_before_it():
    """A program saves them before it ends, or loads older ones; a step behind that is whole."""
    path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    model, other = new_model(), new_model()
    optimizer = kt.HostOptimizer("adamw", model, overlap=True, max_norm=1e9, **ADAMW)
    plain = kt.HostOptimizer("adamw", other, max_norm=1e9, **ADAMW)
    train(model, optimizer, 2)
    train(other, plain, 2)
    before = copy.deepcopy(model.state_dict())
    states = [copy.deepcopy(each.state_dict()["state"]) for each in (optimizer, plain)]
    for end in (optimizer.save, lambda _: optimizer.state_dict(), optimizer.load):
        optimizer.zero_grad()
        with pytest.raises(ValueError, match="in backward"):
            fail_in_backward(model, 7)
        end(path)
        assert all(torch.equal(each, before[it]) for it, each in model.state_dict().items())
    for mine, theirs in (states, (optimizer.state_dict()["state"], states[1])):
        for place, fields in mine.items():
            assert all(torch.equal(each, theirs[place][it]) for it, each in fields.items())
    for network, each in ((model, optimizer), (other, plain)):
        each.zero_grad()
        loss_of(network, 5).backward()
        each.save(path)
        each.step()
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters()))


def case_parameters_that_a_failed_pass_has_stepped_stay_so():
    model = new_model()
    optimizer = kt.HostOptimizer("adamw", model, overlap=True, **ADAMW)
    train(model, optimizer, 2)
    before = copy.deepcopy(model.state_dict())
    optimizer.zero_grad()
    with pytest.raises(ValueError, match="in backward"):
        fail_in_backward(model, 7)
    with pytest.raises(RuntimeError, match=r"or call zero_grad\(\) behind a pass that has failed"):
        loss_of(model, 7).backward()
    with pytest.warns(RuntimeWarning, match="has stepped 2 of 4 parameters"):
        optimizer.zero_grad()
    changed = [not torch.equal(each, before[it]) for it, each in model.state_dict().items()]
    assert changed == [False, False, True, True]
    train(model, optimizer, 2)


MAX_NORM = 0.75


def scale_of(step):
    """Has some norms far below it, and some far above."""
    return (1.0, 0.3, 3.0, 0.2, 0.1)[step % 5]


def clipped_steps(dtype, steps=30, passes=1, **options):
    """Trains with clipping; gives the model, the optimizer, and what became of each step."""
    model, kinds = new_model(dtype), []
    optimizer = kt.HostOptimizer(
        "adamw", model, max_norm=MAX_NORM, backward_passes_per_step=passes, **options, **ADAMW
    )
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            inputs, labels = batch(10 * step + part, rank=0)
            hidden = model(inputs.to(dtype)).float()
            (scale_of(step) * torch.nn.functional.cross_entropy(hidden, labels)).backward()
        begins = options.get("overlap", False) and not optimizer._steps.is_held
        optimizer.step()
        kinds.append((begins, optimizer.last_norm().norm > MAX_NORM))
    return model, optimizer, kinds


def case_clipping_with_overlap_has_the_bits_of_steps_of_all_gradients():
    for dtype in (torch.float32, torch.bfloat16):
        for passes in (1, 2):
            expected, plain, _ = clipped_steps(dtype, passes=passes)
            for options in ({"overlap": True}, {"overlap": True, "threads": 1}):
                model, optimizer, kinds = clipped_steps(dtype, passes=passes, **options)
                # Speculation that held, that did not, and steps that waited, of both kinds.
                assert len(set(kinds)) == 4, kinds
                pairs = zip(model.parameters(), expected.parameters())
                assert all(torch.equal(one, other) for one, other in pairs)
                assert optimizer.last_norm() == plain.last_norm()
                states = zip(*(it.state_dict()["state"].values() for it in (optimizer, plain)))
                for one, other in states:
                    assert all(torch.equal(each, other[name]) for name, each in one.items())


def case_clipping_is_that_of_pytorch():
    for overlap in (False, True):
        mine, expected = new_model(), new_model()
        optimizer = kt.HostOptimizer("adamw", mine, max_norm=MAX_NORM, overlap=overlap, **ADAMW)
        theirs, clipped = torch.optim.AdamW(expected.parameters(), **ADAMW), 0
        for step in range(STEPS):
            for model in (mine, expected):
                model.zero_grad()
                (scale_of(step) * loss_of(model, step)).backward()
            optimizer.step()
            norm = float(torch.nn.utils.clip_grad_norm_(expected.parameters(), MAX_NORM))
            theirs.step()
            clipped += norm > MAX_NORM
            assert abs(optimizer.last_norm().norm / norm - 1) < 1e-4
            for one, other in zip(mine.parameters(), expected.parameters()):
                assert torch.allclose(one, other, 1e-4, 1e-6)
        assert 0 < clipped < STEPS


def case_a_step_whose_norm_is_not_finite_changes_nothing():
    for options in ({}, {"overlap": True}, {"late": True}):
        for is_begun in (False, True):
            model = new_model()
            optimizer = kt.HostOptimizer("adamw", model, max_norm=1e9, **options, **ADAMW)
            if is_begun:
                train(model, optimizer, 2)
            optimizer.wait_for_weights()
            before, states = copy.deepcopy(model.state_dict()), optimizer.state_dict()["state"]
            optimizer.zero_grad()
            (loss_of(model, 7) * float("nan")).backward()
            optimizer.step()
            last = optimizer.last_norm()
            assert last.skips == 1 and last.norm != last.norm
            assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
            after = optimizer.state_dict()["state"]
            for place, fields in states.items():
                assert all(torch.equal(each, after[place][name]) for name, each in fields.items())
            train(model, optimizer, 2)
            assert optimizer.last_norm().skips == 1


def case_a_step_that_fails_is_taken_back():
    model = new_model()
    optimizer = kt.HostOptimizer("adamw", model, max_norm=1e9, overlap=True, **ADAMW)
    train(model, optimizer, 2)
    before = copy.deepcopy(model.state_dict())
    optimizer.zero_grad()
    loss_of(model, 5).backward()
    end = optimizer._steps.end

    def interrupted():
        end()
        raise KeyboardInterrupt

    optimizer._steps.end = interrupted
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    optimizer._steps.end = end
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    train(model, optimizer, 2)


def case_parameters_without_a_gradient_are_not_stepped():
    for overlap in (False, True):
        model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 2), "b": torch.nn.Linear(3, 2)})
        before = copy.deepcopy(model["b"].state_dict())
        optimizer = kt.HostOptimizer("adamw", model, overlap=overlap, **ADAMW)
        model["a"](torch.ones(1, 3)).sum().backward()
        optimizer.step(lambda: None)
        for name, each in model["b"].state_dict().items():
            assert torch.equal(each, before[name])


def case_a_gradient_of_some_passes_is_stepped():
    """Of a parameter that not all passes of a step use."""
    results = []
    for overlap in (False, True):
        torch.manual_seed(1)
        model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 2), "b": torch.nn.Linear(3, 2)})
        options = {"overlap": overlap, "backward_passes_per_step": 2}
        optimizer = kt.HostOptimizer("adamw", model, **options, **ADAMW)
        for _ in range(3):
            optimizer.zero_grad()
            (model["a"](torch.ones(1, 3)).sum() + model["b"](torch.ones(1, 3)).sum()).backward()
            model["a"](torch.ones(1, 3)).sum().backward()
            optimizer.step()
        results.append(list(model.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(*results))


def case_groups_have_options_and_rules_of_their_own():
    """Also rates that a scheduler scales alike, or not, and weight decays."""
    others = (
        {"lr": 0.03, "weight_decay": 0.0},
        {"lr": 0.002, "weight_decay": 0.1},
        {"lr": 0.03, "eps": 1e-3},
    )
    schedules = ((lambda step: 0.5**step), [lambda step: 0.5**step, lambda step: 1 / (1 + step)])
    for other in others:
        for schedule in schedules:
            models, ours = [], {"epsilon" if key == "eps" else key: it for key, it in other.items()}
            for overlap in (None, False, True):
                model = new_model()
                models.append(model)
                if overlap is None:
                    second = {"params": [model[3].weight, model[3].bias], **other}
                    groups = [{"params": [model[1].weight, model[1].bias]}, second]
                    optimizer = torch.optim.AdamW(groups, **ADAMW)
                else:
                    second = {"params": model[3].named_parameters(prefix="3"), **ours}
                    groups = [{"params": model[1].named_parameters(prefix="1")}, second]
                    optimizer = kt.HostOptimizer("adamw", groups, overlap=overlap, **ADAMW)
                scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
                for _ in range(4):
                    train(model, optimizer, 3)
                    scheduler.step()
            for expected, one, two in zip(*(model.parameters() for model in models)):
                assert torch.equal(one, two)
                assert torch.allclose(one, expected, 1e-4, 1e-6), (other, one - expected)


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


def case_ranks_with_fewer_batches_get_the_states_of_the_others():
    model = new_model()
    optimizer = kt.DistributedOptimizer(kt.HostOptimizer("adamw", model, **ADAMW), model)

    def step(number):
        optimizer.zero_grad()
        loss_of(model, number).backward()
        optimizer.step()

    with optimizer.join():
        for number in range(2 + kt.rank()):
            step(number)
    assert equal_on_all_ranks(model)
    states = kt.allgather_object(optimizer.state_dict()["state"][0]["exp_avg"])
    assert all(torch.equal(each, states[0]) for each in states)
    step(9)
    assert equal_on_all_ranks(model)


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


def case_late_steps_lack_the_step_before():
    """Against PyTorch's optimizer over copies, which the model gets one step later."""
    mine, serial = new_model(), new_model()
    optimizer = kt.HostOptimizer("adamw", mine, late=True, **ADAMW)
    latest = [each.detach().clone().requires_grad_() for each in serial.parameters()]
    stepper = torch.optim.AdamW(latest, **ADAMW)
    for step in range(STEPS):
        losses = []
        for model in (mine, serial):
            model.zero_grad()
            losses.append(loss_of(model, step))
            losses[-1].backward()
        assert torch.allclose(*losses, 1e-4)
        # Values of the steps before this one.
        before = [each.detach().clone() for each in latest]
        for each, parameter in zip(latest, serial.parameters()):
            each.grad = parameter.grad
        stepper.step()
        optimizer.step()
        assert all(each.grad is None for each in mine.parameters())
        with torch.no_grad():
            for parameter, value in zip(serial.parameters(), before):
                parameter.copy_(value)
        for one, other in zip(mine.parameters(), serial.parameters()):
            assert torch.allclose(one, other, 1e-4, 1e-6)
    optimizer.wait_for_weights()
    for one, other in zip(mine.parameters(), latest):
        assert torch.allclose(one, other, 1e-4, 1e-6)
    path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    loss_of(mine, 0).backward()
    optimizer.step()
    optimizer.save(path)
    expected = copy.deepcopy(mine.state_dict())
    loss_of(mine, 1).backward()
    optimizer.step()
    optimizer.load(path)
    assert all(torch.equal(each, expected[name]) for name, each in mine.state_dict().items())
    with pytest.raises(kvstore.InvalidArgumentError, match="leave overlap out"):
        kt.HostOptimizer("adamw", new_model(), late=True, overlap=True)


# Rules with their options in both; the momentum of "sgd" is scaled by the rate.
FORMS = {
    **RULES,
    "sgd with momentum": ({"lr": 0.05, "momentum": 0.8}, "SGD", {"lr": 0.05, "momentum": 0.8}),
}


def case_states_have_the_form_of_pytorch_both_ways():
    """One optimizer goes on where the other has stopped."""
    torch.set_default_dtype(torch.float64)
    try:
        states_go_both_ways()
    finally:
        torch.set_default_dtype(torch.float32)


def states_go_both_ways():
    for rule, (options, theirs, theirs_options) in FORMS.items():
        ours = partial(kt.HostOptimizer, rule.split()[0], **options)
        of_pytorch = partial(getattr(torch.optim, theirs), **theirs_options)
        expected = new_model(torch.float64)
        train(expected, of_pytorch(expected.parameters()), 6)
        for first_of, second_of in ((ours, of_pytorch), (of_pytorch, ours)):
            model, other = new_model(torch.float64), new_model(torch.float64)
            first = first_of(model if first_of is ours else model.parameters())
            train(model, first, 3)
            other.load_state_dict(model.state_dict())
            second = second_of(other if second_of is ours else other.parameters())
            second.load_state_dict(copy.deepcopy(first.state_dict()))
            train_from(other, second, 3, 3)
            for one, two in zip(other.parameters(), expected.parameters()):
                assert torch.allclose(one, two, 1e-8, 1e-8), (rule, first_of)


def train_from(model, optimizer, begin, steps):
    for step in range(begin, begin + steps):
        optimizer.zero_grad()
        inputs, labels = batch(10 * step, rank=0)
        hidden = model(inputs.to(next(model.parameters()).dtype))
        torch.nn.functional.cross_entropy(hidden.float(), labels).backward()
        optimizer.step()


def case_training_goes_on_with_the_same_bits():
    path = os.path.join(tempfile.mkdtemp(), "states.pt")
    for dtype in (torch.float32, torch.bfloat16):
        for options in ({}, {"overlap": True}, {"late": True}):
            model = new_model(dtype)
            optimizer = kt.HostOptimizer("adamw", model, **options, **ADAMW)
            train(model, optimizer, 3)
            optimizer.param_groups[0]["lr"] = 0.02
            states = optimizer.state_dict()
            torch.save((model.state_dict(), states), path)
            train_from(model, optimizer, 3, 3)
            again = new_model(dtype)
            weights, states = torch.load(path, weights_only=True)
            again.load_state_dict(weights)
            resumed = kt.HostOptimizer("adamw", again, **options, **ADAMW)
            resumed.load_state_dict(states)
            train_from(again, resumed, 3, 3)
            for each in (optimizer, resumed):
                getattr(each, "wait_for_weights", lambda: None)()
            for one, other in zip(model.parameters(), again.parameters()):
                assert torch.equal(one, other), (dtype, options)


def case_states_that_do_not_fit_are_refused():
    model = new_model()
    optimizer = kt.HostOptimizer("adamw", model, **ADAMW)
    train(model, optimizer, 1)
    before = [each.clone() for each in model.parameters()]
    states = optimizer.state_dict()
    assert states["state"][0]["step"] == 1
    assert states["param_groups"][0]["weight_decay"] == 0.02
    short = copy.deepcopy(states)
    short["param_groups"][0]["params"].pop()
    with pytest.raises(kvstore.InvalidArgumentError, match=r"groups of \[3\] parameters"):
        optimizer.load_state_dict(short)
    lacking = copy.deepcopy(states)
    del lacking["state"][1]["exp_avg_sq"]
    with pytest.raises(kvstore.InvalidArgumentError, match=r"`1.bias` has no exp_avg_sq"):
        optimizer.load_state_dict(lacking)
    other = copy.deepcopy(states)
    other["state"][2]["exp_avg"] = torch.zeros(3)
    with pytest.raises(kvstore.ShapeMismatchError, match=r"exp_avg of `3.weight` is \[3\]"):
        optimizer.load_state_dict(other)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), before))
    again = kt.HostOptimizer("lion", new_model(), lr=0.1)
    with pytest.raises(kvstore.UnsupportedError, match=r"no states of lion; use save\(\)"):
        again.state_dict()
    with pytest.raises(kvstore.UnsupportedError, match=r"no states of lion"):
        again.load_state_dict(states)
