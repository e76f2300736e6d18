"""The script of docs/use/frameworks/pytorch.md, before and after."""

import difflib
import re

import pytest
from conftest import ROOT, alone, torchrun

pytest.importorskip("torch")

FOLDER = ROOT / "examples" / "frameworks" / "pytorch"
DATA = ROOT / "examples" / "data" / "digits.csv"
PAGE = ROOT / "docs" / "use" / "frameworks" / "pytorch.md"


def diff():
    before, after = (
        (FOLDER / f"{name}.py").read_text().splitlines() for name in ("before", "after")
    )
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    return [line for line in lines if not line.startswith("@@")]


def test_three_lines_are_new():
    assert [line[0] for line in diff()].count("+") == 3
    assert [line[0] for line in diff()].count("-") <= 1


def test_the_page_shows_this_difference():
    shown = re.search(r"```diff\n(.*?)```", PAGE.read_text(), re.S)[1].splitlines()
    assert [line for line in shown if line[0] in "+-"] == diff()


def accuracies(result):
    assert result.returncode == 0, result.stderr
    return [float(each) for each in re.findall(r"accuracy ([\d.]+)", result.stdout)]


def test_before_trains():
    (accuracy,) = accuracies(alone(FOLDER / "before.py", DATA))
    assert accuracy > 0.95


def test_after_trains_alone():
    (accuracy,) = accuracies(alone(FOLDER / "after.py", DATA))
    assert accuracy > 0.95


@pytest.mark.parametrize("processes", [2, 4])
def test_after_trains_with_several_processes(processes):
    found = accuracies(torchrun(processes, FOLDER / "after.py", DATA))
    assert len(found) == processes
    assert min(found) > 0.95
