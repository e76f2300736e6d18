"""The backend of ray.util.collective on a real local Ray, against numpy."""

import os
import signal
import sys
import time

import numpy as np
import pytest

ray = pytest.importorskip("ray")
from ray.util import collective  # noqa: E402

import kvstore  # noqa: E402
import kvstore.ray  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_cluster")
# Actors need not import this file.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

# Seconds in which all ranks know of a loss: 1.3 for a killed worker, and time for a busy machine.
DEADLINE = 12


@ray.remote(num_cpus=0)
class Member:
    def setup(self, size, rank, group="default"):
        self.size, self.rank = size, rank
        collective.init_collective_group(size, rank, kvstore.ray.backend(), group)

    def reduced(self, op, convert=None):
        """allreduce, reduce to rank 1 and reducescatter."""
        make = convert or (lambda each: each)
        whole, there = make(values(self.rank)), make(values(self.rank))
        collective.allreduce(whole, op=op)
        collective.reduce(there, dst_rank=1, op=op)
        part = make(np.zeros(4, "float32"))
        parts = [make(values(self.rank) + place) for place in range(self.size)]
        collective.reducescatter(part, parts, op=op)
        return [each.tolist() for each in (whole, there, part)]

    def moved(self, dtype):
        """broadcast of rank 1 and allgather."""
        mine, root = values(self.rank).astype(dtype), values(self.rank).astype(dtype)
        collective.broadcast(root, src_rank=1)
        everything = [np.zeros(4, dtype) for _ in range(self.size)]
        collective.allgather(everything, mine)
        empty = np.zeros((0, 2), dtype)
        collective.broadcast(empty)
        collective.barrier()
        return root.tolist(), [each.tolist() for each in everything]

    def error_of(self, call, arrays, copy=True):
        array = arrays[self.rank]
        try:
            getattr(collective, call)(array.copy() if copy else array)
        except kvstore.KVStoreError as error:
            return f"{type(error).__name__}: {error}"
        return None

    def message(self):
        with pytest.raises(NotImplementedError, match="no messages between two workers"):
            collective.send(np.ones(1), 1 - self.rank)
        with pytest.raises(NotImplementedError, match="no messages between two workers"):
            collective.recv(np.ones(1), 1 - self.rank)

    def many_shapes(self):
        """Many shapes, twice; the number of keys."""
        for length in [*range(1, 101), *range(1, 101)]:
            array = np.full(length, self.rank + 1.0)
            collective.allreduce(array)
            assert array.tolist() == [sum(range(1, self.size + 1))] * length
        store = collective.get_group_handle()._store
        return len(store.keys())

    def survive(self):
        array = np.ones(3)
        collective.allreduce(array)
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(kvstore.PeerLostError, match=r"allreduce: .*worker 1"):
            collective.allreduce(array)
        return time.monotonic() - began

    def declared(self):
        kvstore.ray.backend()
        array = np.full(2, 1.5)
        collective.allreduce(array, "declared")
        return array.tolist(), collective.get_rank("declared")

    def end(self):
        collective.destroy_collective_group()


def values(rank):
    return np.float32([1, -2, 3, 0.5]) * (rank + 1) + rank


@pytest.fixture
def group(ray_cluster):
    made = []

    def members(size):
        made.extend(Member.remote() for _ in range(size))
        ray.get([each.setup.remote(size, rank) for rank, each in enumerate(made)])
        return made

    yield members
    for each in made:
        ray.kill(each)


def on_all(members, method, *arguments):
    return ray.get([getattr(each, method).remote(*arguments) for each in members])


UFUNCS = {"SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum}
DTYPES = ("float32", "float16", "int64", "uint8", "bool", "complex64")


def of_torch(array):
    import torch

    return torch.from_numpy(array)


@pytest.mark.parametrize("convert", [None, of_torch])
@pytest.mark.parametrize("size", [2, 4])
def test_reductions_are_those_of_numpy(group, size, convert):
    if convert is not None:
        pytest.importorskip("torch")
    members, inputs = group(size), np.stack([values(rank) for rank in range(size)])
    for op, ufunc in UFUNCS.items():
        expected = ufunc.reduce(inputs)
        found = on_all(members, "reduced", collective.types.ReduceOp[op], convert)
        for rank, (whole, there, part) in enumerate(found):
            assert np.allclose(whole, expected, rtol=1e-6)
            assert np.allclose(there, expected if rank == 1 else inputs[rank], rtol=1e-6)
            assert np.allclose(part, ufunc.reduce(inputs + np.float32(rank)), rtol=1e-6)


@pytest.mark.parametrize("size", [2, 4])
def test_broadcast_and_allgather_move_all_bits(group, size):
    members, inputs = group(size), np.stack([values(rank) for rank in range(size)])
    for dtype in DTYPES:
        for root, everything in on_all(members, "moved", dtype):
            assert root == inputs[1].astype(dtype).tolist()
            assert everything == inputs.astype(dtype).tolist()
    on_all(members, "end")


def test_a_group_of_one_is_local(group):
    assert on_all(group(1), "many_shapes") == [0]


def test_servers_keep_nothing(group):
    assert on_all(group(2), "many_shapes") == [0, 0]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("call", ["allreduce", "broadcast"])
def test_another_shape_or_dtype_is_an_error_of_all_that_exchange_with_it(group, size, call):
    members = group(size)
    for other, text in [(np.ones(2), "2 float64"), (np.ones(3, "int32"), "3 int32")]:
        arrays = [other if rank == 1 else np.ones(3) for rank in range(size)]
        errors = on_all(members, "error_of", call, arrays)
        # A broadcast has one sender, which may have ended the call.
        for error in errors if call == "allreduce" else errors[1:2]:
            assert error.startswith(f"DiffersError: {call}"), error
            assert f"of {text}" in error and "of 3 float64" in error, error
            assert "worker 1 " in error, error
    assert on_all(members, "error_of", call, [np.ones(3)] * size) == [None] * size


def test_read_only_arrays_are_told(group):
    members = group(2)
    for call in ("allreduce", "broadcast"):
        for text in on_all(members, "error_of", call, [np.ones(3)] * 2, False):
            assert text.startswith("InvalidArgumentError: ")
            assert "read-only" in text


def test_there_are_no_messages_between_two_ranks(group):
    on_all(group(2), "message")


def test_a_rank_that_dies_is_an_error_on_the_others(group):
    calls = [each.survive.remote() for each in group(4)]
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(calls.pop(1))
    assert max(ray.get(calls)) < DEADLINE


def test_a_group_may_be_declared_by_the_driver():
    members = [Member.remote() for _ in range(2)]
    collective.create_collective_group(members, 2, [0, 1], kvstore.ray.backend(), "declared")
    assert on_all(members, "declared") == [([3.0, 3.0], 0), ([3.0, 3.0], 1)]
