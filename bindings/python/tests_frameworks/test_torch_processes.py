"""How jobs of kvstore.torch begin and end, as processes."""

import re
import shutil
import subprocess
import sys
import time

import pytest
from conftest import PREFIX, alone, by_hand, environment, free_port, torchrun

pytest.importorskip("torch")

KVSTORE = str(PREFIX / "bin" / "kvstore")
BEGIN = """
import os, sys, time, torch
import kvstore, kvstore.torch as kt
kt.init()
def say(*words):
    # In one piece: torchrun's processes share the pipe.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""
TRAIN = (
    BEGIN
    + """
model = torch.nn.ModuleDict({"layer3": torch.nn.Sequential(torch.nn.Linear(3, 2))})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = kt.DistributedOptimizer(optimizer, model)
def step():
    optimizer.zero_grad()
    model["layer3"](torch.ones(1, 3)).sum().backward()
    optimizer.step()
step()
"""
)


def test_alone_a_script_trains_with_one_worker(program):
    result = alone(program(TRAIN + "say(kt.rank(), kt.size(), kt.store().type)"))
    assert (result.returncode, result.stdout) == (0, "0 1 local\n")


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_ranks_and_sizes_are_those_of_torchrun(program, processes):
    check = """
assert [kt.rank(), kt.size()] == [int(os.environ[name]) for name in ("RANK", "WORLD_SIZE")]
say("rank", kt.rank())
"""
    result = torchrun(processes, program(TRAIN + check))
    assert result.returncode == 0, result.stderr
    assert sorted(re.findall(r"rank (\d)", result.stdout)) == [str(n) for n in range(processes)]


def test_two_launchers_make_one_job(program):
    """As on two machines: processes of one launcher do not share the other's."""
    path = program(TRAIN + "say(kt.allreduce(kt.rank(), 'sum'))")
    launchers = []
    for node in range(2):
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        command += ["--node-rank", str(node), "--master-addr", "127.0.0.1"]
        command += ["--master-port", str(free_port()) if node == 0 else launchers[0].args[-4]]
        command += ["--nproc-per-node", "1", str(path)]
        launchers.append(
            subprocess.Popen(
                command,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for launcher in launchers:
        out, err = launcher.communicate(timeout=120)
        assert (launcher.returncode, out) == (0, "1\n"), err


def test_without_torchrun_rank_0_serves_the_rendezvous_beside_gloo(program):
    text = TRAIN + "torch.distributed.init_process_group('gloo')\nsay(kt.size())"
    for rank in by_hand(2, program(text)):
        out, err = rank.communicate(timeout=120)
        assert (rank.returncode, out) == (0, "2\n"), err


def test_a_program_that_ends_leaves_the_job_and_serves_the_others(program):
    """They go on without it: the mean is that of the ranks that contribute."""
    late = """
if kt.rank() == 0:
    time.sleep(3)
    step()
    step()
    assert torch.equal(model["layer3"][0].weight.grad, torch.ones(2, 3))
    say("late")
"""
    result = torchrun(2, program(TRAIN + late))
    assert (result.returncode, result.stdout) == (0, "late\n"), result.stderr


def test_shutdown_leaves_it_too_and_a_new_job_may_follow(program):
    again = (
        "kt.shutdown(60)\nkt.init(start_timeout=60)\nsay(kt.allreduce(1, 'sum'))\nkt.shutdown(60)"
    )
    result = torchrun(2, program(TRAIN + again))
    assert (result.returncode, result.stdout) == (0, "2\n2\n"), result.stderr


DIES = {
    "killed in backward": "os.kill(os.getpid(), 9)",
    "an exception": "raise ZeroDivisionError('mine')",
}


@pytest.mark.parametrize("way", DIES)
def test_the_death_of_a_rank_ends_the_others_with_the_name_of_the_parameter(program, way):
    text = (
        TRAIN
        + f"""
kt.barrier()
if kt.rank() == 1:
    def die(gradient):
        {DIES[way]}
    model["layer3"][0].weight.register_hook(die)
begin = time.monotonic()
try:
    for _ in range(1000):
        step()
except kvstore.KVStoreError as error:
    say(type(error).__name__, f"{{time.monotonic() - begin:.1f}}", error)
    raise
"""
    )
    first, second = by_hand(2, program(text))
    out, err = first.communicate(timeout=120)
    second.communicate(timeout=120)
    assert (first.returncode, second.returncode != 0) == (1, True), err
    assert len(out.split(" ", 2)) == 3, err
    kind, seconds, said = out.split(" ", 2)
    assert kind == "PeerLostError", said
    assert float(seconds) < 10
    assert "layer3.0.weight" in said, said
    assert re.search(r"(worker|server) 1", said), said


def test_a_rank_that_does_not_come_is_named_with_the_parameters_within_the_deadline(program):
    text = (
        TRAIN.replace("kt.init()", "kt.init(timeout_ms=2000)")
        + """
if kt.rank() == 1:
    time.sleep(6)
    os._exit(0)
begin = time.monotonic()
try:
    step()
except kvstore.TimeoutError as error:
    say(time.monotonic() - begin < 5, error)
    os._exit(0)
"""
    )
    first, second = by_hand(2, program(text))
    out, err = first.communicate(timeout=120)
    assert second.communicate(timeout=120)[0] == ""
    assert out.startswith("True "), out + err
    assert "`layer3.0.weight`" in out
    assert "waiting for worker 1" in out


def test_the_death_of_a_rank_ends_a_hook_of_ddp(program):
    """While its bucket is under way: the error comes through the future."""
    text = (
        BEGIN
        + """
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
model.register_comm_hook(None, kt.ddp_hook())
for _ in range(3):
    # Later passes have no calls of gloo.
    model(torch.ones(1, 3)).sum().backward()
kt.barrier()
if kt.rank() == 1:
    os.kill(os.getpid(), 9)
try:
    for _ in range(1000):
        model(torch.ones(1, 3)).sum().backward()
except Exception as error:
    say(error)
    os._exit(0)
"""
    )
    first, second = by_hand(2, program(text))
    out, err = first.communicate(timeout=120)
    second.communicate(timeout=120)
    assert first.returncode == 0, err
    assert re.search(r"(worker|server) 1 .*(is lost|has ended)", out), out + err


def test_a_restarted_group_makes_a_job_of_its_own(program):
    text = """
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and kt.rank() == 1:
    raise ZeroDivisionError
step()
say("trained")
"""
    options = ("--max-restarts", "1", "--monitor-interval", "0.1")
    result = torchrun(2, *options, program(TRAIN + text), timeout=120)
    assert (result.returncode, result.stdout) == (0, "trained\ntrained\n"), result.stderr


def test_calls_in_a_child_and_after_the_end_say_so(program):
    text = """
import os
import kvstore, kvstore.torch as kt
assert kt.size() == 1  # Without init().
if os.fork() == 0:
    try:
        kt.rank()
    except kvstore.ForkedError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
try:
    kt.init(threads=1)
except kvstore.InvalidArgumentError as error:
    print(error)
kt.shutdown()
try:
    kt.rank()
except kvstore.ClosedError as error:
    print(error)
kt.init(threads=1)
print(kt.rank())
"""
    result = alone(program(text))
    assert result.returncode == 0, result.stderr
    forked, options, ended, rank = result.stdout.splitlines()
    assert "belongs to the process" in forked
    assert "other options" in options
    assert "shutdown() has ended the job" in ended
    assert rank == "0"


def test_ctrl_c_ends_a_rank_that_waits(program):
    """In backward, for a rank that does not come."""
    text = (
        TRAIN
        + """
import signal, threading
if kt.rank() == 1:
    time.sleep(8)
    os._exit(0)
threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begin = time.monotonic()
try:
    step()
except KeyboardInterrupt:
    say("interrupted", time.monotonic() - begin < 3)
    os._exit(0)
"""
    )
    result = torchrun(2, program(text))
    assert result.stdout == "interrupted True\n", result.stderr


FURTHER = """
torch.manual_seed(kt.rank())
table = kt.Embedding(10, 2, "sgd", lr=1.0)
before = table.table()
table(torch.tensor([kt.rank()])).sum().backward()
table.step()
assert torch.allclose((before - table.table())[: kt.size()], torch.full((1, 2), 1 / kt.size()))
server = kt.ServerOptimizer("adamw", torch.nn.Linear(3, 2), lr=0.1)
model = torch.nn.Linear(3, 2)
packed = torch.optim.SGD(model.parameters(), lr=0.1)
packed = kt.DistributedOptimizer(packed, model, compression="fp16")
model(torch.full((1, 3), float(kt.rank()))).sum().backward()
mean = torch.full((2, 3), (kt.size() - 1) / 2)
assert torch.equal(model.weight.grad, mean), model.weight.grad
say("further", kt.size())
"""


def launched(command, path):
    return subprocess.run(
        [*command, sys.executable, str(path)],
        env={
            **environment(),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "KV_TOKEN": "a" * 32,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("launcher", ["kvstore", "mpirun", "alone"])
def test_rules_and_codecs_have_stores_of_their_own_under_each_launcher(program, launcher):
    commands = {
        "kvstore": [KVSTORE, "run", "-n", "2", "-s", "1", "--"],
        "mpirun": ["mpirun", "--oversubscribe", "-n", "2"],
        "alone": [],
    }
    command = commands[launcher]
    if command and shutil.which(command[0]) is None:
        pytest.skip(f"{launcher} is not there")
    result = launched(command, program(TRAIN + FURTHER))
    assert result.returncode == 0, result.stderr
    size = 2 if command else 1
    assert len(re.findall(f"further {size}", result.stdout)) == size


def test_a_program_of_kvstore_run_uses_its_servers(program):
    if shutil.which(KVSTORE) is None:
        pytest.skip("the program kvstore is not staged")
    text = TRAIN + "say(kt.rank(), kt.size(), kt.allreduce(1, 'sum'))"
    begin = time.monotonic()
    result = subprocess.run(
        [KVSTORE, "run", "-n", "2", "-s", "1", "--", sys.executable, str(program(text))],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert sorted(re.findall(r"\d 2 2", result.stdout)) == ["0 2 2", "1 2 2"]
    assert time.monotonic() - begin < 60
