"""The communication hook, the optimizer on the servers, and embeddings there."""

import copy
import os
import tempfile
import warnings

import pytest
import torch
from models import batch, equal_on_all_ranks, loss_of, same, same_weights, small_model, with_ddp

import kvstore
import kvstore.torch as kt

# The hook.


def with_hook(model, **options):
    theirs, optimizer = with_ddp(model, **options)
    theirs.register_comm_hook(None, kt.ddp_hook())
    return theirs, optimizer


def case_the_hook_gives_the_bits_of_ddp():
    """In one bucket, and in several, which DDP makes anew after its first pass."""
    for options in ({}, {"bucket_cap_mb": 0.002}):
        model = small_model()
        pairs = with_hook(model, **options), with_ddp(model, **options)
        for step in range(5):
            losses = []
            for network, optimizer in pairs:
                optimizer.zero_grad()
                loss = loss_of(network, step)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            assert same(*losses)
        assert same_weights(pairs[0][0].module, pairs[1][0])


def case_two_models_with_hooks():
    models = [with_hook(torch.nn.Linear(3, 2)) for _ in range(2)]
    for number, (model, _) in enumerate(models):
        model(torch.ones(1, 3)).sum().mul(number + kt.rank()).backward()
    for number, (model, _) in enumerate(models):
        expected = torch.full((2, 3), number + (kt.size() - 1) / 2)
        assert torch.allclose(model.module.weight.grad, expected)


def case_the_hook_with_no_sync_and_unused_parameters():
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 2), "unused": torch.nn.Linear(3, 2)})

    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = copy.deepcopy(model)

        def forward(self, inputs):
            return self.inner["used"](inputs)

    network, _ = with_hook(Half(), find_unused_parameters=True)
    inputs = torch.full((1, 3), float(kt.rank()))
    with network.no_sync():
        network(inputs).sum().backward()
    network(inputs).sum().backward()
    expected = torch.full((2, 3), float(kt.size() - 1))
    assert torch.allclose(network.module.inner["used"].weight.grad, expected)


def case_an_error_of_the_store_comes_through_the_hook():
    if kt.size() == 1:
        return
    model, _ = with_hook(torch.nn.Linear(3, 2))
    model(torch.ones(1, 3)).sum().backward()
    model(torch.ones(1, 3)).sum().backward()
    kt.barrier()
    if kt.rank() == 1:
        with pytest.raises(kvstore.DiffersError, match="allreduce"):
            kt.store().broadcast_from(torch.ones(3), root=0)
        return
    with pytest.raises(RuntimeError, match=r"worker 1.*broadcast_from"):
        model(torch.ones(1, 3)).sum().backward()


# The rule on the servers. Options make the formulas of both equal, as in test_torch_optimizers.py.

RATE = {"lr": 0.05}
DECAY = {"lr": 0.05, "weight_decay": 0.02}
BETAS = {"beta1": 0.8, "beta2": 0.95}
BOTH = {"betas": (0.8, 0.95)}
RULES = {
    "sgd": (DECAY, "SGD", DECAY),
    "sgd with momentum": ({**DECAY, "momentum": 0.8}, "SGD", {**DECAY, "momentum": 0.8}),
    "nag": ({**RATE, "momentum": 0.8}, "SGD", {**RATE, "momentum": 0.8, "nesterov": True}),
    "adam": ({**DECAY, **BETAS, "epsilon": 0}, "Adam", {**DECAY, **BOTH, "eps": 0}),
    "adamw": ({**DECAY, **BETAS, "epsilon": 0.01}, "AdamW", {**DECAY, **BOTH, "eps": 0.01}),
    "adamax": ({**DECAY, **BETAS}, "Adamax", {**DECAY, **BOTH, "eps": 0}),
    "nadam": (
        {**DECAY, **BETAS, "epsilon": 0.01, "schedule_decay": 0.02},
        "NAdam",
        {**DECAY, **BOTH, "eps": 0.01, "momentum_decay": 0.02},
    ),
    "adagrad": ({**RATE, "eps": 0}, "Adagrad", {**RATE, "eps": 0}),
    "rmsprop": (
        {**DECAY, "gamma1": 0.8, "epsilon": 0},
        "RMSprop",
        {**DECAY, "alpha": 0.8, "eps": 0},
    ),
    "adadelta": ({"rho": 0.8, "epsilon": 0.01}, "Adadelta", {"lr": 1, "rho": 0.8, "eps": 0.01}),
}
STEPS = 50


def smooth_model(dtype):
    torch.manual_seed(1)
    layers = [torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10)]
    return torch.nn.Sequential(*layers).to(dtype)


def loss_of_all_ranks(model, step, dtype):
    """What one process computes from the batches of all ranks."""
    losses = []
    for rank in range(kt.size()):
        inputs, labels = batch(step, rank=rank)
        losses.append(torch.nn.functional.cross_entropy(model(inputs.to(dtype)), labels))
    return sum(losses) / len(losses)


def error_of(rule, dtype):
    """The largest difference from PyTorch's optimizer, relative to the largest weight."""
    options, theirs, theirs_options = RULES[rule]
    torch.set_default_dtype(dtype)
    try:
        mine, serial = smooth_model(dtype), smooth_model(dtype)
        optimizer = kt.ServerOptimizer(rule.split()[0], mine, **options)
        stepper = getattr(torch.optim, theirs)(serial.parameters(), **theirs_options)
        for step in range(STEPS):
            optimizer.zero_grad()
            inputs, labels = batch(step)
            torch.nn.functional.cross_entropy(mine(inputs.to(dtype)), labels).backward()
            optimizer.step()
            stepper.zero_grad()
            loss_of_all_ranks(serial, step, dtype).backward()
            stepper.step()
    finally:
        torch.set_default_dtype(torch.float32)
    assert equal_on_all_ranks(mine)
    pairs = list(zip(mine.parameters(), serial.parameters()))
    return max((a - b).abs().max().item() / b.abs().max().item() for a, b in pairs)


def case_eight_rules_do_what_pytorch_does_in_float64():
    for rule in RULES:
        error = error_of(rule, torch.float64)
        assert error <= 1e-8, (rule, error)


def case_eight_rules_do_what_pytorch_does_in_float32():
    for rule in RULES:
        error = error_of(rule, torch.float32)
        assert error <= 1e-4, (rule, error)


def case_a_state_dict_with_batchnorm_trains():
    model = small_model(seed=kt.rank())
    optimizer = kt.ServerOptimizer("sgd", model, lr=0.1, momentum=0.9)
    assert torch.equal(model[4].weight, small_model(seed=0)[4].weight)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        optimizer.step()
        losses.append(kt.allreduce(loss.item()))
    assert losses[-1] < 0.5 * losses[0]
    assert model[1].num_batches_tracked == 20
    assert equal_on_all_ranks(torch.nn.ParameterList(model.parameters()))
    kt.broadcast_parameters(model)
    assert equal_on_all_ranks(model)


def case_bfloat16_parameters_have_a_master_in_float32():
    """Small steps add up, which bfloat16 alone would round away."""
    model = torch.nn.Linear(3, 2, bias=False).to(torch.bfloat16)
    serial = model.weight.detach().float()
    optimizer = kt.ServerOptimizer("sgd", model, lr=2.0**-12, multi_precision=True)
    for _ in range(64):
        optimizer.zero_grad()
        model(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    expected = kt.broadcast_object(serial) - 64 * 2.0**-12
    assert torch.equal(model.weight, expected.to(torch.bfloat16))


def case_schedulers_change_the_rate_on_the_servers():
    model, serial = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    serial.load_state_dict(kt.broadcast_object(dict(model.state_dict())))
    optimizer = kt.ServerOptimizer("sgd", model, lr=0.4)
    stepper = torch.optim.SGD(serial.parameters(), lr=0.4)
    for network, each in ((model, optimizer), (serial, stepper)):
        scheduler = torch.optim.lr_scheduler.StepLR(each, 2, gamma=0.5)
        for _ in range(6):
            each.zero_grad()
            network(torch.ones(1, 3)).pow(2).sum().backward()
            each.step()
            scheduler.step()
    assert torch.allclose(model.weight, serial.weight, 1e-5)


def body_and_head():
    torch.manual_seed(3)
    return torch.nn.ModuleDict({"body": torch.nn.Linear(64, 32), "head": torch.nn.Linear(32, 10)})


def forward(model, inputs):
    return model["head"](torch.tanh(model["body"](inputs.flatten(1))))


BIAS = {"lr": 0.2, "eps": 0}


def case_groups_have_options_and_rules_of_their_own():
    def optimizer_of(model):
        return kt.ServerOptimizer(
            "sgd",
            [
                {"params": model["body"].named_parameters(prefix="body")},
                {"params": [("head.weight", model["head"].weight)], "lr": 0.3, "weight_decay": 0.1},
                {"params": [("head.bias", model["head"].bias)], "rule": "adagrad", **BIAS},
            ],
            lr=0.1,
        )

    class Both:
        """SGD and Adagrad, and a scheduler for both: what one optimizer does here."""

        def __init__(self, model):
            groups = [
                {"params": list(model["body"].parameters())},
                {"params": [model["head"].weight], "lr": 0.3, "weight_decay": 0.1},
            ]
            self.sgd = torch.optim.SGD(groups, lr=0.1)
            self.adagrad = torch.optim.Adagrad([model["head"].bias], **BIAS)

    model, serial = body_and_head(), body_and_head()
    mine, theirs = optimizer_of(model), Both(serial)
    serial_parts = (theirs.sgd, theirs.adagrad)
    schedulers = [
        torch.optim.lr_scheduler.StepLR(each, 4, gamma=0.5) for each in (mine, *serial_parts)
    ]
    for step in range(12):
        for each in (mine, *serial_parts):
            each.zero_grad()
        inputs, labels = batch(step)
        torch.nn.functional.cross_entropy(forward(model, inputs), labels).backward()
        losses = []
        for rank in range(kt.size()):
            inputs, labels = batch(step, rank=rank)
            losses.append(torch.nn.functional.cross_entropy(forward(serial, inputs), labels))
        (sum(losses) / len(losses)).backward()
        for each in (mine, *serial_parts, *schedulers):
            each.step()
    assert [group["lr"] for group in mine.param_groups] == [0.1 / 8, 0.3 / 8, 0.2 / 8]
    assert equal_on_all_ranks(model)
    for one, other in zip(model.parameters(), serial.parameters()):
        assert torch.allclose(one, other, 1e-4, 1e-5)


def case_groups_that_cannot_be_are_refused():
    model = body_and_head()
    parts = [{"params": model["body"]}, {"params": model["head"]}]
    with pytest.raises(kvstore.InvalidArgumentError, match=r"two parameters are named `weight`"):
        kt.ServerOptimizer("sgd", parts)
    with pytest.raises(kvstore.InvalidArgumentError, match="come with their names"):
        kt.ServerOptimizer("sgd", [{"params": list(model.parameters())}])
    with pytest.raises(kvstore.InvalidArgumentError, match="group 1 is no dict"):
        kt.ServerOptimizer("sgd", [parts[0], ("weight", model["head"].weight)])
    with pytest.raises(kvstore.InvalidArgumentError, match="no parameter requires gradients"):
        kt.ServerOptimizer("sgd", torch.nn.Identity())
    optimizer = kt.ServerOptimizer("sgd", model)
    with pytest.raises(kvstore.UnsupportedError, match="takes all groups when it is made"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})


# Weights that come while the next forward pass begins.


def wide_model(seed=1):
    """Layers above and below the bytes that leave during backward."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(64, 128),
        torch.nn.Tanh(),
        torch.nn.Linear(128, 128),
        torch.nn.BatchNorm1d(128),
        torch.nn.Linear(128, 10),
    )


def trained_with(passes=1, steps=6, set_to_none=True, **options):
    model = wide_model(kt.rank())
    rates = {"lr": 0.05, "momentum": 0.9}
    optimizer = kt.ServerOptimizer("sgd", model, **rates, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    for step in range(steps):
        optimizer.zero_grad(set_to_none)
        for part in range(passes):
            loss_of(model, 10 * step + part).backward()
        optimizer.step()
        scheduler.step()
    return [each.clone() for each in model.state_dict().values()]


def case_overlap_gives_the_bits_of_one_call():
    for options in ({}, {"set_to_none": False}, {"passes": 2}):
        passes = {"backward_passes_per_step": options["passes"]} if "passes" in options else {}
        expected = trained_with(**options)
        mine = trained_with(**options, **passes, overlap=True)
        assert all(torch.equal(one, other) for one, other in zip(mine, expected))


def case_weights_are_there_when_their_module_is_called():
    model = wide_model(kt.rank())
    optimizer = kt.ServerOptimizer("sgd", model, overlap=True, lr=0.1)
    loss_of(model, 0).backward()
    optimizer.step()
    expected = torch.empty(128, 128)
    optimizer._store.pull("3.weight", out=expected)
    # Behind the calls of some modules, those of others may still be on their way.
    model[3](torch.ones(1, 128))
    assert torch.equal(model[3].weight, expected)
    expected = torch.empty(10, 128)
    optimizer._store.pull("5.weight", out=expected)
    optimizer.wait_for_weights()
    assert torch.equal(model[5].weight, expected)
    assert equal_on_all_ranks(torch.nn.ParameterList(model.parameters()))


def case_weights_used_outside_of_their_module_are_told():
    class Outside(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(64, 128)

        def forward(self, inputs):
            return torch.nn.functional.linear(inputs, self.inner.weight, self.inner.bias)

    torch.manual_seed(1)
    model = Outside()
    optimizer = kt.ServerOptimizer("sgd", model, overlap=True, lr=0.1)
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"`inner.weight`: a gradient of the weights before"):
        model(torch.ones(1, 64)).sum().backward()
    optimizer.wait_for_weights()
    optimizer.zero_grad()
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    optimizer.wait_for_weights()
    assert equal_on_all_ranks(model)


def case_groups_of_pairs_are_waited_for_in_step():
    model = wide_model(kt.rank())
    groups = [
        {"params": torch.nn.ModuleList([model[1]])},
        {"params": list(model[3].named_parameters(prefix="3"))},
    ]
    optimizer = kt.ServerOptimizer("sgd", groups, overlap=True, lr=0.1)
    loss_of(model, 0).backward()
    optimizer.step()
    before = model[3].weight.clone()
    expected = torch.empty(128, 128)
    optimizer._store.pull("3.weight", out=expected)
    assert torch.equal(before, expected)
    optimizer.wait_for_weights()


def case_overlap_counts_zeros_for_ranks_without_a_gradient():
    results = []
    for overlap in (False, True):
        torch.manual_seed(1)
        model = torch.nn.ModuleDict(
            {"used": torch.nn.Linear(64, 128), "unused": torch.nn.Linear(64, 128)}
        )
        optimizer = kt.ServerOptimizer("sgd", model, overlap=overlap, lr=0.1, wd=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            if kt.rank() == 0:
                model["used"](torch.ones(1, 64)).sum().backward()
            optimizer.step()
        results.append([each.clone() for each in model.state_dict().values()])
    assert all(torch.equal(one, other) for one, other in zip(*results))


def case_states_are_saved_and_loaded():
    folder = kt.broadcast_object(tempfile.mkdtemp() if kt.rank() == 0 else None)
    path = os.path.join(folder, "model.safetensors")

    def step():
        optimizer.zero_grad()
        model(torch.ones(1, 3)).pow(2).sum().backward()
        optimizer.step()
        return model.weight.detach().clone()

    model = torch.nn.Linear(3, 2)
    optimizer = kt.ServerOptimizer("adam", model, lr=0.1)
    step()
    optimizer.save(path)
    expected = [step(), step()]
    optimizer.load(path)
    assert all(torch.equal(step(), each) for each in expected)
    with pytest.raises(kvstore.UnsupportedError, match="save"):
        optimizer.state_dict()
    with pytest.raises(kvstore.UnsupportedError, match="load"):
        optimizer.load_state_dict({})


def case_a_parameter_without_a_gradient_counts_as_zeros():
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 2), "unused": torch.nn.Linear(3, 2)})
    optimizer = kt.ServerOptimizer("sgd", model, lr=0.1)
    before = model["unused"].weight.detach().clone()
    if kt.rank() == 0:
        model["used"](torch.ones(1, 3)).sum().backward()
    optimizer.step(lambda: None)
    assert torch.equal(model["unused"].weight, before)
    assert equal_on_all_ranks(model)


def case_another_model_on_a_rank_is_named():
    model = torch.nn.ModuleDict({"layer3": torch.nn.Linear(3, 2 + kt.rank())})
    if kt.size() > 1:
        with pytest.raises(
            kvstore.DiffersError, match=r"`layer3.weight` is float32\[3, 3\] on rank 1"
        ):
            kt.ServerOptimizer("sgd", model, lr=0.1)
    with pytest.raises(kvstore.OptionError, match="rescale_grad"):
        kt.ServerOptimizer("sgd", torch.nn.Linear(3, 2), rescale_grad=1)
    with pytest.raises(kvstore.KVStoreError, match="momenta"):
        kt.ServerOptimizer("sgd", torch.nn.Linear(3, 2), momenta=1)


# Embeddings.


def case_embeddings_do_what_sparse_gradients_do():
    """Against one process with torch.nn.Embedding(sparse=True) and all batches."""
    for rule, options, theirs, theirs_options in (
        ("sgd", {"lr": 0.1}, "SGD", {"lr": 0.1}),
        ("adagrad", {"lr": 0.1, "eps": 1e-10}, "Adagrad", {"lr": 0.1}),
    ):
        mine = kt.Embedding(50, 4, rule, **options)
        serial = torch.nn.Embedding(50, 4, sparse=True)
        with torch.no_grad():
            serial.weight.copy_(mine.table())
        stepper = getattr(torch.optim, theirs)(serial.parameters(), **theirs_options)
        for step in range(6):
            batches = []
            for rank in range(kt.size()):
                random = torch.Generator().manual_seed(100 * step + rank)
                batches.append(torch.randint(0, 40, (3, 5), generator=random))
            mine(batches[kt.rank()]).pow(2).sum().backward()
            mine.step()
            stepper.zero_grad()
            (sum(serial(each).pow(2).sum() for each in batches) / kt.size()).backward()
            stepper.step()
        assert torch.allclose(mine.table(), serial.weight, 1e-4, 1e-5)
        # Rows that no batch had are as they were.
        assert torch.equal(mine.table()[40:], serial.weight[40:])


def case_a_rank_without_ids_takes_part():
    mine = kt.Embedding(10, 2, "sgd", lr=1.0)
    before = mine.table()
    kt.barrier()
    if kt.rank() == 0:
        (mine(torch.tensor([3])).sum() + mine(torch.tensor([3, 4])).sum()).backward()
    mine.step()
    change = before - mine.table()
    expected = torch.zeros(10, 2)
    expected[3], expected[4] = 2 / kt.size(), 1 / kt.size()
    assert torch.allclose(change, expected, atol=1e-6)


def case_rows_of_the_next_batch_are_fetched_beforehand():
    warnings.simplefilter("error", RuntimeWarning)  # Of tickets that are dropped.
    one, other = kt.Embedding(10, 2, "sgd", lr=1.0), torch.tensor([[5, 6]])
    ids = torch.tensor([[1, 2, 1]])
    one(ids).sum().backward()
    one.step()
    one.prefetch(ids.clone())
    assert torch.equal(one(ids), one.table()[ids])
    one.prefetch(other)
    assert torch.equal(one(ids), one.table()[ids])
    one.prefetch(ids)
    one.prefetch(other)
    one(other).sum().backward()
    one.set_hyperparameter("learning_rate", 0.0)
    before = one.table()
    one.step()
    assert torch.equal(one.table(), before)


def case_embeddings_without_gradients_keep_nothing():
    mine = kt.Embedding(10, 2, "sgd", lr=1.0)
    with torch.no_grad():
        assert torch.equal(mine(torch.tensor([[1, 2], [2, 1]]))[0, 1], mine.table()[2])
    assert mine._used == []
    assert "10, 2" in repr(mine)


def case_another_table_on_a_rank_is_an_error():
    if kt.size() > 1:
        with pytest.raises(kvstore.DiffersError, match=r"float32\[10, 3\] on rank 1"):
            kt.Embedding(10, 2 + kt.rank())
