"""SyncBatchNorm beside BatchNorm over the batches of all ranks."""

import copy

import pytest
import torch
from models import equal_on_all_ranks, loss_of, sgd, small_model

import kvstore.torch as kt


def inputs_of(rank, shape, dtype):
    """Each rank has another number of samples; means are large beside their variance."""
    random = torch.Generator().manual_seed(rank)
    return 100 + torch.randn(2 + rank, *shape, generator=random, dtype=dtype)


def compare(make, shape, dtype=torch.float64, **options):
    torch.manual_seed(0)
    whole = make(5, dtype=dtype, **options)
    for each in whole.parameters():
        torch.nn.init.normal_(each)
    mine = kt.SyncBatchNorm.convert(copy.deepcopy(whole))
    assert isinstance(mine, kt.SyncBatchNorm)
    for _ in range(2):
        inputs = [inputs_of(rank, shape, dtype).requires_grad_() for rank in range(kt.size())]
        expected = whole(torch.cat(inputs)).sin()
        expected.sum().backward()
        own = inputs[kt.rank()].detach().clone().requires_grad_()
        output = mine(own).sin()
        output.sum().backward()
        begin = sum(len(each) for each in inputs[: kt.rank()])
        close = (
            {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-3}
        )
        assert torch.allclose(output, expected[begin : begin + len(own)], **close)
        assert torch.allclose(own.grad, inputs[kt.rank()].grad, **close)
    for one, other in zip(mine.parameters(), whole.parameters()):
        assert torch.allclose(kt.allreduce(one.grad, "sum"), other.grad, **close)
    for one, other in zip(mine.buffers(), whole.buffers()):
        assert torch.allclose(one.double(), other.double(), **close)
    mine.eval()
    whole.eval()
    assert torch.allclose(mine(own), whole(own), **close)


def case_outputs_gradients_and_averages_of_every_form():
    compare(torch.nn.BatchNorm1d, (5,))
    compare(torch.nn.BatchNorm1d, (5, 7))
    compare(torch.nn.BatchNorm2d, (5, 3, 4))
    compare(torch.nn.BatchNorm3d, (5, 2, 3, 2))
    compare(torch.nn.BatchNorm2d, (5, 3, 4), affine=False)
    compare(torch.nn.BatchNorm2d, (5, 3, 4), momentum=None)
    compare(torch.nn.BatchNorm2d, (5, 3, 4), track_running_stats=False)


def case_float32():
    compare(torch.nn.BatchNorm2d, (5, 3, 4), torch.float32)


def case_a_converted_model_trains_with_equal_buffers():
    model = kt.SyncBatchNorm.convert(small_model())
    assert isinstance(model[1], kt.SyncBatchNorm)
    assert kt.SyncBatchNorm.convert(model) is model
    assert set(model.state_dict()) == set(small_model().state_dict())
    optimizer = kt.DistributedOptimizer(sgd(model), model)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    assert equal_on_all_ranks(model)


def case_other_inputs_are_refused():
    with pytest.raises(ValueError, match="dimension"):
        kt.SyncBatchNorm(3)(torch.ones(3))
    if kt.size() > 1:
        with pytest.raises(ValueError, match="more than one value"):
            kt.SyncBatchNorm(3)(torch.ones(0, 3))
