"""The files of a release: how they are made, and what is in them."""

import gzip
import io
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M)[1]
LIMIT_SECONDS = 1800
LIMIT_OF_A_RELEASE_SECONDS = 3 * 3600


def run(*command, **options):
    """What a command prints to standard output."""
    settings = {"cwd": ROOT, "timeout": LIMIT_SECONDS, **options}
    result = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        **settings,
    )
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return result.stdout


def git(*arguments, folder=ROOT):
    return run("git", *arguments, cwd=folder)


def copied_tree(folder):
    """A clone of the commit, with what has been changed since."""
    git("clone", "--quiet", ROOT, folder)
    git("checkout", "--quiet", "--detach", git("rev-parse", "HEAD").strip(), folder=folder)
    changed = git("ls-files", "-z", "--modified", "--others", "--exclude-standard").split("\0")
    for name in filter(None, changed):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    return folder


def made(folder):
    """`make dist` in a tree; the folder with what it has made."""
    environment = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
    run("make", "dist", cwd=folder, env=environment, timeout=LIMIT_OF_A_RELEASE_SECONDS)
    shutil.rmtree(folder / "target")
    return folder / "dist"


def unpacked(name, content):
    """Names and bytes of a file and of all files packed in it."""
    yield name, content
    if name.endswith((".whl", ".zip")):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = [(entry, archive.read(entry)) for entry in archive.namelist()]
    elif name.endswith((".crate", ".tar.xz", ".tar")):
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            parts = [(it.name, archive.extractfile(it).read()) for it in archive if it.isfile()]
    elif name.endswith(".deb"):
        parts = [(f"{part}.tar", deb_part(content, part)) for part in ("fsys", "ctrl")]
    elif name.endswith(".gz"):
        parts = [(name.removesuffix(".gz"), gzip.decompress(content))]
    else:
        parts = []
    for part, inner in parts:
        for path, inside in unpacked(part, inner):
            yield f"{name}: {path}", inside


def deb_part(content, part):
    command = ["dpkg-deb", f"--{part}-tarfile", "/dev/stdin"]
    return subprocess.run(command, input=content, check=True, capture_output=True).stdout


def named_places(path, tree=ROOT):
    """Files in an artefact, made in a tree, that name a folder of this machine: each with a place in it."""
    cargo = os.environ.get("CARGO_HOME") or str(Path.home() / ".cargo")
    folders = [f"{Path.home()}/", str(tree), cargo]
    for name, content in unpacked(path.name, path.read_bytes()):
        for folder in folders:
            at = content.find(folder.encode())
            if at >= 0:
                yield f"{name}: {content[max(at - 40, 0) : at + 80]!r}"
                break
