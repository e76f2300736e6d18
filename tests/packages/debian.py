"""Debian systems in folders, for tests that install packages as users do. Making them needs root."""

import os
import re
import shutil
from pathlib import Path

from artefacts import run

# Where packages and their tools write what belongs to the system itself.
CHANGING = ("proc", "sys", "dev", "tmp", "run", "root", "var/cache", "var/lib/apt", "var/log")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing():
    """Why this machine cannot make such systems; empty if it can."""
    if os.geteuid() != 0:
        return "a chroot needs root"
    return "" if shutil.which("debootstrap") else "debootstrap not installed"


def codename():
    """The release of this machine, for which it builds packages."""
    return re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.M)[1]


class Debian:
    """A system; `run` runs a command in it, whose processes end with the command."""

    def __init__(self, root):
        self.root = root

    @classmethod
    def new(cls, root, release):
        """The smallest system of a release, without compilers and Python."""
        run("debootstrap", "--variant=minbase", release, root)
        return cls(root)

    def copy(self, root):
        run("cp", "--archive", self.root, root)
        return Debian(root)

    def command(self, *command, user=0):
        # With a /proc of its own.
        spaces = ("unshare", "--pid", "--fork", "--kill-child", f"--mount-proc={self.root}/proc")
        return [*spaces, "chroot", f"--userspec={user}:{user}", str(self.root), *map(str, command)]

    def run(self, *command, user=0, **variables):
        environment = {"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", **variables}
        return run(*self.command(*command, user=user), env=environment)

    def install(self, *packages):
        """Packages of the distribution, or files of packages that lie in the system."""
        self.run("apt-get", "-q", "update")
        options = ("-q", "-y", "--no-install-recommends")
        self.run("apt-get", "install", *options, *packages, DEBIAN_FRONTEND="noninteractive")

    def put(self, *files, folder="tmp"):
        """Copies files into a folder of the system; their names there."""
        target = self.root / folder
        target.mkdir(parents=True, exist_ok=True)
        return [f"/{folder}/{Path(shutil.copy(file, target)).name}" for file in files]

    def files(self):
        """All that is installed."""
        found = set()
        for folder, folders, names in os.walk(self.root):
            place = Path(folder).relative_to(self.root)
            folders[:] = [name for name in folders if str(place / name) not in CHANGING]
            found |= {str(place / name) for name in (*folders, *names)}
        return found
