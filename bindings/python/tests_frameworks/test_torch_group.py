"""How process groups of the back end "kv" begin, end and fail, as processes."""

import ast
import inspect
import re
import subprocess
import sys

import pytest
from conftest import HERE, PREFIX, ROOT, by_hand, environment, torchrun

torch = pytest.importorskip("torch")

BEGIN = """
import datetime, os, sys, time, torch
import torch.distributed as dist
import kvstore, kvstore.torch as kt
def say(*words):
    # In one piece: torchrun's processes share the pipe.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
kept = []
def sum_of_ranks(group=None):
    tensor = torch.tensor([float(dist.get_rank())])
    # In PyTorch 2.1 a thread of gloo that drops the last reference waits for ever at its end.
    kept.append(tensor)
    dist.all_reduce(tensor, group=group)
    return int(tensor)
"""
# Whether destroy_process_group() tells the back end, which 2.1 does not.
ENDS_GROUPS = "shutdown()" in inspect.getsource(torch.distributed.destroy_process_group)
INIT = BEGIN + "dist.init_process_group('kv')\n"


def ended(ranks, timeout=120):
    """Status, output and errors of each process, all of which end."""
    try:
        return [(rank.returncode, out, err) for rank, (out, err) in communicated(ranks, timeout)]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def communicated(ranks, timeout):
    return [(rank, rank.communicate(timeout=timeout)) for rank in ranks]


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_three_lines_in_a_program_of_torchrun(program, processes):
    text = """
import torch, kvstore.torch
torch.distributed.init_process_group("kv")
tensor = torch.ones(3)
torch.distributed.all_reduce(tensor)
# One write: torchrun's processes share the pipe, and it runs them without buffers.
print(f"{int(tensor.sum())}\\n", end="")
torch.distributed.destroy_process_group()
"""
    result = torchrun(processes, program(text))
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(3 * processes)] * processes
    assert "kvstore" not in result.stderr


def test_a_program_that_does_not_destroy_its_group_ends(program):
    result = torchrun(2, program(INIT + "say(sum_of_ranks())"))
    assert (result.returncode, result.stdout) == (0, "1\n1\n"), result.stderr


def test_a_second_group_follows_the_first_and_both_have_subgroups(program):
    text = (
        BEGIN
        + """
for _ in range(3):
    dist.init_process_group("kv")
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    say(sum_of_ranks(), sum_of_ranks(alone) == dist.get_rank(), sum_of_ranks(dist.new_group()))
    dist.destroy_process_group()
try:
    kt.rank()
except kvstore.ClosedError:
    say("closed")
"""
    )
    for status, out, err in ended(by_hand(2, program(text))):
        assert (status, out.removesuffix("closed\n")) == (0, "1 True 1\n" * 3), err
        # Older releases end a group at the next one, or at the end of the program.
        assert out.endswith("closed\n") == ENDS_GROUPS


METHODS = {
    "tcp": "init_method='tcp://127.0.0.1:' + sys.argv[1], rank=rank, world_size=2",
    "file": "init_method='file://' + sys.argv[2], rank=rank, world_size=2",
    "store": "store=dist.FileStore(sys.argv[2], 2), rank=rank, world_size=2",
}


@pytest.mark.parametrize("method", METHODS)
def test_other_ways_of_a_rendezvous(program, tmp_path, method):
    text = f"""
rank = int(os.environ.pop("RANK"))
for name in ("WORLD_SIZE", "MASTER_ADDR"):
    del os.environ[name]
sys.argv[1:1] = [os.environ.pop("MASTER_PORT")]
dist.init_process_group("kv", {METHODS[method]})
say(dist.get_rank() == rank, sum_of_ranks())
dist.destroy_process_group()
"""
    ranks = by_hand(2, program(BEGIN + text), tmp_path / "shared")
    for status, out, err in ended(ranks):
        assert (status, out) == (0, "True 1\n"), err


def test_a_group_takes_part_in_a_job_that_is_there_and_leaves_it(program):
    text = """
kt.init(timeout_ms=50_000)
dist.init_process_group("kv")
model = torch.nn.Linear(3, 2)
optimizer = kt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
model(torch.ones(1, 3)).sum().backward()
optimizer.step()
total = sum_of_ranks()
dist.destroy_process_group()
say(total, kt.allreduce(1, "sum"))
"""
    for status, out, err in ended(by_hand(2, program(BEGIN + text))):
        assert (status, out) == (0, "1 2\n"), err


def test_a_group_beside_gloo_begins_a_job_and_ends_it(program):
    text = """
dist.init_process_group("gloo")
try:
    dist.new_group([dist.get_rank()], backend="kv", use_local_synchronization=True)
except kvstore.InvalidArgumentError as error:
    assert "kvstore.torch.init()" in str(error)
group = dist.new_group(backend="kv")
say(sum_of_ranks(group), sum_of_ranks())
dist.destroy_process_group()
"""
    for status, out, err in ended(by_hand(2, program(BEGIN + text))):
        assert (status, out) == (0, "1 1\n"), err


def test_a_group_of_kvstore_run_uses_its_servers(program, tmp_path):
    command = PREFIX / "bin" / "kvstore"
    if not command.exists():
        pytest.skip("the program kvstore is not staged")
    text = """
import kvstore.torch as kt
store = dist.FileStore(sys.argv[1], kt.size())
dist.init_process_group("kv", rank=kt.rank(), world_size=kt.size(), store=store)
say(sum_of_ranks())
dist.destroy_process_group()
say(kt.allreduce(1, "sum"))
"""
    shared = [str(tmp_path / "shared")]
    result = subprocess.run(
        [command, "run", "-n", "2", "--", sys.executable, program(BEGIN + text), *shared],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert sorted(re.findall(r"\d\b(?=\n)", result.stdout)) == ["1", "1", "2", "2"]


def test_checks_of_pytorch_in_debug_mode(program):
    text = "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))\n"
    text += "model(torch.ones(1, 3)).sum().backward()\nsay(sum_of_ranks())"
    ranks = by_hand(2, program(INIT + text), TORCH_DISTRIBUTED_DEBUG="DETAIL")
    for status, out, err in ended(ranks):
        assert (status, out) == (0, "1\n"), err


def test_a_restarted_group_makes_a_job_of_its_own(program):
    text = """
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    raise ZeroDivisionError
say(sum_of_ranks())
dist.destroy_process_group()
"""
    options = ("--max-restarts", "1", "--monitor-interval", "0.1")
    result = torchrun(2, *options, program(INIT + text), timeout=120)
    assert (result.returncode, result.stdout) == (0, "1\n1\n"), result.stderr


# Errors.

CALLS = {
    "a call": "dist.all_reduce(tensor)",
    "a work": "dist.all_reduce(tensor, async_op=True).wait()",
    "a future": "dist.all_reduce(tensor, async_op=True).get_future().wait()",
    "DDP": "model(torch.ones(1, 3)).sum().backward()",
    "objects": "dist.all_gather_object([None] * 3, 'x' * 100_000)",
    "a barrier": "dist.barrier()",
}


@pytest.mark.parametrize("call", CALLS)
def test_the_death_of_a_rank_is_told_on_all_others_with_its_number(program, call):
    text = f"""
tensor = torch.ones(100_000)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
def call():
    {CALLS[call]}
call()
if dist.get_rank() == 1:
    os.kill(os.getpid(), 9)
begin = time.monotonic()
try:
    for _ in range(1000):
        call()
except Exception as error:
    say(time.monotonic() - begin < 30, error)
    dist.destroy_process_group()
    say("destroyed")
"""
    first, second, third = ended(by_hand(3, program(INIT + text)))
    assert second[0] == -9
    for status, out, err in (first, third):
        assert re.match(r"True .*worker 1 .*(is lost|has ended)", out), out + err
        assert out.endswith("destroyed\n"), out + err
        assert status == 0, err


def test_a_rank_that_ends_by_an_exception_is_told_too(program):
    text = """
sum_of_ranks()
if dist.get_rank() == 1:
    raise ZeroDivisionError("mine")
try:
    sum_of_ranks()
except kvstore.PeerLostError as error:
    say(error)
    raise
"""
    first, second = ended(by_hand(2, program(INIT + text)))
    assert "ZeroDivisionError: mine" in second[2]
    assert first[0] == 1
    assert "worker 1" in first[1], first


DIFFERENT = {
    "length": ("dist.all_reduce(torch.ones(3 + rank))", "4 float32", "3 float32"),
    "dtype": ("dist.all_reduce(torch.ones(3, dtype=dtypes[rank]))", "float64", "float32"),
    "op": ("dist.all_reduce(torch.ones(3), ops[rank])", r"\(max\)", r"\(sum\)"),
    "root": ("dist.broadcast(torch.ones(3), 1 - rank)", "root 0", "root 1"),
    "call": ("(dist.all_reduce, dist.barrier)[rank](*arguments[rank])", "uint8", "float32"),
    "async": (
        "dist.all_reduce(torch.ones(3 + rank), async_op=True).wait()",
        "4 float32",
        "3 float32",
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_differs_is_named_with_the_rank_and_later_calls_work(program, what):
    call, one, other = DIFFERENT[what]
    text = f"""
rank = dist.get_rank()
dtypes, ops = (torch.float32, torch.float64), (dist.ReduceOp.SUM, dist.ReduceOp.MAX)
arguments = [(torch.ones(3),), ()]
try:
    {call}
except kvstore.DiffersError as error:
    say(error)
dist.barrier()
say(sum_of_ranks())
dist.destroy_process_group()
"""
    for status, out, err in ended(by_hand(2, program(INIT + text))):
        assert status == 0, err
        for number, expected in ((1, one), (0, other)):
            said = rf"worker {number} (calls )?(allreduce|broadcast)[^,;]* {expected}"
            assert re.search(said, out), out + err
        assert out.endswith("\n1\n")


LATE = """
sum_of_ranks()
if dist.get_rank() == 1:
    time.sleep(5)
    os._exit(0)
begin = time.monotonic()
try:
    sum_of_ranks(GROUP)
except kvstore.TimeoutError as error:
    say(time.monotonic() - begin < 4.5, error)
    os._exit(0)
"""


def test_the_timeout_of_the_group_names_the_rank_that_does_not_come(program):
    init = "dist.init_process_group('kv', timeout=datetime.timedelta(seconds=2))\n"
    text = BEGIN + init + LATE.replace("GROUP", "None")
    first, _ = ended(by_hand(2, program(text)))
    assert first[1].startswith("True "), first
    assert re.search(r"200\d ms, waiting for worker 1", first[1])


SHORTER = {
    "a second group": "second = dist.new_group(timeout=datetime.timedelta(seconds=1))\n",
    "set_timeout": "second = None\ndist.group.WORLD.set_timeout(datetime.timedelta(seconds=1))\n",
}


@pytest.mark.parametrize("way", SHORTER)
def test_a_shorter_timeout_of_a_group_is_kept(program, way):
    text = INIT + SHORTER[way] + LATE.replace("GROUP", "second")
    first, _ = ended(by_hand(2, program(text)))
    assert first[1].startswith("True allreduce: not done within 1 s"), first


def test_rank_and_size_are_those_of_the_job(program, tmp_path):
    text = """
kt.init()
try:
    dist.init_process_group(
        "kv", rank=1 - int(os.environ["RANK"]), world_size=2,
        store=dist.FileStore(sys.argv[1], 2),
    )
except kvstore.InvalidArgumentError as error:
    say(error)
"""
    for rank, (status, out, err) in enumerate(
        ended(by_hand(2, program(BEGIN + text), tmp_path / "shared"))
    ):
        assert status == 0, err
        assert f"rank {1 - rank} of 2, and this process is worker {rank} of 2" in out


def test_the_page_lists_what_the_cases_see_refused():
    page = (ROOT / "docs" / "use" / "frameworks" / "pytorch.md").read_text()
    section = page.partition("## Process groups")[2].partition("\n## ")[0]
    tree = ast.parse((HERE / "cases" / "cases_group.py").read_text())
    refused = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "REFUSED"
    )
    names = [key.value for key in refused.keys]
    assert len(names) > 10
    not_there = section.partition("not there")[2]
    assert [name for name in names if name not in not_there] == []
