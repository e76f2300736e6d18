"""Ctrl-C at a terminal ends a job of `kvstore run`: its programs clean up within the grace time."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from conftest import PACKAGE, PREFIX

# Of the installed library, or of the one that is tested instead.
PROGRAMS = (PREFIX / "bin" / "kvstore", Path(os.environ["KVSTORE_LIBRARY"]).parent / "kvstore")
WAIT_SECONDS = 60
GRACE_SECONDS = 20

# Waits in a library call, and says in files that it does, and that its finally block has run.
PROGRAM = """
import os, sys, time
import numpy as np
import kvstore

rank = os.environ["KV_RANK"]

def tell(event, text=""):
    with open(f"{sys.argv[1]}/{event}.{rank}", "w") as file:
        file.write(text)

def start():
    kv = kvstore.create("dist_sync")
    kv.init(1, np.zeros(4))
    kv.barrier()
    tell("ready")
    return kv

try:
    WAIT
finally:
    time.sleep(float(sys.argv[2]))
    tell("cleaned", sys.exc_info()[0].__name__)
"""

WAITS = {
    # Rank 1 waits for the push of rank 0, which waits for rank 1.
    "barrier and pull": """
    kv = start()
    if rank == "0":
        kv.barrier()
    kv.push(1, np.ones(4))
    kv.pull(1, out=np.zeros(4))
""",
    "with block and ticket": """
    with start() as kv:
        kv.push(1, np.ones(4)) if rank == "0" else None
        kv.pull_async(1, out=np.zeros(4)).wait() if rank == "0" else kv.barrier()
""",
    "pull in a finally block": """
    kv = start()
    try:
        time.sleep(300)
    finally:
        time.sleep(0.5)
        kv.pull(1, out=np.zeros(4))
""",
    "create": """
    tell("ready")
    if rank == "1":
        time.sleep(300)
    kvstore.create("dist_sync")
""",
}


def until(condition, job):
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert job.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)


def processes_with(mark):
    """Processes that inherited an environment variable."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:  # It has ended, or is another user's.
            continue
    return found


@pytest.fixture
def interrupted_job(tmp_path):
    """Runs a job, and interrupts it as a terminal does; gives its end."""
    program = next((each for each in PROGRAMS if each.exists()), None)
    if program is None:
        pytest.skip("the program kvstore not installed")
    mark = f"KVSTORE_TEST={uuid.uuid4()}"
    name, _, value = mark.partition("=")
    environment = dict(os.environ, PYTHONPATH=str(PACKAGE), **{name: value})
    jobs = []

    def run(wait, *options, cleaning=0.5):
        script = tmp_path / "program.py"
        script.write_text(PROGRAM.replace("    WAIT\n", wait.lstrip("\n")))
        command = [program, "run", "-v", "-n", 2, "-s", 1, *options, "--"]
        command += [sys.executable, script, tmp_path, cleaning]
        job = subprocess.Popen(
            [str(part) for part in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        jobs.append(job)
        until(lambda: len(list(tmp_path.glob("ready.*"))) == 2, job)
        time.sleep(0.3)  # Then it is inside of the call that waits.
        assert job.poll() is None
        os.killpg(job.pid, signal.SIGINT)
        output, _ = job.communicate(timeout=WAIT_SECONDS)
        assert processes_with(mark) == []
        cleaned = {path.suffix: path.read_text() for path in tmp_path.glob("cleaned.*")}
        return job.returncode, cleaned, output

    yield run
    for job in jobs:
        if job.poll() is None:
            job.kill()  # All processes of its job go with it.
            job.communicate(timeout=WAIT_SECONDS)


@pytest.mark.parametrize("wait", WAITS)
def test_finally_blocks_run_within_the_grace_time(interrupted_job, wait):
    grace = ("--grace-ms", 1000 * GRACE_SECONDS)
    status, cleaned, output = interrupted_job(WAITS[wait], *grace)
    assert (status, cleaned) == (
        128 + signal.SIGINT,
        {".0": "KeyboardInterrupt", ".1": "KeyboardInterrupt"},
    ), output
    # None was killed at the end of the grace time.
    assert "SIGKILL" not in output
    assert output.count("ended with signal 2 (SIGINT)") == 2, output
    assert "stopped by signal 2 (SIGINT)" in output


def test_a_finally_block_beyond_the_grace_time_is_killed(interrupted_job):
    wait = WAITS["barrier and pull"]
    status, cleaned, output = interrupted_job(wait, "--grace-ms", 500, cleaning=300)
    assert (status, cleaned) == (128 + signal.SIGINT, {}), output
    assert output.count("ended with signal 9 (SIGKILL)") == 2, output
