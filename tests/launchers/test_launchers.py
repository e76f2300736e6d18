"""Jobs that the launchers of sites start: real ones, without a process or a variable of this library.

Each is left out where its programs are not installed; scripts/bootstrap.sh installs them for root.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import slurm

ROOT = Path(__file__).resolve().parents[2]
PREFIX = Path(os.environ.get("KVSTORE_PREFIX") or ROOT / "build" / "stage")
KVSTORE = PREFIX / "bin" / "kvstore"
LIMIT_SECONDS = 60
ROUNDS, ELEMENTS = 3, 5000


def environment(**more):
    """That of this process, without what a job or a launcher around the tests may have set."""
    names = ("KV_", "DMLC_", "SLURM_", "OMPI_", "PMIX_", "PMI_", "MPI_")
    single = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "JOB_COMPLETION_INDEX")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(names) and k not in single}
    # Open MPI refuses root and more processes than processors unless it is told otherwise.
    allowed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    return {**kept, **allowed, **more}


class Launcher:
    """A command that starts COUNT processes, and what it needs in the environment."""

    def __init__(self, command, **variables):
        self.command, self.variables = command, variables
        # Removed with this object.
        self.folders = []

    def start(self, count, arguments, **more):
        # Open MPI: two mpiruns that begin at once fail at making one folder.
        self.folders.append(tempfile.TemporaryDirectory(prefix="kv-ompi-"))
        more["OMPI_MCA_orte_tmpdir_base"] = self.folders[-1].name
        return subprocess.Popen(
            [*self.command, str(count), *map(str, arguments)],
            env=environment(**self.variables, **more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def end_of(process):
    """Status and output of a launcher; one that hangs is killed with all that it has started."""
    try:
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        pytest.fail(f"still running after {LIMIT_SECONDS} s: {output}")
    return process.returncode, output


@pytest.fixture(scope="session")
def worker(tmp_path_factory):
    program = tmp_path_factory.mktemp("program") / "worker"
    library = PREFIX / "lib"
    subprocess.run(
        ["cc", "-I", PREFIX / "include", Path(__file__).with_name("worker.c"), "-o", program]
        + ["-L", library, "-lkvstore", f"-Wl,-rpath,{library}"],
        check=True,
    )
    return program


@pytest.fixture(scope="session")
def own_slurm(tmp_path_factory):
    reason = slurm.missing()
    if reason:
        pytest.skip(f"Slurm: {reason}")
    with slurm.Slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(params=["mpirun.openmpi", "mpiexec.hydra", "srun"])
def launcher(request):
    if request.param == "srun":
        running = request.getfixturevalue("own_slurm")
        return Launcher(["srun", "--kill-on-bad-exit", "--ntasks"], **running.environment)
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} not installed")
    return Launcher([request.param, "-n"])


def expected(workers, round):
    """First and last element behind a round: a sum in the order of ranks, and no optimizer."""
    index = np.arange(ELEMENTS, dtype=np.float32) + np.float32(round + 1)
    parts = [np.float32(rank + 1) / index for rank in range(workers)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return [float(total[0]), float(total[-1])]


def check_reports(folder, workers, others=()):
    names = {f"worker-{rank}" for rank in range(workers)} | set(others)
    assert {path.name for path in folder.iterdir()} == names
    for path in folder.iterdir():
        first, *rounds = path.read_text().splitlines()
        assert first == f"{workers} workers"
        values = [[float.fromhex(number) for number in line.split()] for line in rounds]
        wanted = [expected(workers, round) for round in range(ROUNDS)]
        assert values == (wanted if path.name.startswith("worker") else []), path.name


@pytest.mark.parametrize("count", [1, 4])
def test_a_command_line_of_the_site_starts_a_job_without_servers(launcher, worker, tmp_path, count):
    status, output = end_of(launcher.start(count, [worker, tmp_path]))
    assert status == 0, output
    check_reports(tmp_path, count)


def test_some_of_its_processes_may_be_servers(launcher, worker, tmp_path):
    status, output = end_of(launcher.start(5, [worker, tmp_path], KV_SERVERS="2"))
    assert status == 0, output
    check_reports(tmp_path, 2, {"scheduler-0", "server-0", "server-1"})


def test_two_jobs_at_once_do_not_meet(launcher, worker, tmp_path):
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    jobs = [launcher.start(2, [worker, folder]) for folder in folders]
    for job, folder in zip(jobs, folders):
        status, output = end_of(job)
        assert status == 0, output
        check_reports(folder, 2)


def test_a_worker_that_dies_ends_the_job_and_is_named(launcher, worker, tmp_path):
    began = time.monotonic()
    # A shell between them, which ends well: no launcher ends the others for it.
    survives = f"{worker} {tmp_path} 1; true"
    _, output = end_of(launcher.start(3, ["sh", "-c", survives]))
    took = time.monotonic() - began
    assert took < 30, output
    for rank in (0, 2):
        report = (tmp_path / f"worker-{rank}").read_text()
        assert "KV_ERR_PEER_LOST" in report and ("worker 1" in report or "server 1" in report), report
    # Without it, the launcher reports the death itself.
    status, _ = end_of(launcher.start(3, [worker, tmp_path, 1]))
    assert status != 0


def test_kvstore_join_is_one_of_its_processes(launcher, worker, tmp_path):
    command = [KVSTORE, "join", "-s", "2", "--", worker, tmp_path]
    status, output = end_of(launcher.start(5, command))
    assert status == 0, output
    check_reports(tmp_path, 2)


def test_numbers_that_do_not_fit_are_refused_by_each_process(launcher, worker, tmp_path):
    status, output = end_of(launcher.start(2, [worker, tmp_path], KV_SERVERS="1"))
    assert status != 0
    assert "servers=1, and 2 processes are too few for a scheduler, 1 servers and a worker" in output


def start_each(worker, folder, variables):
    """A process for each set of variables, as a launcher would start them."""
    return [
        subprocess.Popen(
            [worker, folder],
            env=environment(**its),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for its in variables
    ]


def test_the_variables_of_torchrun_make_a_job_again_and_again(worker, tmp_path):
    port = str(slurm.free_port())
    for restart in range(3):
        folder = tmp_path / str(restart)
        folder.mkdir()
        shared = {
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": port,
            "TORCHELASTIC_RESTART_COUNT": str(restart),
        }
        jobs = start_each(worker, folder, [{**shared, "RANK": str(rank)} for rank in range(2)])
        assert [end_of(job) for job in jobs] == [(0, "")] * 2
        check_reports(folder, 2)


@pytest.mark.parametrize("token", [None, "0123456789abcdef"])
def test_pods_of_an_indexed_job_need_no_other_pods(worker, tmp_path, token):
    shared = {
        "KV_SERVERS": "embedded",
        "KV_NUM_WORKERS": "3",
        "KV_ROOT": f"127.0.0.1:{slurm.free_port()}",
        **({"KV_TOKEN": token} if token else {}),
    }
    pods = [{**shared, "JOB_COMPLETION_INDEX": str(index)} for index in range(3)]
    jobs = start_each(worker, tmp_path, pods)
    assert [end_of(job) for job in jobs] == [(0, "")] * 3
    check_reports(tmp_path, 3)


def test_the_first_page_about_slurm_starts_the_script_of_that_about_python(own_slurm, tmp_path):
    def blocks(page, language):
        return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.M | re.S)

    job, commands, *_ = blocks("operate/slurm.md", "sh")
    (tmp_path / "job.sh").write_text(job)
    (tmp_path / "train.py").write_text(blocks("use/languages/python.md", "python")[0])
    path = os.pathsep.join([str(Path(sys.executable).parent), str(PREFIX / "bin"), os.environ["PATH"]])
    installed = {
        "PATH": path,
        "PYTHONPATH": str(ROOT / "bindings" / "python"),
        "KVSTORE_LIBRARY": str(PREFIX / "lib" / "libkvstore.so.0"),
    }
    started = subprocess.Popen(
        ["bash", "-euc", commands],
        cwd=tmp_path,
        env=environment(**own_slurm.environment, **installed),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    status, output = end_of(started)
    assert status == 0, output
    *_, printed = output.splitlines()
    assert printed == "1.000 -2.000 3.000", output


@pytest.fixture(scope="session")
def own_sshd(tmp_path_factory):
    """An sshd on the loopback with keys of its own; gives the command that logs in."""
    sshd = slurm.find("sshd")
    if sshd is None or shutil.which("ssh") is None:
        pytest.skip("ssh and sshd not installed")
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    shutil.copy(folder / "user.pub", folder / "authorized")
    port = slurm.free_port()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nPermitRootLogin yes\n"
    )
    daemon = subprocess.Popen(
        [sshd, "-D", "-e", "-f", folder / "config"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=open(folder / "log", "w"),
    )
    end = time.monotonic() + 20
    while True:
        with socket.socket() as caller:
            if caller.connect_ex(("127.0.0.1", port)) == 0:
                break
        assert daemon.poll() is None and time.monotonic() < end, (folder / "log").read_text()
        time.sleep(0.05)
    yield (
        f"ssh -p {port} -i {folder}/user -o BatchMode=yes -o StrictHostKeyChecking=no "
        f"-o UserKnownHostsFile={folder}/known -o LogLevel=ERROR"
    )
    daemon.terminate()
    daemon.wait(20)


@pytest.mark.parametrize("dies", [False, True])
def test_kvstore_run_starts_processes_by_ssh(own_sshd, worker, tmp_path, dies):
    command = [KVSTORE, "run", "--hosts", "127.0.0.1:3", "-s", "2", "--ssh", own_sshd]
    launcher = Launcher([*command, "-n"])
    status, output = end_of(launcher.start(3, ["--", worker, tmp_path, *(["1"] if dies else [])]))
    if not dies:
        assert status == 0, output
        check_reports(tmp_path, 3)
        return
    assert status != 0
    assert "worker 1" in output, output
    for rank in (0, 2):
        report = (tmp_path / f"worker-{rank}").read_text()
        assert "KV_ERR_PEER_LOST" in report and "worker 1" in report, report
