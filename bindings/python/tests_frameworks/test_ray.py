"""kvstore.ray on a real local Ray: jobs of actors, and their losses."""

import logging
import os
import secrets
import signal
import sys
import time

import numpy as np
import pytest

ray = pytest.importorskip("ray")
import kvstore  # noqa: E402
import kvstore.ray  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_cluster")
# Actors need not import this file.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS = 12
# Seconds in which all ranks know of a loss: 1.3 for a killed worker, and time for a busy machine.
DEADLINE = 12
SIZES = pytest.mark.parametrize(("workers", "servers"), [(2, 1), (4, 2)])


@pytest.fixture
def start(ray_cluster):
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
        "another order: number 0 is `layer.bias` on rank 1 and `layer.weight` on rank 0",
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


def test_the_token_is_in_no_file_of_ray(start, ray_cluster, monkeypatch):
    token = secrets.token_hex(32)
    monkeypatch.setattr(secrets, "token_hex", lambda _: token)
    job = start(2)
    with pytest.raises(LookupError):
        job.run("fail", 0)
    files = [each for each in ray_cluster.rglob("*") if each.is_file()]
    assert any(each.suffix == ".log" for each in files)
    assert [each for each in files if token.encode() in each.read_bytes()] == []
