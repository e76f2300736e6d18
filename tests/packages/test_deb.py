"""The Debian packages: what is in which, what they need, and a job of two workers from them alone.

test_release.py installs them into a new Debian.
"""

import re
import shutil
import sys
from pathlib import Path

import pytest
from artefacts import ROOT, named_places, run

PACKAGES = ("libkvstore0", "libkvstore-dev", "kvstore")
MOST_BYTES = 3_100_000

for tool in ("dpkg-deb", "dpkg-architecture", "objdump"):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} not installed", allow_module_level=True)
if sys.version_info < (3, 11):
    pytest.skip("Python 3.11 not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def packages():
    run("bash", "scripts/deb.sh")
    found = {}
    for name in PACKAGES:
        [found[name]] = (ROOT / "dist").glob(f"{name}_*.deb")
    return found


@pytest.fixture(scope="module")
def unpacked(packages, tmp_path_factory):
    """All of them in one folder, and the files of each."""
    root, files = tmp_path_factory.mktemp("root"), {}
    for name, package in packages.items():
        own = tmp_path_factory.mktemp(name)
        run("dpkg-deb", "-x", package, own)
        files[name] = {path.relative_to(own) for path in own.rglob("*") if not path.is_dir()}
        shutil.copytree(own, root, symlinks=True, dirs_exist_ok=True)
    return root, files


def field(package, name):
    return run("dpkg-deb", "-f", package, name).strip()


def test_each_file_is_in_one_package(unpacked):
    _, files = unpacked
    names = [path for each in files.values() for path in each]
    assert len(names) == len(set(names))
    library = Path(f"usr/lib/{run('dpkg-architecture', '-qDEB_HOST_MULTIARCH').strip()}")
    assert library / "libkvstore.so.0" in files["libkvstore0"]
    assert {library / "libkvstore.so", Path("usr/include/kvstore.h")} <= files["libkvstore-dev"]
    assert {Path("usr/bin/kvstore"), Path("usr/share/man/man1/kvstore-run.1.gz")} <= files["kvstore"]
    for name in PACKAGES:
        documents = {Path(f"usr/share/doc/{name}/{file}") for file in ("copyright", "changelog.gz")}
        assert documents <= files[name]


def test_they_say_what_they_need(packages, unpacked):
    root, _ = unpacked
    library = next(root.glob("usr/lib/*/libkvstore.so.0"))
    for name, file in (("libkvstore0", library), ("kvstore", root / "usr/bin/kvstore")):
        versions = re.findall(r"GLIBC_([\d.]+)", run("objdump", "-T", file))
        newest = max(versions, key=lambda text: [int(part) for part in text.split(".")])
        assert f"libc6 (>= {newest})" in field(packages[name], "Depends")
    version = field(packages["libkvstore0"], "Version")
    assert f"libkvstore0 (= {version})" in field(packages["libkvstore-dev"], "Depends")
    assert packages["libkvstore0"].stat().st_size <= MOST_BYTES


def test_they_name_no_folder_of_this_machine(packages):
    assert [line for package in packages.values() for line in named_places(package)] == []


def test_a_program_is_built_and_run_from_them_alone(unpacked, tmp_path):
    root, _ = unpacked
    library = next(root.glob("usr/lib/*/libkvstore.so.0")).parent
    environment = {
        "PATH": f"{root}/usr/bin:/usr/bin:/bin",
        "PKG_CONFIG_LIBDIR": str(library / "pkgconfig"),
        "LD_LIBRARY_PATH": str(library),
    }
    flags = run("pkg-config", "--cflags", "--libs", "kvstore", env=environment).split()
    assert f"-I{root}" in " ".join(flags).replace("/usr/lib/../..", "")
    source = ROOT / "examples" / "c" / "rounds.c"
    run("cc", source, "-I", source.parent, *flags, "-o", tmp_path / "rounds", env=environment)
    said = run("kvstore", "run", "-n", "2", "--", tmp_path / "rounds", "dist_sync", env=environment)
    assert "after round 5: 16.0" in said
