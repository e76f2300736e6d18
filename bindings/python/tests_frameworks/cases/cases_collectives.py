"""Calls without keys, on every number of ranks."""

import pytest
import torch
from models import small_model

import kvstore
import kvstore.torch as kt

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def of_rank(rank, count, dtype=torch.float32):
    random = torch.Generator().manual_seed(rank)
    return torch.randn(count, generator=random, dtype=torch.float64).mul(3).to(dtype)


def case_sums_of_every_dtype_and_of_all_sizes():
    for dtype in DTYPES + INTEGERS:
        for count in (1, 1023, 1024, 5000):
            values = [of_rank(rank, count, dtype) for rank in range(kt.size())]
            expected = sum(values[1:], values[0].clone())
            result = kt.allreduce(values[kt.rank()], "sum")
            assert result.dtype == dtype
            tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-6)
            assert torch.allclose(result.double(), expected.double(), tolerance, 10 * tolerance)


def case_a_large_sum_passes_in_blocks():
    values = [of_rank(rank, 5_000_003) for rank in range(kt.size())]
    result = kt.allreduce(values[kt.rank()], op="sum")
    assert torch.equal(result, sum(values[1:], values[0].clone()))


def case_shapes_and_strides_stay():
    value = torch.arange(12.0).reshape(3, 4).T
    mean = kt.allreduce(value)
    assert torch.equal(mean, value)
    assert kt.allreduce(torch.tensor(2.5)).shape == ()
    assert kt.allreduce(torch.empty(0, 3)).shape == (0, 3)
    gradient = torch.ones(3, requires_grad=True)
    assert not kt.allreduce(gradient).requires_grad


def case_numbers():
    n = kt.size()
    assert kt.allreduce(float(kt.rank())) == (n - 1) / 2
    assert kt.allreduce(kt.rank(), "sum") == n * (n - 1) // 2
    assert isinstance(kt.allreduce(1, "sum"), int)


def case_what_cannot_be_added_is_refused():
    for value, op in [(torch.ones(2, dtype=torch.int64), "mean"), (torch.tensor(True), "sum")]:
        with pytest.raises(kvstore.UnsupportedError):
            kt.allreduce(value, op)
    with pytest.raises(kvstore.InvalidArgumentError, match="max"):
        kt.allreduce(torch.ones(2), "max")


def case_objects_of_all_ranks_by_rank():
    for count in (0, 10, 4000, 200_000):
        mine = {"rank": kt.rank(), "text": "x" * (count * kt.rank()), "t": torch.ones(3)}
        found = kt.allgather_object(mine)
        assert [each["rank"] for each in found] == list(range(kt.size()))
        assert [len(each["text"]) for each in found] == [count * r for r in range(kt.size())]


def case_an_object_of_each_root():
    for root in range(kt.size()):
        value = {"from": kt.rank(), "text": "x" * 100_000}
        assert kt.broadcast_object(value, root)["from"] == root
    with pytest.raises(kvstore.InvalidArgumentError, match="root is 9"):
        kt.broadcast_object(1, root=9)


class Executed:
    def __reduce__(self):
        return print, ("executed",)


def case_objects_bring_no_code():
    with pytest.raises(Exception, match=r"[Ww]eights.only|weights_only"):
        kt.allgather_object(Executed())


def case_parameters_and_buffers_of_a_root():
    root = kt.size() - 1
    model = small_model(seed=kt.rank())
    model.register_buffer("mask", torch.tensor([kt.rank() > 0, False]))
    model.register_buffer("complex", torch.full((2,), 1j * kt.rank()))
    model[0].weight.data = model[0].weight.data.to(memory_format=torch.channels_last)
    model[1].num_batches_tracked += kt.rank()
    addresses = [each.data_ptr() for each in model.state_dict().values()]
    kt.broadcast_parameters(model, root)
    assert addresses == [each.data_ptr() for each in model.state_dict().values()]
    expected = small_model(seed=root)
    assert torch.equal(model[4].weight, expected[4].weight)
    assert torch.equal(model[0].weight, expected[0].weight)
    assert model[1].num_batches_tracked == root
    assert model.mask[0] == (root > 0)
    assert model.complex[1] == 1j * root


def case_the_state_of_an_optimizer():
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 + kt.rank())
    model(torch.ones(2, 1, 8, 8)).mul(1 + kt.rank()).sum().backward()
    optimizer.step()
    kt.broadcast_optimizer_state(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1
    averages = [optimizer.state[each]["exp_avg"] for each in model.parameters()]
    for sent in kt.allgather_object(averages):
        assert all(torch.equal(one, other) for one, other in zip(averages, sent))


def case_another_parameter_is_named_on_all_ranks():
    if kt.size() == 1:
        return
    names = {"a": torch.zeros(3), "layer3.0.bn1.weight" if kt.rank() else "b": torch.zeros(2)}
    with pytest.raises(kvstore.DiffersError, match="rank 1 has no `b`"):
        kt.broadcast_parameters(names)


def keys_of_collectives():
    listed = kt.store().keys()
    return {key for key in listed if str(key).startswith("kvstore.torch/")}


def case_memory_of_servers_is_bounded():
    """By a few keys, whatever was sent."""
    kept = keys_of_collectives()
    for count in range(1, 40):
        kt.allreduce(torch.ones(count * 777))
        kt.allgather_object("x" * count * 1000)
        kt.broadcast_object("x" * count * 1000)
    assert keys_of_collectives() == kept
    assert len(kept) <= 10


def case_barrier():
    kt.barrier(timeout=60)


def case_a_sampler_gives_each_rank_another_part_in_each_epoch():
    data = list(range(40))
    sampler = kt.sampler(data)
    epochs = [list(sampler) for _ in range(2)]
    for epoch in epochs:
        parts = kt.allgather_object(epoch)
        assert sorted(index for part in parts for index in part) == data
    assert epochs[0] != epochs[1]
    assert list(kt.sampler(data, shuffle=False)) == data[kt.rank() :: kt.size()]
