"""kvstore.ray on a real local Ray: jobs of actors, their losses, and the collective backend."""

import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import environment

ray = pytest.importorskip("ray")
from ray.util import collective  # noqa: E402

import kvstore  # noqa: E402
import kvstore.ray  # noqa: E402

# Actors need not import this file.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS = 12
# Seconds in which all ranks know of a loss: 1.3 for a killed worker, and time for a busy machine.
DEADLINE = 12
SIZES = pytest.mark.parametrize(("workers", "servers"), [(2, 1), (4, 2)])


@pytest.fixture(scope="module")
def folder():
    """Where Ray keeps its sockets and logs; paths of sockets must be short."""
    path = Path(tempfile.mkdtemp(prefix="kv"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def _cluster(folder):
    before, clean = dict(os.environ), environment()
    os.environ.clear()
    # Ray writes a token of its own into the home folder.
    os.environ.update({**clean, "HOME": str(folder)})
    ray.init(
        num_cpus=16,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=str(folder / "ray"),
        object_store_memory=200 << 20,
    )
    yield
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def start():
    """Makes a job of Trainers, which ends with the test."""
    jobs = []

    def made(workers, servers=1, **options):
        jobs.append(kvstore.ray.Job(workers, servers, **options))
        jobs[-1].start(Trainer)
        return jobs[-1]

    yield made
    for job in jobs:
        job.stop()


def once(flag):
    """True at the first call for a file."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Trainer:
    def __init__(self):
        self.process = os.getpid()

    def train(self, path, die=None, flag=None, victim=None):
        """Fits weights; the rank `die` or the actor `victim` dies once, after the sixth step."""
        kv = kvstore.ray.store()
        first = kvstore.ray.resume(path)
        weight, bias = np.full(3, float(kv.rank)), np.zeros(2, "float32")
        if first == 0:
            kv.set_optimizer("sgd", learning_rate=0.01, momentum=0.9)
            kvstore.ray.init({"weight": weight, "bias": bias})
        kv.pull(["weight", "bias"], out=[weight, bias])
        for step in range(first, STEPS):
            if step == 6 and flag and once(f"{flag}{kv.rank}"):
                if victim is not None and kv.rank == 0:
                    ray.kill(victim, no_restart=False)
                    # The call returns before the process has ended.
                    time.sleep(1)
                if die == kv.rank:
                    os.kill(os.getpid(), signal.SIGKILL)
            gradients = [gradient(weight, kv.rank), np.full(2, kv.rank + 1.0, "float32")]
            kv.pushpull(["weight", "bias"], gradients, out=[weight, bias])
            if step % 4 == 3:
                kvstore.ray.save(path, step + 1)
        return first, weight.tolist(), bias.tolist()

    def error_of(self, parameters):
        """What init() raises for the parameters of this rank."""
        try:
            mine = parameters[kvstore.ray.store().rank]
            kvstore.ray.init({name: each.copy() for name, each in mine.items()})
        except kvstore.KVStoreError as error:
            return f"{type(error).__name__}: {error}"
        return None

    def push(self, arrays):
        kv = kvstore.ray.store()
        kvstore.ray.init({"layer.weight": np.zeros(3, "float32")})
        array = arrays[kv.rank].copy()
        kv.pushpull("layer.weight", array)
        return array.tolist()

    def fail(self, rank):
        kv = kvstore.ray.store()
        kvstore.ray.init({"weight": np.zeros(3)})
        if kv.rank == rank:
            raise LookupError(f"rank {rank} has no data")
        kv.pushpull("weight", np.ones(3))

    def hang(self, rank):
        if kvstore.ray.store().rank == rank:
            raise LookupError(f"rank {rank} has no data")
        time.sleep(600)

    def process_of(self):
        return self.process

    def die(self, rank):
        kv = kvstore.ray.store()
        kvstore.ray.init({"layer.weight": np.zeros(3)})
        if kv.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        kv.pushpull("layer.weight", np.ones(3))


def gradient(weight, rank):
    return weight - np.arange(3) * (rank + 1)


def trained(workers):
    """The weights after all steps, by numpy alone; rank 0's first values count."""
    weight, momentum, bias, of_bias = np.zeros(3), np.zeros(3), np.zeros(2), np.zeros(2)
    for _ in range(STEPS):
        total = sum(gradient(weight, rank) for rank in range(workers))
        momentum = 0.9 * momentum - 0.01 * total
        of_bias = 0.9 * of_bias - 0.01 * sum(range(1, workers + 1))
        weight, bias = weight + momentum, bias + of_bias
    return weight, bias


def check(results, workers, first):
    weight, bias = trained(workers)
    assert len(results) == workers
    for found in results:
        assert found[0] == first
        assert found[1:3] == results[0][1:3]
    assert np.allclose(results[0][1], weight, rtol=1e-12)
    assert np.allclose(results[0][2], bias, rtol=1e-5)


# Jobs.


@SIZES
def test_training_is_that_of_numpy(start, tmp_path, workers, servers):
    results = start(workers, servers).run("train", tmp_path / "model")
    check(results, workers, first=0)


@SIZES
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_dies_is_started_again_and_goes_on(start, tmp_path, workers, servers, rank):
    job = start(workers, servers)
    handles = list(job.workers)
    results = job.run("train", tmp_path / "model", die=rank, flag=tmp_path / "flag")
    check(results, workers, first=4)
    assert job.workers == handles


@SIZES
def test_a_server_that_dies_is_started_again(start, tmp_path, workers, servers):
    job = start(workers, servers)
    flag, victim = tmp_path / "flag", job._actors[f"server {servers - 1}"]
    results = job.run("train", tmp_path / "model", flag=flag, victim=victim)
    check(results, workers, first=4)
    assert job._generation == 2


@SIZES
def test_a_scheduler_that_dies_comes_back_into_its_job(start, tmp_path, workers, servers):
    job = start(workers, servers)
    flag, victim = tmp_path / "flag", job._actors["scheduler"]
    results = job.run("train", tmp_path / "model", flag=flag, victim=victim)
    check(results, workers, first=0)
    assert job._generation == 1


def test_without_a_restart_left_it_is_an_error_with_the_name_of_the_actor(start, caplog):
    job, began = start(2, restarts=1), time.monotonic()
    with caplog.at_level(logging.WARNING), pytest.raises(kvstore.PeerLostError) as raised:
        job.run("die", 1)
    assert time.monotonic() - began < 2 * DEADLINE
    text = "generation 2 of the job has lost worker 1"
    assert str(raised.value).startswith(f"{text}, and no restart is left")
    assert "generation 1 of the job has lost worker 1; 0 restarts" in caplog.text


MODEL = {"layer.weight": np.zeros((3, 2), "float32"), "layer.bias": np.zeros(2, "float32")}
OTHERS = {
    "a missing parameter": (
        {"layer.weight": MODEL["layer.weight"]},
        "rank 1 has no `layer.bias`; it is float32[2] on rank 0",
    ),
    "another one": (
        {**MODEL, "head.bias": np.zeros(1)},
        "rank 0 has no `head.bias`; it is float64[1] on rank 1",
    ),
    "a wrong dtype": (
        {**MODEL, "layer.bias": np.zeros(2)},
        "`layer.bias` is float64[2] on rank 1 and float32[2] on rank 0",
    ),
    "a wrong shape": (
        {**MODEL, "layer.weight": np.zeros((2, 2), "float32")},
        "`layer.weight` is float32[2, 2] on rank 1 and float32[3, 2] on rank 0",
    ),
    "another order": (
        dict(reversed(MODEL.items())),
        "number 0 is `layer.bias` on rank 1 and `layer.weight` on rank 0",
    ),
}


@SIZES
def test_another_model_on_a_rank_is_an_error_on_every_rank(start, workers, servers):
    job = start(workers, servers)
    for other, text in OTHERS.values():
        models = [other if rank == 1 else MODEL for rank in range(workers)]
        assert job.run("error_of", models) == [f"DiffersError: init: {text}"] * workers
    assert job.run("error_of", [MODEL] * workers) == [None] * workers


def test_a_wrong_dtype_of_a_push_names_the_key(start):
    job, began = start(2), time.monotonic()
    with pytest.raises(kvstore.DtypeMismatchError, match=r'key "layer.weight": .*int64'):
        job.run("push", [np.ones(3, "float32"), np.ones(3, "int64")])
    assert time.monotonic() - began < DEADLINE


@SIZES
def test_an_exception_on_a_rank_ends_the_call_on_all(start, workers, servers):
    job, began = start(workers, servers), time.monotonic()
    with pytest.raises(LookupError, match="rank 1 has no data"):
        job.run("fail", 1)
    assert time.monotonic() - began < DEADLINE
    # The next call begins with empty servers, in the processes of before.
    arrays = [np.full(3, rank + 1, "float32") for rank in range(workers)]
    total = float(sum(range(1, workers + 1)))
    assert job.run("push", arrays) == [[total] * 3] * workers


def test_a_rank_that_is_busy_elsewhere_is_started_again(start, monkeypatch):
    monkeypatch.setattr(kvstore.ray._job, "_GRACE_SECONDS", 1.0)
    job, began = start(2), time.monotonic()
    processes = job.run("process_of")
    with pytest.raises(LookupError, match="rank 1 has no data"):
        job.run("hang", 1)
    assert time.monotonic() - began < DEADLINE
    busy, failed = job.run("process_of")
    assert busy != processes[0]
    assert failed == processes[1]


def test_an_exception_of_the_constructor_arrives():
    class Broken:
        def __init__(self):
            raise LookupError("no data here")

    job = kvstore.ray.Job(2)
    with pytest.raises(ray.exceptions.ActorDiedError, match="no data here"):
        job.start(Broken)
    assert "REMOVED" in states(job)


def states(job):
    return ray.util.placement_group_table(job._group)["state"]


def test_actors_are_in_a_placement_group_which_ends_with_the_job(start):
    job = start(2, 2, placement="STRICT_PACK", worker_resources={"CPU": 2})
    table = ray.util.placement_group_table(job._group)
    assert table["strategy"] == "STRICT_PACK"
    assert [each["CPU"] for each in table["bundles"].values()] == [1, 1, 2, 2]
    assert len(job._actors) == 5
    for actor in job.workers:
        group = ray.get(actor.__ray_call__.remote(lambda _: ray.util.get_current_placement_group()))
        assert group.id == job._group.id
    workers = job.workers
    job.stop()
    assert states(job) == "REMOVED"
    for actor in workers:
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(actor.__ray_call__.remote(lambda _: None), timeout=DEADLINE)


def test_a_job_without_room_says_so():
    with pytest.raises(kvstore.TimeoutError, match=r"no room within 1 s .* 40 workers with {'CPU'"):
        kvstore.ray.Job(40, start_timeout=1)


def test_bad_calls_are_told(start, tmp_path):
    with pytest.raises(kvstore.InvalidArgumentError, match="2 workers and 0 servers"):
        kvstore.ray.Job(2, 0)
    with pytest.raises(kvstore.ClosedError, match=r"Job.start\(\) makes an actor a worker"):
        kvstore.ray.store()
    job = start(2)
    with pytest.raises(kvstore.InvalidArgumentError, match="started already"):
        job.start(Trainer)
    foreign = tmp_path / "foreign"
    kv = kvstore.create("local")
    kv.init("a", np.ones(1))
    kv.save(foreign)
    with pytest.raises(kvstore.InvalidArgumentError, match="foreign has no number of a step"):
        job.run("train", foreign)


def test_the_token_is_in_no_file_of_ray(start, folder, monkeypatch):
    token = secrets.token_hex(32)
    monkeypatch.setattr(secrets, "token_hex", lambda _: token)
    job = start(2)
    with pytest.raises(LookupError):
        job.run("fail", 0)
    files = [each for each in folder.rglob("*") if each.is_file()]
    assert any(each.suffix == ".log" for each in files)
    assert [each for each in files if token.encode() in each.read_bytes()] == []


# The collective backend.


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
        """As many keys as are kept, and some, twice."""
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
        with pytest.raises(kvstore.PeerLostError, match=r"allreduce of group .*float64\[3\]"):
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
def group():
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
    assert on_all(group(1), "many_shapes") == [64]


def test_servers_keep_a_bounded_number_of_keys(group):
    assert on_all(group(2), "many_shapes") == [64, 64]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("call", ["allreduce", "broadcast"])
def test_another_shape_or_dtype_is_an_error_on_every_rank(group, size, call):
    members = group(size)
    for other, text in [(np.ones(2), "float64[2]"), (np.ones(3, "int32"), "int32[3]")]:
        arrays = [other if rank == 1 else np.ones(3) for rank in range(size)]
        said = f"`{call} of group default` is {text} on rank 1 and float64[3] on rank 0"
        assert on_all(members, "error_of", call, arrays) == [f"DiffersError: {call}: {said}"] * size
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
