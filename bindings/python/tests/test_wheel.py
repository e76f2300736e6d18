"""The wheel: builds, carries the library, and works elsewhere without any environment variable."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import PACKAGE, PREFIX, ROOT
from test_examples import TUTORIAL

pytest.importorskip("setuptools", minversion="77")

TIMEOUT_SECONDS = 240


def run(*arguments, **options):
    result = subprocess.run(
        [str(argument) for argument in arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        **options,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that the tree stays as it is, and without a package index."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(PACKAGE, source, ignore=ignored)
    environment = dict(os.environ, KVSTORE_PREFIX=str(PREFIX))
    pip = (sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index")
    run(*pip, "-w", folder / "dist", source, env=environment)
    (built,) = (folder / "dist").iterdir()
    return built


def test_the_wheel_fits_every_python_and_names_its_systems(wheel):
    assert re.fullmatch(r"libkvstore-[\d.]+-cp39-abi3-manylinux_2_\d+_\w+\.whl", wheel.name)


def test_the_wheel_carries_the_library_the_extension_and_the_types(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        library = archive.read("kvstore/lib/libkvstore.so.0")
        extension = archive.read("kvstore/_native.abi3.so")
    assert library == (PREFIX / "lib" / "libkvstore.so.0").read_bytes()
    assert extension == (PACKAGE / "kvstore" / "_native.abi3.so").read_bytes()
    assert {"kvstore/py.typed", "kvstore/_native.pyi"} <= set(names)
    found = (PACKAGE / "kvstore").rglob("*.py")
    sources = {str(path.relative_to(PACKAGE)) for path in found}
    assert "kvstore/torch/__init__.py" in sources
    assert sources <= set(names)
    assert not [name for name in names if "test" in name]


def install(wheel, folder):
    """The interpreter of a new environment that has nothing but the wheel."""
    home = folder / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", wheel)
    return python


def test_the_tag_is_that_of_the_newest_symbol_it_needs(wheel):
    files = ("lib/libkvstore.so.0", "_native.abi3.so", "bin/kvstore")
    with zipfile.ZipFile(wheel) as archive:
        code = [archive.read(f"kvstore/{name}") for name in files]
    minors = [int(minor) for each in code for minor in re.findall(rb"GLIBC_2\.(\d+)", each)]
    assert f"-manylinux_2_{max(minors)}_" in wheel.name


JOB = """
import kvstore
with kvstore.create("dist_sync") as kv:
    print(kv.rank, kv.num_workers)
"""


def test_the_installed_wheel_has_the_program_and_starts_a_job(wheel, tmp_path):
    python = install(wheel, tmp_path)
    (tmp_path / "train.py").write_text(JOB)
    job = ("run", "-n", "2", "--", python, tmp_path / "train.py")
    # Nothing else is in the path, and nothing of this tree in the environment.
    empty = {"cwd": tmp_path, "env": {}}
    for command in ((python.with_name("kvstore"),), (python, "-m", "kvstore")):
        assert run(*command, "--version", **empty).startswith("kvstore ")
        said = run(*command, *job, **empty)
        lines = sorted(line.split("|")[-1].strip() for line in said.splitlines())
        assert lines == ["0 2", "1 2"], said


def test_a_foreign_package_of_the_same_name_is_told(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = (sys.executable, "-c", "import kvstore")
    environment = {"PYTHONPATH": str(tmp_path)}
    assert run(*program, env=environment) == ""
    (tmp_path / "kvstore-0.1.1.dist-info").mkdir()
    warned = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    assert "kvstore of another project" in warned.stderr
    assert "pip uninstall kvstore" in warned.stderr


def test_a_missing_program_says_what_to_do(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "kvstore" / "bin" / "kvstore").unlink()
    environment = {"PYTHONPATH": str(tmp_path)}
    missing = subprocess.run(
        (sys.executable, "-m", "kvstore"), env=environment, capture_output=True, text=True
    )
    assert missing.returncode == 1
    assert "is missing or cannot be executed; install the package libkvstore" in missing.stderr


def test_the_installed_wheel_runs_the_tutorial(wheel, tmp_path):
    python = install(wheel, tmp_path)
    site = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])").strip())
    # numpy from here: there need not be a package index.
    (site / "numpy.pth").write_text(f"{Path(np.__file__).parents[1]}\n")
    shutil.copy(ROOT / "examples" / "python" / "tutorial.py", tmp_path)
    empty = {"cwd": tmp_path, "env": {}}
    place = run(python, "-c", "import kvstore; print(kvstore.__file__)", **empty).strip()
    assert Path(place).parent == site / "kvstore"
    maps = "import kvstore; print(open('/proc/self/maps').read())"
    assert str(site / "kvstore" / "lib" / "libkvstore.so.0") in run(python, "-c", maps, **empty)
    assert run(python, "tutorial.py", **empty) == TUTORIAL


def failed_import(wheel, folder, missing, program="import kvstore"):
    """What an import says when a file of the wheel is missing."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (folder / "kvstore" / missing).unlink()
    environment = {"PYTHONPATH": str(folder), "KVSTORE_LIBRARY": str(folder / "none.so")}
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert result.returncode == 1
    return result.stderr


def test_a_missing_library_says_what_to_do(wheel, tmp_path):
    said = failed_import(wheel, tmp_path, "lib/libkvstore.so.0")
    assert "ImportError: the library" in said
    assert "KVSTORE_LIBRARY" in said


def test_a_missing_extension_says_what_to_do(wheel, tmp_path):
    said = failed_import(wheel, tmp_path, "_native.abi3.so")
    assert "ImportError: the extension kvstore/_native.abi3.so cannot be loaded" in said
    assert "make python" in said


def test_free_threaded_python_is_refused_by_name(wheel, tmp_path):
    # Its interpreter has this letter among its flags, and loads no extension of the stable ABI.
    program = "import sys; sys.abiflags = 't'; import kvstore"
    said = failed_import(wheel, tmp_path, "_native.abi3.so", program)
    assert "ImportError: kvstore does not support free-threaded Python" in said
