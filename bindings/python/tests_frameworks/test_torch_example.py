"""The script of docs/use/frameworks/pytorch.md, before and after."""

import re

import pytest
from conftest import ROOT, alone, example, torchrun

pytest.importorskip("torch")

DATA = ROOT / "examples" / "data" / "digits.csv"
FOLDER, DIFFERENCE, SHOWN = example("pytorch")


def test_three_lines_are_new():
    assert [line[0] for line in DIFFERENCE].count("+") == 3
    assert [line[0] for line in DIFFERENCE].count("-") <= 1


def test_the_page_shows_this_difference():
    assert [line for line in SHOWN if line[0] in "+-"] == DIFFERENCE


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
