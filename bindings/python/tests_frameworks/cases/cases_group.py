"""The process group "kv" beside gloo's, in the same processes, on every number of ranks."""

import warnings

import pytest
import torch
import torch.distributed as dist
from models import needs_pytorch, small_model

import kvstore
import kvstore.torch as kt

BACKEND = "kv"

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
OPAQUE = [torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn]
# Those that gloo reduces.
OF_GLOO = [torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64]
COUNTS = (0, 1, 7, 4096, 5000, 100_003)
_gloo = []


def gloo():
    if not _gloo:
        _gloo.append(dist.new_group(backend="gloo"))
    return _gloo[0]


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def of_rank(rank, shape, dtype):
    """Other values on each rank: any of integers, moderate ones of floats."""
    random = torch.Generator().manual_seed(1000 + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=random).bool()
    if dtype in INTEGERS:
        limits = torch.iinfo(dtype)
        drawn = torch.randint(-(2**62), 2**62, shape, generator=random)
        return drawn.remainder(limits.max).to(dtype)
    drawn = torch.randn(shape, generator=random, dtype=torch.float64).mul(3)
    return (drawn + 1j * drawn).to(dtype) if dtype.is_complex else drawn.to(dtype)


def of_all(shape, dtype):
    return [of_rank(each, shape, dtype) for each in range(size())]


def sum_of(values):
    """By rank, narrow floats in float32, rounded once."""
    narrow = values[0].dtype in (torch.float16, torch.bfloat16)
    total = values[0].float() if narrow else values[0].clone()
    for value in values[1:]:
        total = total + value.to(total.dtype)
    return total.to(values[0].dtype)


def extreme_of(values, choose):
    result = values[0]
    for value in values[1:]:
        result = choose(result, value)
    return result


def same(one, other):
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    as_bytes = [each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    assert torch.equal(*as_bytes), (one, other)


def case_the_group_says_what_it_is():
    assert dist.get_backend() == "kv"
    assert (dist.get_rank(), dist.get_world_size()) == (kt.rank(), kt.size())
    group = dist.group.WORLD
    assert group.name() == "kv"
    assert group.group_name == dist.distributed_c10d._world.pg_names[group]
    assert dist.get_process_group_ranks(group) == list(range(size()))


def case_sums_are_by_rank_and_those_of_integers_are_gloos():
    for dtype in FLOATS + INTEGERS:
        for count in COUNTS:
            values = of_all((count,), dtype)
            found, reference = values[rank()].clone(), values[rank()].clone()
            dist.all_reduce(found)
            same(found, sum_of(values))
            if dtype in OF_GLOO and count and (dtype in INTEGERS or size() == 2):
                dist.all_reduce(reference, group=gloo())
                same(found, reference)


def case_largest_and_smallest_are_gloos():
    for dtype in FLOATS + INTEGERS:
        for op, choose in ((dist.ReduceOp.MAX, torch.maximum), (dist.ReduceOp.MIN, torch.minimum)):
            values = of_all((999,), dtype)
            found, reference = values[rank()].clone(), values[rank()].clone()
            dist.all_reduce(found, op)
            if dtype in OF_GLOO:
                dist.all_reduce(reference, op, gloo())
                same(found, reference)
            same(found, extreme_of(values, choose))


def case_means():
    for dtype in FLOATS:
        values = of_all((999,), dtype)
        found = values[rank()].clone()
        dist.all_reduce(found, dist.ReduceOp.AVG)
        total = sum_of([value.double() for value in values]) / size()
        tolerance = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float64: 1e-12}.get(
            dtype, 1e-6
        )
        assert torch.allclose(found.double(), total, tolerance, 10 * tolerance)
        if dtype == torch.float64 and size() == 2:
            same(found, total)


def case_bools_by_and_and_or_are_gloos():
    for op in ("MAX", "MIN", "SUM", "BAND", "BOR", "PRODUCT"):
        for shape in ((), (9,), (5000,)):
            found = of_rank(rank(), shape, torch.bool)
            reference = found.clone()
            dist.all_reduce(found, getattr(dist.ReduceOp, op))
            dist.all_reduce(reference, getattr(dist.ReduceOp, op), gloo())
            # Gloo's own bytes of a bool are also others than 0 and 1.
            assert found.tolist() == reference.tolist()
            assert found.view(torch.uint8).max() <= 1


def case_sums_of_complex_numbers():
    for dtype in (torch.complex64, torch.complex128):
        values = of_all((33,), dtype)
        found = values[rank()].clone()
        dist.all_reduce(found)
        same(found, sum_of(values))


def case_tensors_with_strides_are_filled_in_place():
    values = [of_rank(each, (4, 6), torch.float32) for each in range(size())]
    room = torch.full((6, 8), -1.0)
    view = room.T[1:5, :6]
    view.copy_(values[rank()])
    dist.all_reduce(view)
    same(view.contiguous(), sum_of(values))
    assert (room[:, 0] == -1).all()
    assert (room[:, 5:] == -1).all()
    view.copy_(values[rank()])
    dist.all_reduce(view, async_op=True).wait()
    same(view.contiguous(), sum_of(values))
    view.copy_(values[rank()])
    dist.broadcast(view, size() - 1)
    same(view.contiguous(), values[-1])
    view.copy_(values[rank()])
    dist.reduce(view, 0)
    same(view.contiguous(), sum_of(values) if rank() == 0 else values[rank()])
    outs = [torch.zeros(6, 4).T for _ in range(size())]
    dist.all_gather(outs, values[rank()].T.contiguous().T)
    for out, value in zip(outs, values):
        same(out.contiguous(), value)


def case_a_tensor_of_a_gradient_and_the_counter_of_its_changes():
    weight = torch.nn.Parameter(torch.full((3,), float(rank())))
    version = weight._version
    with torch.no_grad():
        dist.broadcast(weight, size() - 1)
    assert weight.tolist() == [size() - 1.0] * 3
    assert weight._version > version


def case_reduce_to_each_root():
    for root in range(size()):
        for shape in ((0,), (7,), (5000,)):
            values = of_all(shape, torch.float64)
            found = values[rank()].clone()
            dist.reduce(found, root)
            same(found, sum_of(values) if rank() == root else values[rank()])


def case_broadcast_of_each_dtype_from_each_root():
    for dtype in FLOATS + INTEGERS + OPAQUE:
        for root in range(size()):
            for shape in ((), (0, 3), (7,), (70, 100)):
                found = of_rank(rank(), shape, dtype)
                dist.broadcast(found, root)
                same(found, of_rank(root, shape, dtype))


def case_allgather_of_each_dtype():
    for dtype in FLOATS + INTEGERS + OPAQUE:
        for shape in ((), (0, 3), (7,), (3, 2000)):
            values = of_all(shape, dtype)
            outs = [torch.empty_like(values[0]) for _ in values]
            dist.all_gather(outs, values[rank()])
            for out, value in zip(outs, values):
                same(out, value)


def case_allgather_of_unequal_lengths():
    values = [of_rank(each, (3 + 5 * each, 2), torch.float32) for each in range(size())]
    outs = [torch.empty_like(value) for value in values]
    dist.all_gather(outs, values[rank()])
    for out, value in zip(outs, values):
        same(out, value)


def case_allgather_into_one_tensor():
    for shape in ((4,), (3, 5), (0, 2), (3, 2000)):
        values = of_all(shape, torch.float32)
        out = torch.empty(size() * shape[0], *shape[1:])
        dist.all_gather_into_tensor(out, values[rank()])
        same(out, torch.cat(values))
        stacked = torch.empty(size(), *shape)
        dist.all_gather_into_tensor(stacked, values[rank()])
        same(stacked, torch.stack(values))
        flat = torch.empty(size() * values[0].numel())
        dist.all_gather_into_tensor(flat, values[rank()])
        same(flat, torch.cat(values).reshape(-1))
    strided = torch.zeros(5, 2 * size()).T
    values = of_all((2, 5), torch.float32)
    dist.all_gather_into_tensor(strided, values[rank()], async_op=True).wait()
    same(strided.contiguous(), torch.cat(values))


def case_reduce_scatter():
    for shape in ((4,), (0,), (3, 2000)):
        lists = [
            [of_rank(100 * each + to, shape, torch.float64) for to in range(size())]
            for each in range(size())
        ]
        expected = sum_of([values[rank()] for values in lists])
        out = torch.empty(shape, dtype=torch.float64)
        dist.reduce_scatter(out, lists[rank()])
        same(out, expected)
        out.zero_()
        dist.reduce_scatter_tensor(out, torch.cat(lists[rank()]))
        same(out, expected)
        out.zero_()
        dist.reduce_scatter_tensor(out, torch.stack(lists[rank()]), async_op=True).wait()
        same(out, expected)
        dist.reduce_scatter_tensor(out, torch.cat(lists[rank()]), dist.ReduceOp.MAX)
        same(out, extreme_of([values[rank()] for values in lists], torch.maximum))


def case_gather_and_scatter_of_each_root():
    for root in range(size()):
        values = of_all((5,), torch.float32)
        outs = [torch.empty(5) for _ in values] if rank() == root else None
        dist.gather(values[rank()], outs, dst=root)
        for out, value in zip(outs or (), values):
            same(out, value)
        out = torch.empty(5)
        dist.scatter(out, values if rank() == root else None, src=root)
        same(out, values[rank()])


def case_gather_into_one_tensor():
    if not hasattr(dist, "gather_single"):
        return
    values = of_all((5, 2), torch.float32)
    out = torch.empty(5 * size(), 2) if rank() == 0 else None
    dist.gather_single(values[rank()], out, dst=0)
    if out is not None:
        same(out, torch.cat(values))


def case_all_to_all_of_unequal_lengths():
    def sent(one, to):
        return torch.full((one + 2 * to,), float(10 * one + to))

    outs = [torch.empty_like(sent(each, rank())) for each in range(size())]
    dist.all_to_all(outs, [sent(rank(), to) for to in range(size())])
    for each, out in enumerate(outs):
        same(out, sent(each, rank()))


def case_all_to_all_of_rows():
    def rows(one, to):
        return torch.full((1 + (one + to) % 3, 4), float(10 * one + to))

    mine = [rows(rank(), to) for to in range(size())]
    wanted = torch.cat([rows(each, rank()) for each in range(size())])
    in_splits = [len(each) for each in mine]
    out_splits = [len(rows(each, rank())) for each in range(size())]
    for group in (None, gloo()):
        out = torch.empty_like(wanted)
        dist.all_to_all_single(out, torch.cat(mine), out_splits, in_splits, group=group)
        same(out, wanted)
    out = torch.empty(2 * size(), 3)
    dist.all_to_all_single(out, torch.arange(6.0 * size()).reshape(-1, 3) + 100 * rank())
    part = torch.arange(6.0).reshape(2, 3) + 6 * rank()
    same(out, torch.cat([part + 100 * each for each in range(size())]))


def case_coalesced_calls():
    manager = dist.distributed_c10d._coalescing_manager
    shapes = [(3,), (0,), (2, 5), (9000,)]
    expected = [sum_of(of_all(shape, torch.float32)) for shape in shapes]
    tensors = [of_rank(rank(), shape, torch.float32) for shape in shapes]
    with manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor, each in zip(tensors, expected):
        same(tensor, each)
    outs = [torch.empty(size(), *shape) for shape in shapes]
    tensors = [of_rank(rank(), shape, torch.float32) for shape in shapes]
    with manager(async_ops=True) as works:
        for out, tensor in zip(outs, tensors):
            dist.all_gather_into_tensor(out, tensor)
    works.wait()
    for out, shape in zip(outs, shapes):
        same(out, torch.stack(of_all(shape, torch.float32)))
    parts = [torch.empty(shape) for shape in shapes]
    with manager():
        for part, tensor in zip(parts, tensors):
            dist.reduce_scatter_tensor(part, torch.stack([tensor] * size()))
    for part, each in zip(parts, expected):
        same(part, each)
    tensors = [of_rank(rank(), shape, torch.float32) for shape in shapes]
    with manager(device=torch.device("cpu")):
        for tensor in tensors:
            dist.broadcast(tensor, 0)
    for tensor, shape in zip(tensors, shapes):
        same(tensor, of_rank(0, shape, torch.float32))


def case_coalesced_calls_of_older_programs():
    warnings.simplefilter("ignore", FutureWarning)
    shapes = [(3,), (2, 5)]
    values = [of_all(shape, torch.float32) for shape in shapes]
    mine = [each[rank()].clone() for each in values]
    outs = [[torch.empty(shape) for shape in shapes] for _ in range(size())]
    dist.all_gather_coalesced(outs, mine)
    for number, listed in enumerate(outs):
        for out, each in zip(listed, values):
            same(out, each[number])
    dist.all_reduce_coalesced(mine)
    for tensor, each in zip(mine, values):
        same(tensor, sum_of(each))


def case_objects():
    value = {"rank": rank(), "text": "x" * 1000 * rank(), "tensor": torch.ones(3) * rank()}
    found = [None] * size()
    dist.all_gather_object(found, value)
    assert [each["rank"] for each in found] == list(range(size()))
    assert [len(each["text"]) for each in found] == [1000 * each for each in range(size())]
    for root in range(size()):
        listed = [rank(), "of " + str(rank())]
        dist.broadcast_object_list(listed, src=root)
        assert listed == [root, f"of {root}"]
        found = [None] * size() if rank() == root else None
        dist.gather_object(value["rank"], found, dst=root)
        assert found in (None, list(range(size())))
        out = [None]
        dist.scatter_object_list(out, list(range(size())) if rank() == root else None, src=root)
        assert out == [rank()]


def case_works_end_in_any_way_they_are_asked():
    values = of_all((5000,), torch.float32)
    tensors = [values[rank()].clone() for _ in range(6)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    assert works[5].get_future().wait()[0] is tensors[5]
    assert works[5].get_future() is works[5].get_future()
    doubled = works[4].get_future().then(lambda future: future.value()[0] * 2)
    same(doubled.wait(), 2 * sum_of(values))
    for work in works:
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
    assert works[0].result()[0] is tensors[0]
    for tensor in tensors:
        same(tensor, sum_of(values))
    assert dist.barrier(async_op=True).wait()


def case_a_dropped_work_goes_on():
    tensors = [torch.full((5000,), float(rank())) for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=True)
        dist.barrier()
        dist.all_reduce(tensors[0], async_op=True).wait()
    total = size() * (size() - 1) / 2
    assert [tensor[0] for tensor in tensors] == [total * size(), total, total]


def case_a_tensor_is_filled_once_however_often_its_work_is_asked():
    room = torch.full((4, 4), float(rank())).T
    other = torch.zeros(4, 4)[:, ::2]
    work = dist.all_reduce(room[:, ::2], async_op=True)
    dropped = dist.broadcast(other, 0, async_op=True)
    work.wait()
    assert room[0].tolist() == [size() * (size() - 1) / 2, rank()] * 2
    room.fill_(7)
    dist.barrier()
    del dropped
    work.wait()
    assert work.is_success()
    dist.barrier(async_op=True).wait()
    assert room.unique().tolist() == [7]


def case_a_wait_with_a_timeout_leaves_the_call_as_it_is():
    if size() == 1:
        return
    import datetime
    import time

    if rank():
        dist.barrier(gloo())
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    if rank() == 0:
        with pytest.raises(kvstore.TimeoutError):
            work.wait(datetime.timedelta(milliseconds=50))
        assert not work.is_completed()
        assert work.exception() is None
        time.sleep(0.1)
        dist.barrier(gloo())
    work.wait()
    assert tensor.tolist() == [size()] * 3


def case_functional_collectives():
    needs_pytorch(2, 6)
    functional = pytest.importorskip("torch.distributed._functional_collectives")
    warnings.simplefilter("ignore", FutureWarning)
    group = dist.group.WORLD
    values = of_all((size(), 3), torch.float32)
    mine = values[rank()]
    same(functional.all_reduce(mine, "sum", group) + 0, sum_of(values))
    same(functional.all_gather_tensor(mine, 0, group) + 0, torch.cat(values))
    scattered = functional.reduce_scatter_tensor(mine, "sum", 0, group)
    same(scattered + 0, sum_of(values)[rank() : rank() + 1])
    exchanged = functional.all_to_all_single(mine, None, None, group)
    same(exchanged + 0, torch.stack([value[rank()] for value in values]))
    same(functional.broadcast(mine, size() - 1, group) + 0, values[-1])
    pair = functional.all_reduce_coalesced([mine, 2 * mine], "sum", group)
    same(pair[0] + 0, sum_of(values))
    same(pair[1] + 0, sum_of([2 * value for value in values]))
    gathered = functional.all_gather_into_tensor_coalesced([mine, 2 * mine], group)
    same(gathered[0] + 0, torch.cat(values))
    same(gathered[1] + 0, 2 * torch.cat(values))
    parts = functional.reduce_scatter_tensor_coalesced([mine], "sum", [0], group)
    same(parts[0] + 0, sum_of(values)[rank() : rank() + 1])


def case_a_distributed_tensor():
    needs_pytorch(2, 6)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size(),))
    whole = torch.arange(24.0).reshape(8, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    same(sharded.full_tensor(), whole)
    same(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert sharded.sum().full_tensor() == whole.sum()


# Models.


def train(model, parameters, steps=6, inputs=(4, 1, 8, 8), **options):
    """The losses of some steps; each rank has batches of its own."""
    random = torch.Generator().manual_seed(rank())
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(inputs, generator=random)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def compare(ours, theirs, relative=1e-4):
    if size() <= 2:
        assert [each.item() for each in ours] == [each.item() for each in theirs]
    else:
        assert torch.allclose(torch.stack(ours), torch.stack(theirs), relative, 1e-6)
    assert len(set(map(float, ours))) > 1


def case_losses_of_ddp_are_gloos():
    warnings.simplefilter("ignore", FutureWarning)
    for options in (
        {},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"bucket_cap_mb": 0.001},
        {"gradient_as_bucket_view": True},
    ):
        losses, states = [], []
        for group in (None, gloo()):
            model = small_model(seed=rank())
            wrapped = torch.nn.parallel.DistributedDataParallel(
                model, process_group=group, **options
            )
            losses.append(train(wrapped, wrapped.parameters()))
            states.append(model.state_dict())
        compare(*losses)
        if size() <= 2:
            for one, other in zip(*(state.values() for state in states)):
                same(one, other)


def case_ddp_without_sync_and_with_join():
    results = []
    for group in (None, gloo()):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        with wrapped.no_sync():
            wrapped(torch.ones(1, 3) * rank()).sum().backward()
        wrapped(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        with wrapped.join():
            for number in range(1 + rank()):
                optimizer.zero_grad()
                wrapped(torch.ones(1, 3) * number).sum().backward()
                optimizer.step()
        results.append([each.detach().clone() for each in model.parameters()])
    for one, other in zip(*results):
        assert torch.allclose(one, other, 1e-5)
        if size() <= 2:
            same(one, other)


def mlp():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(5, 33), torch.nn.ReLU(), torch.nn.Linear(33, 4))


def case_losses_of_fully_shard_are_gloos():
    needs_pytorch(2, 6)
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    from torch.distributed.device_mesh import DeviceMesh

    losses = []
    for group in (dist.group.WORLD, gloo()):
        model = mlp()
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in (model[0], model[2], model):
            fsdp.fully_shard(layer, mesh=mesh)
        losses.append(train(model, model.parameters(), inputs=(8, 5)))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        losses[-1].append(norm.full_tensor())
        weights = model[0].weight.full_tensor()
        losses[-1].append(weights.sum().detach())
    compare(*losses)


def case_losses_of_fully_sharded_data_parallel_are_gloos():
    needs_pytorch(2, 6)
    from torch.distributed.fsdp import FullyShardedDataParallel

    warnings.simplefilter("ignore")
    losses = []
    for group in (None, gloo()):
        model = FullyShardedDataParallel(
            mlp(), process_group=group, device_id=torch.device("cpu"), use_orig_params=True
        )
        losses.append(train(model, model.parameters(), inputs=(8, 5)))
        losses[-1].append(model.clip_grad_norm_(0.1))
    compare(*losses)


def case_a_checkpoint_of_a_sharded_model():
    needs_pytorch(2, 6)
    import shutil
    import tempfile

    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    folder = [tempfile.mkdtemp() if rank() == 0 else None]
    dist.broadcast_object_list(folder)
    model = mlp()
    fully_shard(model, mesh=init_device_mesh("cpu", (size(),)))
    before = [each.full_tensor().detach().clone() for each in model.parameters()]
    checkpoint.save(model.state_dict(), checkpoint_id=folder[0])
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    state = model.state_dict()
    checkpoint.load(state, checkpoint_id=folder[0])
    model.load_state_dict(state)
    for each, old in zip(model.parameters(), before):
        same(each.full_tensor().detach(), old)
    dist.barrier()
    if rank() == 0:
        shutil.rmtree(folder[0])


def case_buckets_go_through_the_hooks_of_pytorch():
    # An earlier gloo has no bfloat16.
    needs_pytorch(2, 6)
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    losses = []
    for group in (None, gloo()):
        wrapped = torch.nn.parallel.DistributedDataParallel(small_model(), process_group=group)
        wrapped.register_comm_hook(group or dist.group.WORLD, default_hooks.bf16_compress_hook)
        losses.append(train(wrapped, wrapped.parameters()))
    # Gloo rounds each sum of two to bfloat16.
    compare(*losses, relative=0.05)


# Groups.


def case_groups_of_all_ranks_and_of_one():
    group = dist.new_group()
    tensor = torch.ones(3) * rank()
    dist.all_reduce(tensor, group=group)
    assert tensor[0] == size() * (size() - 1) / 2
    groups = [dist.new_group([each]) for each in range(size())]
    alone = groups[rank()]
    assert (alone.rank(), alone.size()) == (0, 1)
    tensor = torch.ones(3) * rank()
    dist.all_reduce(tensor, group=alone)
    assert tensor[0] == rank()
    found = [None]
    dist.all_gather_object(found, rank(), group=alone)
    assert found == [rank()]
    for each in (alone, group):
        dist.destroy_process_group(each)
    dist.all_reduce(tensor)


def case_groups_of_some_ranks():
    if size() < 4:
        return
    even, odd = dist.new_group([0, 2]), dist.new_group([1, 3])
    mine, members = (odd, [1, 3]) if rank() % 2 else (even, [0, 2])
    assert dist.get_process_group_ranks(mine) == members
    values = of_all((5000,), torch.float32)
    found = values[rank()].clone()
    dist.all_reduce(found, group=mine)
    same(found, sum_of([values[each] for each in members]))
    found = values[rank()].clone()
    dist.broadcast(found, members[1], group=mine)
    same(found, values[members[1]])
    outs = [torch.empty(5000) for _ in members]
    dist.all_gather(outs, values[rank()], group=mine)
    for out, each in zip(outs, members):
        same(out, values[each])
    overlapping = dist.new_group([0, 1, 2])
    if rank() < 3:
        found = values[rank()].clone()
        dist.all_reduce(found, group=overlapping)
        same(found, sum_of(values[:3]))
    dist.barrier()
    dist.destroy_process_group(mine)


def case_losses_of_shards_with_replicas_are_those_of_shards_alone():
    if size() < 4:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    losses = []
    for shape, names in (((2, 2), ("replicas", "shards")), ((4,), ("shards",))):
        model = mlp()
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        losses.append(train(model, model.parameters(), inputs=(8, 5)))
    compare(*losses)


# Refusals.

REFUSED = {
    "PRODUCT": lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.PRODUCT),
    "BAND": lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.BAND),
    "BOR": lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.BOR),
    "BXOR": lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.BXOR),
    "AVG": lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG),
    "float8": lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e5m2)),
    "sparse": lambda: dist.all_reduce(torch.ones(2, 2).to_sparse()),
    "meta": lambda: dist.all_reduce(torch.ones(2, device="meta")),
    "send": lambda: dist.send(torch.ones(1), (rank() + 1) % size()),
    "recv": lambda: dist.recv(torch.ones(1), (rank() + 1) % size()),
    "recv_anysource": lambda: dist.recv(torch.ones(1)),
    "isend": lambda: dist.isend(torch.ones(1), (rank() + 1) % size()),
    "batch_isend_irecv": lambda: dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, torch.ones(1), (rank() + 1) % size())]
    ),
    "monitored_barrier": lambda: dist.monitored_barrier(),
}


def case_what_is_not_there_is_refused_with_a_remedy_and_later_calls_work():
    remedies = "SUM|gather|convert|copy|gloo|GLOO|to_dense|barrier"
    for name, call in REFUSED.items():
        if size() == 1 and ("send" in name or name == "recv"):
            continue  # PyTorch refuses a process itself.
        errors = (kvstore.UnsupportedError,)
        if name == "monitored_barrier":
            errors += (RuntimeError,)  # PyTorch 2.1 refuses it itself.
        with pytest.raises(errors, match=remedies):
            call()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor[0] == size()


def case_lists_and_lengths_that_do_not_fit_are_refused_before_anything_moves():
    for call, text in (
        (lambda: dist.all_gather([torch.ones(2)] * (size() + 1), torch.ones(2)), "for each of"),
        (lambda: dist.all_gather_into_tensor(torch.ones(2 * size() + 1), torch.ones(2)), "times"),
        (lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(3 * size())), "times"),
        (lambda: dist.all_to_all_single(torch.ones(size()), torch.ones(2), [9]), "splits|for each"),
    ):
        with pytest.raises((kvstore.KVStoreError, RuntimeError, ValueError), match=text):
            call()
    dist.barrier()
