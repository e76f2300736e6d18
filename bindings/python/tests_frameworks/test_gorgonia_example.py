"""The example for Gorgonia, in Go."""

import os
import shutil
import subprocess

import pytest
from conftest import PREFIX, ROOT, trains_like_one

DATA = ROOT / "examples" / "data" / "digits.csv"
FOLDER = ROOT / "examples" / "frameworks" / "gorgonia"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if shutil.which("go") is None or shutil.which("pkg-config") is None:
        pytest.skip("no Go, or no pkg-config")
    variables = {
        **os.environ,
        "PKG_CONFIG_PATH": str(PREFIX / "lib" / "pkgconfig"),
        "CGO_LDFLAGS": f"-Wl,-rpath,{PREFIX / 'lib'}",
    }

    def go(*arguments):
        return subprocess.run(
            ["go", *map(str, arguments)],
            cwd=FOLDER,
            env=variables,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    fetched = go("mod", "download")
    if fetched.returncode != 0:
        pytest.skip(f"the modules cannot be fetched: {fetched.stderr[-200:]}")
    path = tmp_path_factory.mktemp("gorgonia") / "train_digits"
    for built in (go("vet", "."), go("build", "-o", path, ".")):
        assert built.returncode == 0, built.stderr
    return path


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_train_like_one(program, processes, tmp_path):
    trains_like_one(processes, program, DATA, folder=tmp_path)
