"""Tests against real frameworks: finds this tree's package, and starts jobs with torchrun."""

import difflib
import faulthandler
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parents[1]
PREFIX = Path(os.environ.get("KVSTORE_PREFIX") or ROOT / "build" / "stage")
HERE = Path(__file__).resolve().parent
LIMIT_SECONDS = 300

os.environ.setdefault("KVSTORE_LIBRARY", str(PREFIX / "lib" / "libkvstore.so.0"))
sys.path.insert(0, str(PACKAGE))


def pytest_collection_modifyitems(config, items):
    """KV_TEST_PROCESSES is the most processes of a test that says how many it has."""
    most = int(os.environ.get("KV_TEST_PROCESSES") or sys.maxsize)

    def fits(item):
        spec = getattr(item, "callspec", None)
        return spec is None or spec.params.get("processes", 0) <= most

    larger = [item for item in items if not fits(item)]
    if larger:
        config.hook.pytest_deselected(items=larger)
        items[:] = [item for item in items if fits(item)]


def pytest_runtest_setup():
    """From KV_TEST_END on, in seconds since 1970, no test begins."""
    if time.time() > float(os.environ.get("KV_TEST_END") or "inf"):
        pytest.skip("the time for tests of frameworks is over")


@pytest.fixture(autouse=True)
def _limit():
    """A test that hangs shows where and ends the run."""
    faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def environment():
    """Without the variables of an outer launcher, and one thread for each of PyTorch's loops."""
    clean = {name: each for name, each in os.environ.items() if not name.startswith("KV_")}
    paths = [str(PACKAGE), str(HERE / "cases")]
    return {**clean, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def torchrun(processes, *arguments, timeout=240, **variables):
    """Runs a program in so many processes of one machine; gives the finished process."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), *map(str, arguments)]
    return subprocess.run(
        command,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def alone(*arguments, timeout=240):
    """Runs a program as a process without a launcher."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def by_hand(size, path, *arguments, **variables):
    """RANK and its sisters by hand, as from torch.multiprocessing.spawn."""
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        subprocess.Popen(
            [sys.executable, str(path), *map(str, arguments)],
            env={**environment(), **shared, "RANK": str(rank), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


@pytest.fixture
def program(tmp_path):
    def write(text):
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return write


def kvstore_run(workers, *command, folder):
    """Runs a command in so many workers of `kvstore run`, or alone if it is one.

    It has to succeed, and its output is given.
    """
    command = list(command)
    if workers > 1:
        command = [PREFIX / "bin" / "kvstore", "run", "-n", workers, "--", *command]
    ended = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


_of_cases = {}


@pytest.fixture(scope="session")
def outcome(tmp_path_factory):
    """What each rank says of a case: None, or the text of what it raised.

    All cases of a file run one after the other in one job: PyTorch takes seconds to import.
    """

    def of(file, case, processes):
        if (file, processes) not in _of_cases:
            folder = tmp_path_factory.mktemp("cases")
            job = torchrun(processes, HERE / "cases" / "run_cases.py", file, folder)
            ranks = [folder / f"{rank}.json" for rank in range(processes)]
            found = [json.loads(each.read_text()) if each.exists() else {} for each in ranks]
            _of_cases[file, processes] = found, job
        found, job = _of_cases[file, processes]
        lost = f"did not run; status {job.returncode}\n{job.stdout[-2000:]}{job.stderr[-6000:]}"
        return [each.get(case, lost) for each in found]

    return of


def example(framework):
    """The folder of its script, the lines in which its two files differ, and those of its page."""
    folder = ROOT / "examples" / "frameworks" / framework
    page = (ROOT / "docs" / "use" / "frameworks" / f"{framework}.md").read_text()
    sides = [(folder / f"{name}.py").read_text().splitlines() for name in ("before", "after")]
    lines = list(difflib.unified_diff(*sides, n=0, lineterm=""))[2:]
    shown = re.search(r"```diff\n(.*?)```", page, re.S)[1].splitlines()
    return folder, [line for line in lines if not line.startswith("@@")], shown


def trained(workers, *command, folder):
    """The accuracy and the sum of weights that all workers of an example print alike."""
    printed = re.findall(
        r"accuracy ([\d.]+), weights ([\d.]+)", kvstore_run(workers, *command, folder=folder)
    )
    assert len(printed) == workers
    assert len(set(printed)) == 1
    return tuple(float(each) for each in printed[0])


def trains_like_one(workers, *command, folder):
    """So many workers of an example give what one process gives with whole batches."""
    alone, together = (trained(each, *command, folder=folder) for each in (1, workers))
    assert alone[0] > 0.88
    assert together == pytest.approx(alone, rel=1e-2)


# A second ray.init() of a process would look for the token of the first one, in its home folder.
@pytest.fixture(scope="session")
def ray_cluster():
    """A local Ray; gives the folder of its logs and sockets, whose paths must be short."""
    import ray

    folder = Path(tempfile.mkdtemp(prefix="kv"))
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
    yield folder
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(folder, ignore_errors=True)
