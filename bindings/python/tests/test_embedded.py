"""Jobs whose servers and scheduler are in the processes of their workers."""

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

rank, killed, root = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
kv = kvstore.create("dist_sync", servers="embedded", rank=rank, num_workers=3, root=root)
value, out = np.ones(4, np.float32), np.empty(4, np.float32)
kv.init(1, value)
kv.pushpull(1, value, out=out)
kv.barrier()
if rank == killed:
    os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
try:
    kv.pushpull(1, value, out=out)
    kv.pushpull(1, value, out=out)
except kvstore.PeerLostError as error:
    print(error, time.monotonic() - begin < 20, flush=True)
"""


@pytest.mark.parametrize("killed", [0, 1])
def test_the_others_hear_of_a_killed_worker_long_before_the_timeout_of_the_start(killed):
    root = free_address()
    command = [sys.executable, "-c", PROGRAM]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(killed), root],
            env={**os.environ, "PYTHONPATH": str(PACKAGE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        outputs = [worker.communicate(timeout=60)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for rank, output in enumerate(outputs):
        if rank != killed:
            assert output.endswith(" True\n"), output
            # That of the first process cannot be started again.
            who = "worker 0 is lost" if killed == 0 else f"server {killed}"
            assert who in output
