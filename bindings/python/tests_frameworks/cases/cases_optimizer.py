"""DistributedOptimizer beside DistributedDataParallel."""

import copy
import os
import tempfile

import pytest
import torch
from models import (
    equal_on_all_ranks,
    loss_of,
    same,
    same_weights,
    sgd,
    small_model,
    with_ddp,
    with_kvstore,
)

import kvstore
import kvstore.torch as kt

STEPS = 6


def train_both(mine, theirs, steps=STEPS, before_step=lambda model: None):
    """Each pair is a model and its optimizer; losses must be equal in all steps, then weights."""
    for step in range(steps):
        losses = []
        for model, optimizer in (mine, theirs):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            before_step(model)
            optimizer.step()
            losses.append(loss.item())
        assert same(*losses), (step, losses)
    # Adam divides by the gradient: one that is zero but for rounding has any sign with more ranks.
    adam = isinstance(mine[1], torch.optim.AdamW)
    assert (adam and kt.size() > 2) or same_weights(mine[0], theirs[0])
    assert equal_on_all_ranks(torch.nn.ParameterList(mine[0].parameters()))


def case_losses_and_weights_are_those_of_ddp():
    for overlap in (False, True):
        for make in (sgd, lambda model: torch.optim.AdamW(model.parameters(), lr=0.01)):
            model = small_model()
            train_both(with_kvstore(model, make, overlap=overlap), with_ddp(model, make))


def case_ranks_begin_with_the_model_of_rank_0():
    model = small_model(seed=kt.rank())
    model[1].num_batches_tracked += kt.rank()
    model[4].bias.requires_grad_(False)
    kt.DistributedOptimizer(sgd(model), model)
    expected = small_model(seed=0).state_dict()
    for name, each in model.state_dict().items():
        assert torch.equal(each, expected[name]), name


def case_gradients_are_clipped_after_the_mean():
    model = small_model()

    def clip(model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    train_both(with_kvstore(model), with_ddp(model), before_step=clip)


def case_clip_grad_norm_is_a_method_too():
    model = small_model()
    mine, optimizer = with_kvstore(model)
    theirs, other = with_ddp(model)
    with optimizer.no_sync():
        loss_of(mine, 0).backward()
    loss_of(theirs, 0).backward()
    norm = optimizer.clip_grad_norm_(0.1)
    assert same(norm, torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1))
    optimizer.step()
    other.step()
    assert same_weights(mine, theirs)


def case_accumulation_by_no_sync():
    for overlap in (False, True):
        model = small_model()
        mine, optimizer = with_kvstore(model, overlap=overlap)
        theirs, other = with_ddp(model)
        for step in range(3):
            for network, stepper, quiet in (
                (mine, optimizer, optimizer.no_sync),
                (theirs, other, theirs.no_sync),
            ):
                stepper.zero_grad()
                with quiet():
                    for part in range(2):
                        loss_of(network, 10 * step + part).backward()
                loss_of(network, 10 * step + 2).backward()
                stepper.step()
        assert same_weights(mine, theirs)


def case_accumulation_by_a_number_of_passes():
    for overlap in (False, True):
        model = small_model()
        mine, optimizer = with_kvstore(model, overlap=overlap, backward_passes_per_step=2)
        theirs, other = with_ddp(model)
        for step in range(3):
            optimizer.zero_grad()
            other.zero_grad()
            for part in range(2):
                loss_of(mine, 10 * step + part).backward()
            with theirs.no_sync():
                loss_of(theirs, 10 * step).backward()
            loss_of(theirs, 10 * step + 1).backward()
            optimizer.step()
            other.step()
        assert same_weights(mine, theirs)


def case_accumulation_without_either_is_right_too():
    """Each pass averages what is there: the mean of a mean is itself."""
    model = small_model()
    mine, optimizer = with_kvstore(model)
    theirs, other = with_ddp(model)
    for part in range(3):
        loss_of(mine, part).backward()
        loss_of(theirs, part).backward()
    optimizer.step()
    other.step()
    assert same_weights(mine, theirs)


def case_a_step_inside_of_no_sync_is_local():
    model = small_model()
    mine, optimizer = with_kvstore(model)
    alone = copy.deepcopy(model)
    with optimizer.no_sync():
        loss_of(mine, 0).backward()
        optimizer.step()
    stepper = sgd(alone)
    loss_of(alone, 0).backward()
    stepper.step()
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), alone.parameters()))


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(4, 4)
        self.sometimes = torch.nn.Linear(4, 4)
        self.never = torch.nn.Linear(4, 4)
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, inputs, branch):
        inputs = self.used(inputs) * self.scale
        return self.sometimes(inputs) if branch else inputs


def case_parameters_without_a_gradient_on_some_ranks_or_all():
    for overlap in (False, True):
        torch.manual_seed(3)
        model = Branches()
        mine, optimizer = with_kvstore(model, overlap=overlap)
        theirs, other = with_ddp(model, find_unused_parameters=True)
        for step in range(4):
            for network, stepper in ((mine, optimizer), (theirs, other)):
                stepper.zero_grad()
                network(torch.full((2, 4), 1.0 + kt.rank()), kt.rank() == step % 2).sum().backward()
                stepper.step()
        assert mine.never.weight.grad is None
        assert torch.equal(mine.never.weight, model.never.weight)
        assert mine.sometimes.weight.grad is not None or kt.size() == 1
        assert same_weights(mine, theirs)


def case_a_rank_without_a_backward_pass_contributes_zeros():
    if kt.size() == 1:
        return
    model = torch.nn.Linear(3, 2)
    mine, optimizer = with_kvstore(model)
    if kt.rank() == 0:
        mine(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert torch.allclose(mine.weight.grad, torch.full((2, 3), 1 / kt.size()))
    assert equal_on_all_ranks(mine)


def case_ranks_with_unequal_batches():
    """Against one process that computes the mean over the ranks which have a batch."""
    for overlap in (False, True):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        model.register_parameter("scale", torch.nn.Parameter(torch.tensor(1.0)))
        mine, optimizer = with_kvstore(model, overlap=overlap)
        serial = copy.deepcopy(model)
        stepper = sgd(serial)
        for epoch in range(2):
            batches = [2 + (rank + epoch) % kt.size() for rank in range(kt.size())]
            with optimizer.join():
                for step in range(batches[kt.rank()]):
                    optimizer.zero_grad()
                    (loss_of(mine, 10 * epoch + step) * mine.scale).backward()
                    optimizer.step()
            for step in range(max(batches)):
                stepper.zero_grad()
                ranks = [rank for rank in range(kt.size()) if step < batches[rank]]
                for rank in ranks:
                    loss = loss_of(serial, 10 * epoch + step, rank=rank) * serial.scale
                    (loss / len(ranks)).backward()
                stepper.step()
            assert equal_on_all_ranks(mine)
            for one, other in zip(mine.parameters(), serial.parameters()):
                assert torch.allclose(one, other, 1e-4, 1e-6)
            momentum = [optimizer.state[each]["momentum_buffer"] for each in mine.parameters()]
            for sent in kt.allgather_object(momentum):
                assert all(torch.equal(one, other) for one, other in zip(momentum, sent))


def case_an_exception_inside_of_join_is_raised():
    _, optimizer = with_kvstore(torch.nn.Linear(2, 2))
    with pytest.raises(ZeroDivisionError), optimizer.join():
        raise ZeroDivisionError


def case_it_is_the_same_optimizer_for_schedulers_and_states():
    model = small_model()
    optimizer = torch.optim.SGD(
        [
            {"params": model[0].parameters(), "lr": 0.5},
            {"params": [*model[1].parameters(), *model[4].parameters()]},
        ],
        lr=0.1,
        momentum=0.9,
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    wrapped = kt.DistributedOptimizer(optimizer, model)
    assert wrapped is optimizer
    assert isinstance(wrapped, torch.optim.SGD)
    assert isinstance(wrapped, kt.Distributed)
    loss_of(model, 0).backward()
    wrapped.step()
    scheduler.step()
    assert [group["lr"] for group in wrapped.param_groups] == [0.25, 0.05]
    state = copy.deepcopy(wrapped.state_dict())
    other = sgd(small_model())
    plain = torch.optim.SGD(
        [
            {"params": other.param_groups[0]["params"][:2]},
            {"params": other.param_groups[0]["params"][2:]},
        ],
        lr=1,
    )
    plain.load_state_dict(state)
    wrapped.load_state_dict(plain.state_dict())
    assert wrapped.param_groups[0]["lr"] == 0.25
    assert len(wrapped.state) == 6
    with pytest.raises(kvstore.InvalidArgumentError, match="already"):
        kt.DistributedOptimizer(wrapped, model)
    wrapped.zero_grad(set_to_none=False)
    assert not model[0].weight.grad.any()


def case_closures_see_gradients_and_losses_of_all_ranks():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    optimizer = kt.DistributedOptimizer(optimizer, model)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure)) for _ in range(3)]
    assert losses[2] < losses[0]
    assert len(set(kt.allgather_object(losses[2]))) == 1
    assert equal_on_all_ranks(model)


def case_a_gradient_scaler_skips_a_step_on_all_ranks():
    if not hasattr(torch.amp, "GradScaler"):
        return  # Before PyTorch 2.3 scalers are for CUDA only.
    model = torch.nn.Linear(3, 2)
    mine, optimizer = with_kvstore(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = mine.weight.detach().clone()
    for factor, changes in ((float("inf") if kt.rank() == 0 else 1.0, False), (1.0, True)):
        optimizer.zero_grad()
        scaler.scale(mine(torch.ones(1, 3)).sum() * factor).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(mine.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(mine.weight, before) != changes
    assert equal_on_all_ranks(mine)


def case_two_models_with_the_same_names():
    models = [with_kvstore(torch.nn.Linear(3, 2)) for _ in range(2)]
    for number, (model, optimizer) in enumerate(models):
        model(torch.ones(1, 3)).sum().mul(number + kt.rank()).backward()
        optimizer.step()
        expected = number + (kt.size() - 1) / 2
        assert torch.allclose(model.weight.grad, torch.full((2, 3), expected))


def case_numbers_of_rounds_start_again():
    mine, optimizer = with_kvstore(torch.nn.Linear(3, 2))
    optimizer._kv.gradients.round = kvstore.torch._gradients._ROUNDS - 2
    for _ in range(4):
        optimizer.zero_grad()
        mine(torch.full((1, 3), float(kt.rank()))).sum().backward()
        optimizer.step()
    assert optimizer._kv.gradients.round == (2 if kt.size() > 1 else 2**14 - 2)
    assert equal_on_all_ranks(mine)


def case_long_names():
    model = torch.nn.ModuleDict({"n" * 300: torch.nn.Linear(3, 2)})
    optimizer = kt.DistributedOptimizer(sgd(model), model)
    model["n" * 300](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert equal_on_all_ranks(model)


def case_pairs_of_names_in_the_place_of_a_module():
    model = torch.nn.Linear(3, 2)
    named = [(f"mine.{name}", each) for name, each in model.named_parameters()]
    optimizer = kt.DistributedOptimizer(sgd(model), iter(named))
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert equal_on_all_ranks(model)


def case_halves_and_strides_and_scalars():
    model = torch.nn.Module()
    model.of_0 = torch.nn.Parameter(torch.tensor(1.0))
    model.of_16 = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    model.of_64 = torch.nn.Parameter(torch.ones(2, 3, dtype=torch.float64).T)
    optimizer = kt.DistributedOptimizer(sgd(model, weight_decay=0, momentum=0), model)
    total = model.of_0 + model.of_16.sum() + model.of_64.sum()
    total.mul(1.0 + kt.rank()).backward()
    mean = (kt.size() + 1) / 2
    for each in model.parameters():
        assert torch.allclose(each.grad.double(), torch.tensor(mean, dtype=torch.float64))
    optimizer.step()


def case_compression():
    model = small_model()
    exact, _ = with_kvstore(model)
    mine, optimizer = with_kvstore(model, compression={"type": "fp16"})
    loss_of(mine, 0).backward()
    loss_of(exact, 0).backward()
    for one, other in zip(mine.parameters(), exact.parameters()):
        assert torch.allclose(one.grad, other.grad, 1e-2, 1e-3)
    optimizer.step()
    assert equal_on_all_ranks(torch.nn.ParameterList(mine.parameters()))
    # Other calls are not compressed.
    value = torch.full((3_000_000,), 1.0 + 2**-20)
    assert torch.equal(kt.allreduce(value, "sum"), value * kt.size())


def case_compression_with_a_residual():
    """What a round does not send comes later: the mean over rounds is that of the gradients."""
    mine, optimizer = with_kvstore(
        torch.nn.Linear(3, 2, bias=False), compression={"type": "2bit", "threshold": 0.5}
    )
    total = torch.zeros(2, 3)
    for _ in range(20):
        optimizer.zero_grad()
        mine(torch.full((1, 3), 0.2)).sum().backward()
        total += mine.weight.grad
    expected = torch.full((2, 3), 0.2 * 20)
    assert torch.allclose(total, expected, atol=0.5)
    assert kt.size() == 1 or set(mine.weight.grad.view(-1).tolist()) <= {-0.5, 0.0, 0.5}


def case_residuals_are_saved_and_loaded():
    """Training goes on with the same bits, which it does not without them."""
    folder = kt.broadcast_object(tempfile.mkdtemp() if kt.rank() == 0 else None)
    path = os.path.join(folder, "residuals")
    options = {"compression": {"type": "2bit", "threshold": 0.01}}

    def train(model, optimizer, begin):
        for step in range(begin, begin + 4):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()

    model, optimizer = with_kvstore(small_model(), **options)
    train(model, optimizer, 0)
    optimizer.save_residuals(path)
    weights, states = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, 4)
    for loads in (True, False):
        again = small_model()
        again.load_state_dict(weights)
        resumed = sgd(again)
        resumed.load_state_dict(copy.deepcopy(states))
        resumed = kt.DistributedOptimizer(resumed, again, **options)
        if loads:
            resumed.load_residuals(path)
        train(again, resumed, 4)
        pairs = list(zip(model.parameters(), again.parameters()))
        assert all(torch.equal(*pair) for pair in pairs) == (loads or kt.size() == 1)
    _, plain = with_kvstore(small_model())
    with pytest.raises(kvstore.UnsupportedError, match="has no residuals; pass compression"):
        plain.save_residuals(path)


# Mistakes.


def refused(model, text, make=sgd):
    if kt.size() > 1:
        with pytest.raises(kvstore.DiffersError, match=text):
            kt.DistributedOptimizer(make(model), model)


def case_a_missing_parameter_is_named_on_all_ranks():
    model = torch.nn.ModuleDict({"layer3": torch.nn.Sequential(torch.nn.BatchNorm1d(4))})
    if kt.rank() == 0:
        model["layer4"] = torch.nn.Linear(4, 4)
    refused(model, r"rank 1 has no `layer4.weight`; it is float32\[4, 4\] on rank 0")


def case_a_further_parameter_is_named_on_all_ranks():
    model = torch.nn.ModuleDict({"layer3": torch.nn.Sequential(torch.nn.BatchNorm1d(4))})
    if kt.rank() == 1:
        model["layer4"] = torch.nn.Linear(4, 4)
    refused(model, r"rank 0 has no `layer4.weight`; it is float32\[4, 4\] on rank 1")


def case_another_shape_is_named_on_all_ranks():
    norm = torch.nn.BatchNorm1d(4 + kt.rank())
    model = torch.nn.ModuleDict({"layer3": torch.nn.Sequential(norm)})
    refused(model, r"`layer3.0.weight` is float32\[5\] on rank 1 and float32\[4\] on rank 0")


def case_another_dtype_is_named_on_all_ranks():
    model = torch.nn.ModuleDict({"layer3": torch.nn.Linear(3, 2)})
    if kt.rank() == 1:
        model.double()
    refused(model, r"`layer3.weight` is float64\[2, 3\] on rank 1 and float32\[2, 3\] on rank 0")


def case_another_order_is_named_on_all_ranks():
    def make(model):
        parameters = list(model.parameters())
        return torch.optim.SGD(parameters if kt.rank() == 0 else parameters[::-1], lr=0.1)

    refused(
        torch.nn.Linear(3, 3),
        "another order: number 0 is `bias` on rank 1 and `weight` on rank 0",
        make,
    )


def case_parameters_outside_of_the_model_are_refused():
    model = torch.nn.Linear(3, 2)
    with pytest.raises(kvstore.InvalidArgumentError, match="parameter 0 of group 0"):
        kt.DistributedOptimizer(sgd(torch.nn.Linear(3, 2)), model)


def case_parameters_on_other_devices_are_refused_by_name():
    model = torch.nn.ModuleDict({"layer3": torch.nn.Linear(3, 2, device="meta")})
    text = "`layer3.weight` is on meta, and has no values"
    if kt.size() > 1:
        with pytest.raises(kvstore.UnsupportedError, match=text):
            kt.DistributedOptimizer(sgd(model), model)
    with pytest.raises(kvstore.UnsupportedError, match=text):
        kt.ServerOptimizer("sgd", model, lr=0.1)


def case_a_parameter_that_was_frozen_is_refused_at_the_step():
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    optimizer = kt.DistributedOptimizer(sgd(model), model)
    model.bias.requires_grad_(True)
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(kvstore.UnsupportedError, match="frozen"):
        optimizer.step()


def case_sparse_gradients_are_refused_by_name():
    if kt.size() == 1:
        return
    model = torch.nn.ModuleDict({"words": torch.nn.Embedding(5, 2, sparse=True)})
    optimizer = kt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    with pytest.raises(kvstore.UnsupportedError, match=r"`words\.weight` has a sparse gradient"):
        model["words"](torch.tensor([1, 2])).sum().backward()
    del optimizer


def case_a_second_gradient_in_flight_is_refused():
    """A pass that ends by an exception leaves tickets behind."""
    if kt.size() == 1:
        return
    mine, optimizer = with_kvstore(torch.nn.Linear(3, 2000), overlap=True)
    gradients = optimizer._kv.gradients
    mine.weight.grad = torch.ones(2000, 3)
    gradients._send(mine.weight)
    with pytest.raises(RuntimeError, match="`weight`: a second gradient"):
        gradients._send(mine.weight)


# With what users have around it.


def case_an_exception_in_a_hook_comes_through_backward():
    mine, optimizer = with_kvstore(torch.nn.Linear(3, 2))

    def fail(gradient):
        raise ZeroDivisionError("mine")

    handle = mine.weight.register_hook(fail)
    with pytest.raises(ZeroDivisionError, match="mine"):
        mine(torch.ones(1, 3)).sum().backward()
    handle.remove()
    optimizer.zero_grad()
    mine(torch.full((1, 3), float(kt.rank()))).sum().backward()
    assert equal_on_all_ranks(torch.nn.ParameterList([mine.weight.grad]))
    optimizer.step()
    assert equal_on_all_ranks(mine)


def case_a_compiled_model():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    mine, optimizer = with_kvstore(model)
    theirs, other = with_ddp(model)
    compiled = torch.compile(mine, backend="aot_eager")
    for step in range(3):
        inputs = torch.full((2, 4), 1.0 + kt.rank() + step)
        for network, stepper in ((compiled, optimizer), (theirs, other)):
            stepper.zero_grad()
            network(inputs).sum().backward()
            stepper.step()
    assert all(torch.allclose(a, b) for a, b in zip(mine.parameters(), theirs.parameters()))


def case_checkpointed_layers():
    """Reentrant checkpoints run a backward pass inside of the backward pass."""
    for reentrant in (False, True):
        model = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
        mine, optimizer = with_kvstore(model)
        local = copy.deepcopy(model)
        results = []
        for network in (mine, local):
            inputs = torch.full((2, 4), 1.0 + kt.rank(), requires_grad=True)
            hidden = inputs
            for layer in network:
                hidden = torch.utils.checkpoint.checkpoint(layer, hidden, use_reentrant=reentrant)
            hidden.pow(2).sum().backward()
            results.append([each.grad for each in network.parameters()])
        optimizer.step()
        for averaged, own in zip(*results):
            assert torch.allclose(averaged, kt.allreduce(own), 1e-5)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((3,), float(index))


def case_data_loader_workers():
    for context in ("fork", "spawn"):
        mine, optimizer = with_kvstore(torch.nn.Linear(3, 2))
        loader = torch.utils.data.DataLoader(
            Numbers(), batch_size=4, num_workers=1, multiprocessing_context=context
        )
        for inputs in loader:
            optimizer.zero_grad()
            mine(inputs).sum().backward()
            optimizer.step()
        assert equal_on_all_ranks(mine)
        assert not mine.weight.isnan().any()


def case_unequal_numbers_of_passes_are_an_error_where_they_meet():
    """The last case: ranks do not agree afterwards."""
    if kt.size() == 1:
        return
    mine, optimizer = with_kvstore(torch.nn.Linear(3, 2))
    optimizer._kv.gradients.round = kt.rank()
    with pytest.raises(RuntimeError, match="unequal numbers of backward passes"):
        mine(torch.ones(1, 3)).sum().backward()
