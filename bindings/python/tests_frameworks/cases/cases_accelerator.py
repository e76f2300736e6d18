"""Parameters on a GPU, beside the same in host memory; where there is none, on a stand-in.

With the stand-in, which computes in host memory, the bits are equal.
"""

import contextlib
import copy
import os
import tempfile

import pytest
import torch
from accelerator_stand_in import on_stand_in
from models import batch, equal_on_all_ranks, sgd, small_model
from torch.nn.parallel import DistributedDataParallel

import kvstore
import kvstore.torch as kt

HAS_GPU = torch.cuda.is_available()
STEPS = 5


@contextlib.contextmanager
def device(seed=0):
    """Moves a model to the device; counts copies with the stand-in."""
    if HAS_GPU:
        yield lambda model: model.cuda(), None
    else:
        with on_stand_in(seed) as stand_in:
            yield lambda model: model, stand_in


def same(one, other):
    one, other = one.detach().cpu(), other.detach().cpu()
    return torch.allclose(one, other, 1e-3, 1e-5) if HAS_GPU else torch.equal(one, other)


def same_weights(mine, theirs):
    return all(same(one, other) for one, other in zip(mine.parameters(), theirs.parameters()))


def step_of(model, optimizer, step):
    optimizer.zero_grad()
    inputs, labels = batch(step)
    place = next(model.parameters()).device
    loss = torch.nn.functional.cross_entropy(model(inputs.to(place)), labels.to(place))
    loss.backward()
    optimizer.step()


def case_gradients_are_averaged():
    for overlap in (False, True):
        for passes in (1, 2):
            options = {"overlap": overlap, "backward_passes_per_step": passes}
            here = small_model()
            expected = kt.DistributedOptimizer(sgd(here), here, **options)
            with device(seed=passes) as (move, stand_in):
                there = move(small_model(seed=1 + kt.rank()))
                mine = kt.DistributedOptimizer(sgd(there), there, **options)
                for step in range(STEPS):
                    for model, optimizer in ((here, expected), (there, mine)):
                        optimizer.zero_grad()
                        for part in range(passes):
                            inputs, labels = batch(passes * step + part)
                            at = next(model.parameters()).device
                            hidden = model(inputs.to(at))
                            torch.nn.functional.cross_entropy(hidden, labels.to(at)).backward()
                        optimizer.step()
                assert same_weights(here, there)
                if stand_in is not None and kt.size() > 1:
                    assert min(stand_in.asked.values()) >= STEPS
    assert equal_on_all_ranks(torch.nn.ParameterList(here.parameters()))


def case_a_parameter_without_a_gradient_keeps_none():
    with device() as (move, _):
        model = move(small_model())
        unused = torch.nn.Parameter(torch.ones(3, device=next(model.parameters()).device))
        named = [*model.named_parameters(), ("unused", unused)]
        plain = torch.optim.SGD([each for _, each in named], lr=0.1)
        optimizer = kt.DistributedOptimizer(plain, named)
        for step in range(2):
            step_of(model, optimizer, step)
        assert unused.grad is None and torch.equal(unused.cpu(), torch.ones(3))


def case_ranks_with_fewer_batches_attend():
    with device() as (move, _):
        model = move(small_model())
        optimizer = kt.DistributedOptimizer(sgd(model), model, overlap=True)
        with optimizer.join():
            for step in range(2 + kt.rank()):
                step_of(model, optimizer, step)
        assert equal_on_all_ranks(model.cpu())


def case_a_round_that_fails_leaves_nothing_under_way():
    with device() as (move, _):
        model = move(small_model())
        optimizer = kt.DistributedOptimizer(sgd(model), model, overlap=True)
        step_of(model, optimizer, 0)
        if kt.size() > 1:
            store = kt.store()
            pushpull = store.pushpull

            def fail(*_):
                raise kvstore.TimeoutError("not done within 5 ms")

            store.pushpull = fail
            with pytest.raises(kvstore.TimeoutError, match="5 ms"):
                step_of(model, optimizer, 1)
            store.pushpull = pushpull
            kt.barrier()
        step_of(model, optimizer, 2)
        assert equal_on_all_ranks(torch.nn.ParameterList(each.cpu() for each in model.parameters()))


def case_the_rule_runs_on_the_servers():
    for overlap in (False, True):
        here = small_model()
        expected = kt.ServerOptimizer("adamw", here, lr=0.01, wd=0.02)
        with device(seed=7) as (move, _):
            there = move(small_model(seed=1 + kt.rank()))
            mine = kt.ServerOptimizer("adamw", there, overlap=overlap, lr=0.01, wd=0.02)
            for step in range(STEPS):
                step_of(here, expected, step)
                step_of(there, mine, step)
            mine.wait_for_weights()
            assert same_weights(here, there)


def case_the_rule_runs_in_host_memory():
    for dtype in (torch.float32, torch.bfloat16):
        clipped = {"max_norm": 0.75}
        for options in ({}, {"overlap": True}, {"late": True}, {"overlap": True, **clipped}):
            here = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 300)).to(dtype)
            there = copy.deepcopy(here)
            plain = {name: it for name, it in options.items() if name != "overlap"}
            expected = kt.HostOptimizer("adamw", here, lr=0.01, **plain)
            with device() as (move, _):
                there = move(there)
                mine = kt.HostOptimizer("adamw", there, lr=0.01, **options)
                for step in range(STEPS):
                    for model, optimizer in ((here, expected), (there, mine)):
                        inputs, labels = batch(step, rank=0)
                        place = next(model.parameters()).device
                        optimizer.zero_grad()
                        hidden = model(inputs.to(place, dtype)).float()
                        torch.nn.functional.cross_entropy(hidden, labels.to(place)).backward()
                        optimizer.step()
                    assert same_weights(here, there)
                pairs = zip(*(each.state_dict()["state"].values() for each in (expected, mine)))
                for one, other in pairs:
                    assert all(same(value, other[field]) for field, value in one.items())
                # From the weights on the device.
                mine.load_state_dict(mine.state_dict())
                assert same_weights(here, there)


def case_weights_are_loaded_behind_copies_that_are_under_way():
    with tempfile.TemporaryDirectory() as folder, device() as (move, _):
        model = move(torch.nn.Linear(64, 300))
        optimizer = kt.HostOptimizer("sgd", model, lr=0.1)
        path = os.path.join(folder, "weights")
        optimizer.save(path)
        begun = copy.deepcopy(model)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 64, device=model.weight.device)).square().sum().backward()
            optimizer.step()
            optimizer.load(path)
            assert same_weights(model, begun)


def case_buckets_of_ddp_are_averaged():
    # Gloo itself takes tensors of a GPU.
    here = DistributedDataParallel(small_model(), broadcast_buffers=False)
    here.register_comm_hook(None, kt.ddp_hook())
    expected = sgd(here.module)
    with device() as (move, stand_in):
        there = DistributedDataParallel(move(small_model()), broadcast_buffers=False)
        there.register_comm_hook(None, kt.ddp_hook())
        mine = sgd(there.module)
        for step in range(STEPS):
            step_of(here, expected, step)
            step_of(there, mine, step)
        assert same_weights(here.module, there.module)
        if stand_in is not None and kt.size() > 1:
            assert min(stand_in.asked.values()) >= STEPS


def case_moments_of_batches_and_rows_of_tables():
    with device() as (move, _):
        model = kt.SyncBatchNorm.convert(move(small_model()))
        optimizer = kt.DistributedOptimizer(sgd(model), model)
        step_of(model, optimizer, 0)
        table = kt.Embedding(20, 4, learning_rate=0.1)
        place = next(model.parameters()).device
        ids = torch.tensor([1, 5, 1], device=place)
        rows = table(ids)
        assert rows.device == place and torch.equal(rows[0], rows[2])
        rows.sum().backward()
        table.step()
        assert not same(table(ids), rows)


def case_parameters_without_values_are_refused():
    named = [("layer3.weight", torch.nn.Parameter(torch.ones(2, device="meta")))]
    for make in (
        lambda: kt.HostOptimizer("sgd", named, lr=0.1),
        lambda: kt.ServerOptimizer("sgd", named, lr=0.1),
    ):
        with pytest.raises(kvstore.UnsupportedError, match=r"`layer3\.weight` is on meta"):
            make()
