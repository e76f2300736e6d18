"""Jobs without a launcher: servers and scheduler in the processes of workers, or in their own."""

import os
import subprocess
import sys

import pytest
from conftest import PACKAGE
from support import free_address

PROGRAM = """
import os, signal, sys, time
import numpy as np
import kvstore

rank, ending, way, root = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
kv = kvstore.create("dist_sync", servers="embedded", rank=rank, num_workers=3, root=root)
value, out = np.ones(4, np.float32), np.empty(4, np.float32)
kv.init(1, value)
kv.pushpull(1, value, out=out)
kv.barrier()
if rank == ending:
    if way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ZeroDivisionError
begin = time.monotonic()
try:
    kv.pushpull(1, value, out=out)
    kv.pushpull(1, value, out=out)
except kvstore.PeerLostError as error:
    print(error, time.monotonic() - begin < 20, flush=True)
"""


ROLES = """
import atexit, os, sys
import numpy as np
import kvstore
from kvstore._launched import LaunchedJob

role, root = sys.argv[1:]
options = dict(num_workers=2, num_servers=1, root=root)
if role in ("scheduler", "server"):
    kvstore.create("dist_sync", role=role, **options).serve()
    sys.exit()
# As kvstore.jax and kvstore.lightgbm do.
os.environ["KV_ROOT"] = root
job = LaunchedJob()
atexit.register(job.leave_at_exit)
kv = job.join(dict(role="worker", rank=int(role), **options))
kv.init(1, np.zeros(4, np.float32))
kv.push(1, np.ones(4, np.float32))
kv.barrier()
if role == "1":
    raise ZeroDivisionError
out = np.empty(4, np.float32)
try:
    kv.pushpull(1, np.ones(4, np.float32), out=out)
    print("a sum without worker 1:", out, flush=True)
except kvstore.PeerLostError as error:
    print(error, flush=True)
"""


def outputs_of(program, arguments):
    """What the processes of a job print, which have these arguments."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, *each],
            env={**os.environ, "PYTHONPATH": str(PACKAGE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for each in arguments
    ]
    try:
        return [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("way", ["killed", "raises"])
@pytest.mark.parametrize("ending", [0, 1])
def test_the_others_hear_of_a_lost_worker_long_before_the_timeout_of_the_start(ending, way):
    root = free_address()
    outputs = outputs_of(PROGRAM, [(str(rank), str(ending), way, root) for rank in range(3)])
    for rank, output in enumerate(outputs):
        if rank != ending:
            assert output.endswith(" True\n"), output
            # That of the first process cannot be started again.
            who = "worker 0 is lost" if ending == 0 else f"server {ending}"
            # A worker that raises says so itself, before its server ends.
            assert (who if way == "killed" else f"worker {ending} at ") in output, output


def test_a_worker_that_ends_by_an_exception_has_not_left_in_order():
    # The others must not go on with the sum of those that are left.
    root = free_address()
    outputs = outputs_of(ROLES, [(role, root) for role in ("scheduler", "server", "0", "1")])
    assert "ZeroDivisionError" in outputs[3]
    assert "worker 1" in outputs[2] and "a sum" not in outputs[2], outputs[2]
