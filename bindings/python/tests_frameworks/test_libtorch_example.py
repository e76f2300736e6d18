"""The example for LibTorch, built against that of a PyTorch wheel."""

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import PREFIX, ROOT, trains_like_one

torch = pytest.importorskip("torch")

DATA = ROOT / "examples" / "data" / "digits.csv"
SOURCE = ROOT / "examples" / "frameworks" / "libtorch" / "train_digits.cpp"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    path = tmp_path_factory.mktemp("libtorch") / "train_digits"
    wheel, abi = Path(torch.__file__).parent, int(torch._C._GLIBCXX_USE_CXX11_ABI)
    headers = [wheel / "include", wheel / "include" / "torch" / "csrc" / "api" / "include"]
    built = subprocess.run(
        [
            compiler,
            "-std=c++20",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        ]
        + [part for each in headers for part in ("-isystem", each)]
        + [f"-I{PREFIX / 'include'}", SOURCE, "-o", path]
        + [
            f"-L{wheel / 'lib'}",
            "-ltorch",
            "-ltorch_cpu",
            "-lc10",
            f"-L{PREFIX / 'lib'}",
            "-lkvstore",
        ]
        + [f"-Wl,-rpath,{each / 'lib'}" for each in (wheel, PREFIX)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return path


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_train_like_one(program, processes, tmp_path):
    trains_like_one(processes, program, DATA, folder=tmp_path)
