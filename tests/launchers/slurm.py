"""A Slurm of its own on this machine: munged, slurmctld and slurmd with one node, in one folder."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
START_SECONDS = 30

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:4
"""


def missing():
    """Why it cannot run here; empty if it can."""
    absent = [name for name in PROGRAMS if find(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed"
    return "" if os.geteuid() == 0 else "slurmd needs root"


def find(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Slurm:
    """Started by `with`; `environment` leads srun to it."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self):
        for name in ("munge", "state", "spool"):
            (self.folder / name).mkdir(mode=0o700)
        munge = self.folder / "munge"
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        host = socket.gethostname().split(".")[0]
        conf = CONF.format(
            host=host, port=free_port(), node_port=free_port(), folder=self.folder
        )
        (self.folder / "slurm.conf").write_text(conf)
        names = [("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed")]
        files = [f"--{option}={munge / name}" for option, name in names]
        try:
            self.run("munged", "--force", f"--key-file={munge / 'key'}", *files)
            self.run("slurmctld", "-f", self.environment["SLURM_CONF"])
            self.run("slurmd", "-f", self.environment["SLURM_CONF"])
            self.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def run(self, name, *arguments):
        result = subprocess.run(
            [find(name), *arguments],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        assert result.returncode == 0, f"{name}: {result.stdout}{result.stderr}{self.logs()}"
        return result.stdout

    def wait(self):
        end = time.monotonic() + START_SECONDS
        while self.run("sinfo", "--noheader", "--format=%t").strip() != "idle":
            assert time.monotonic() < end, f"the node is not idle\n{self.logs()}"
            time.sleep(0.1)

    def logs(self):
        logs = sorted(self.folder.glob("*.log"))
        return "".join(f"\n{log.name}: {log.read_text()[-2000:]}" for log in logs)

    def __exit__(self, *_):
        for name in ("slurmd.pid", "slurmctld.pid", "munge/pid"):
            file = self.folder / name
            if file.exists():
                stop(int(file.read_text()))


def stop(process):
    """Ends a daemon, which is no child of this process."""
    end = time.monotonic() + START_SECONDS
    signal = 15
    while True:
        try:
            os.kill(process, signal)
        except ProcessLookupError:
            return
        if time.monotonic() > end:
            signal = 9
        time.sleep(0.05)
