"""What a Dockerfile makes, without a daemon: the lines that this project's has, run in a folder."""

import json
import os
import re
import shutil
import stat

from debian import Debian, codename


class Image:
    """A system made by the lines of a file, its user and entry point, and the bytes over the base.

    `known` is a new system of this machine's release, from which a base of the same is copied.
    """

    def __init__(self, dockerfile, context, root, known):
        self.context, self.root, self.known = context, root, known
        self.system, self.user, self.entry_point, self.bytes = None, 0, [], 0
        steps = {
            "FROM": self._from,
            "COPY": self._copy,
            "RUN": self._run,
            "USER": self._user,
            "ENTRYPOINT": self._entry_point,
        }
        for line in dockerfile.read_text().splitlines():
            if line and not line.startswith("#"):
                word, rest = line.split(maxsplit=1)
                steps[word](rest)

    def _from(self, base):
        release = re.fullmatch(r"debian:(\w+)-slim", base)[1]
        if release == codename():
            self.system = self.known.copy(self.root)
        else:
            self.system = Debian.new(self.root, release)

    def _copy(self, files):
        *sources, target = files.split()
        for source in sources:
            [path] = self.context.glob(source)
            self.bytes += path.stat().st_size
            shutil.copy(path, self.root / target.lstrip("/"))

    def _run(self, line):
        before = self._content()
        self.system.run("sh", "-c", line, user=self.user)
        # A layer has what is new or has changed.
        self.bytes += sum(size for _, size, _ in self._content() - before)

    def _user(self, user):
        self.user = int(user.split(":")[0])

    def _entry_point(self, command):
        self.entry_point = json.loads(command)

    def _content(self):
        """Each file with its size and date."""
        found = set()
        for folder, folders, names in os.walk(self.root):
            folders[:] = [it for it in folders if f"{folder}/{it}" != f"{self.root}/proc"]
            for name in names:
                status = os.lstat(f"{folder}/{name}")
                if stat.S_ISREG(status.st_mode):
                    found.add((f"{folder}/{name}", status.st_size, status.st_mtime_ns))
        return found
