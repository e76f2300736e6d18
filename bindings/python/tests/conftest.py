"""Finds the package of this tree and the installed library; bounds every test."""

import faulthandler
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parents[1]
PREFIX = Path(os.environ.get("KVSTORE_PREFIX") or ROOT / "build" / "stage")
LIMIT_SECONDS = 300
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
STAND_IN = TARGET / "debug" / "deps" / "libcuda_stand_in.so"
# Set in a process whose driver is the stand-in.
INSIDE = "KV_GPU_TEST"

os.environ.setdefault("KVSTORE_LIBRARY", str(PREFIX / "lib" / "libkvstore.so.0"))
sys.path.insert(0, str(PACKAGE))

import kvstore  # noqa: E402  The path above leads to it.


@pytest.fixture(autouse=True)
def _limit():
    """A test that hangs shows where and ends the run."""
    faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=["local", "device"])
def kv(request):
    with kvstore.create(request.param) as store:
        yield store


@pytest.fixture
def run():
    """Runs a program in a process of its own, with the package of this tree."""

    def run_program(*arguments, timeout=120):
        paths = [PACKAGE, PACKAGE / "tests"] if INSIDE in os.environ else [PACKAGE]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, paths)))
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run_program


def pytest_configure(config):
    text = "gpu(**variables): runs in a process of its own whose CUDA driver is tests/cuda's"
    config.addinivalue_line("markers", text)


@functools.lru_cache
def _reason_without_gpus():
    """Why tests with the mark `gpu` cannot run; none if they can."""
    if not STAND_IN.exists():
        return "the stand-in driver is not built: cargo build -p cuda-stand-in"
    result = _run_on_gpus("-c", "import kvstore; kvstore.set_stream(0, None)")
    return "a library without CUDA" if "this build has no CUDA" in result.stderr else None


def _run_on_gpus(*arguments, **variables):
    path = os.pathsep.join([str(PACKAGE), str(PACKAGE / "tests")])
    named = {f"KV_CUDA_STAND_IN_{name}": str(value) for name, value in variables.items()}
    environment = {**os.environ, "PYTHONPATH": path, "KV_CUDA": str(STAND_IN), INSIDE: "1", **named}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A driver has one state for its process, so each test of GPUs has a process of its own."""
    mark = pyfuncitem.get_closest_marker("gpu")
    if mark is None or INSIDE in os.environ:
        return None
    reason = _reason_without_gpus()
    if reason is not None:
        pytest.skip(reason)
    test = f"{pyfuncitem.path}::{pyfuncitem.name}"
    result = _run_on_gpus("-m", "pytest", "-q", "-p", "no:cacheprovider", test, **mark.kwargs)
    if result.returncode != 0 or "1 passed" not in result.stdout:
        text = f"status {result.returncode}\n{result.stdout}\n{result.stderr}"
        pytest.fail(text, pytrace=False)
    return True
