"""The type hints: they refuse wrong uses, and nothing that works."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PACKAGE

import kvstore

HERE = Path(__file__).resolve().parent
RIGHT, WRONG = HERE / "types_right.py", HERE / "types_wrong.py"


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    """Checks files; gives what mypy says of them."""
    pytest.importorskip("mypy", reason="mypy not installed")
    cache = tmp_path_factory.mktemp("mypy")

    def check(*paths):
        options = ("--strict", "--no-pretty", "--no-error-summary", "--cache-dir", cache)
        command = (sys.executable, "-m", "mypy", *options, *paths)
        result = subprocess.run(
            [str(part) for part in command],
            cwd=PACKAGE,
            env={"MYPYPATH": str(PACKAGE), "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert result.stderr == ""
        return result.stdout

    return check


def public_names(of):
    return {name for name in vars(of) if not name.startswith("_")}


def test_the_package_and_right_uses_have_no_error(mypy):
    assert mypy("kvstore", RIGHT) == ""


def test_each_wrong_use_is_an_error_and_nothing_else(mypy):
    lines = enumerate(WRONG.read_text().splitlines(), 1)
    marks = {number: re.search(r"# E: (.*)$", line) for number, line in lines}
    expected = {number: set(mark[1].split(", ")) for number, mark in marks.items() if mark}
    found = {}
    for line in mypy(WRONG).splitlines():
        text = re.fullmatch(r".*types_wrong\.py:(\d+): (note|error): .*?(?:\[([a-z-]+)\])?", line)
        assert text, line
        if text[2] == "error":
            found.setdefault(int(text[1]), set()).add(text[3])
    assert found == expected
    assert len(expected) > 60


def test_right_uses_work(run):
    result = run(RIGHT)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_right_uses_have_every_public_name():
    nodes = ast.walk(ast.parse(RIGHT.read_text()))
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    errors = {name for name in kvstore.__all__ if name.endswith("Error")}
    assert public_names(kvstore.KVStore) <= used
    assert public_names(kvstore.Ticket) <= used
    assert set(kvstore.__all__) - errors <= used
