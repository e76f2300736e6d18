"""Finds the package of this tree and the installed library; bounds every test."""

import faulthandler
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parents[1]
PREFIX = Path(os.environ.get("KVSTORE_PREFIX") or ROOT / "build" / "stage")
LIMIT_SECONDS = 300

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
        environment = dict(os.environ, PYTHONPATH=str(PACKAGE))
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run_program
