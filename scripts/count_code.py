#!/usr/bin/env python3
"""Prints the lines of code of the distributed half and of the program, for any commit.

Usage: scripts/count_code.py [COMMIT...]; the default is HEAD.

Blank lines, comments and tests do not count: files called tests.rs, files of modules that are declared
under cfg(test), modules inside of a file that are under it, the simulator of the protocol, and what tests share. Folders are
named as they are now and as they were before they moved.
"""

import re
import subprocess
import sys

ROOMS = {
    "protocol": ["crates/protocol/src/", "src/cluster/"],
    "runtime": ["src/runtime/", "src/driver/"],
    "transport": ["src/transport/", "src/engine/"],
    "worker, server, job": [
        "src/worker/", "src/server/", "src/job/", "src/store/open.rs", "src/store/dist/",
    ],
    "program": ["crates/cli/src/", "src/bin/kvstore/"],
    "observer, metrics, trace, credentials": [
        "src/observer/", "src/metrics/", "src/trace/", "src/credentials/",
    ],
}
OUTSIDE = [
    "crates/protocol/src/sim/", "src/cluster/sim/", "crates/protocol/src/testing/", "src/job/remote.rs",
]
TEST = re.compile(r"\s*#\[cfg\((test|all\(test|any\(fuzzing, test|any\(test)")
MODULE = re.compile(r"\s*(?:pub(?:\([^)]*\))? )?mod (\w+)(;| \{)")


def git(*words):
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


def product(text):
    """The lines outside of test modules, and the names of modules in other files that are tests."""
    lines, tests, pending, skip = [], set(), False, None
    for line in text.split("\n"):
        if skip is not None:
            if line == skip:
                skip = None
            continue
        if TEST.match(line):
            pending = True
            continue
        module = MODULE.match(line) if pending else None
        if module and module[2] == ";":
            tests.add(module[1])
        elif module:
            skip = line[: len(line) - len(line.lstrip())] + "}"
        elif not (pending and line.strip().startswith("#[")):
            lines.append(line)
        if not line.strip().startswith("#["):
            pending = False
    return lines, tests


def is_code(line):
    return bool(line.strip()) and not line.strip().startswith("//")


def is_comment(line):
    return line.strip().startswith("//")


def count(commit):
    files = [name for name in git("ls-tree", "-r", "--name-only", commit).split("\n")]
    found, tests = {}, set()
    for room, folders in ROOMS.items():
        for name in files:
            inside = name.endswith(".rs") and name.startswith(tuple(folders))
            if not inside or name.startswith(tuple(OUTSIDE)):
                continue
            lines, modules = product(git("show", f"{commit}:{name}"))
            found[name] = (room, lines)
            folder = re.sub(r"(/(mod|lib|main))?\.rs$", "", name)
            tests |= {f"{folder}/{module}{end}" for module in modules for end in (".rs", "/mod.rs")}
    sums = {room: [0, 0] for room in ROOMS}
    for name, (room, lines) in found.items():
        if name in tests or name.endswith("/tests.rs"):
            continue
        sums[room][0] += sum(map(is_code, lines))
        sums[room][1] += sum(map(is_comment, lines))
    return sums


def main():
    for commit in sys.argv[1:] or ["HEAD"]:
        sums = count(commit)
        code, comments = (sum(it[at] for it in sums.values()) for at in (0, 1))
        print(f"{commit}: {code} lines of code, {comments} of comments ({100 * comments / code:.1f} %)")
        for room, (code, comments) in sums.items():
            print(f"  {room:40}{code:7}{comments:7}")


if __name__ == "__main__":
    main()
