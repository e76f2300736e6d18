"""The script of docs/use/frameworks/transformers.md, before and after."""

import re
import sys

import pytest
from conftest import ROOT, example, kvstore_run

pytest.importorskip("transformers")

DATA = ROOT / "examples" / "data" / "digits.csv"
FOLDER, DIFFERENCE, SHOWN = example("transformers")


def test_three_lines_are_new():
    assert [line[0] for line in DIFFERENCE] == ["+", "-", "+", "+"]


def test_the_page_shows_this_difference():
    assert SHOWN == DIFFERENCE


def accuracies(output):
    return [float(each) for each in re.findall(r"accuracy ([\d.]+), \d+ steps", output)]


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    folder = tmp_path_factory.mktemp("before")
    (accuracy,) = accuracies(
        kvstore_run(1, sys.executable, FOLDER / "before.py", DATA, folder=folder)
    )
    assert accuracy > 0.9
    return accuracy


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_after_trains_like_before(before, processes, tmp_path):
    command = [sys.executable, FOLDER / "after.py", DATA, "--batch-size", 32 // processes]
    found = accuracies(kvstore_run(processes, *command, folder=tmp_path))
    assert len(found) == processes
    # The same weights everywhere.
    assert len(set(found)) == 1
    assert abs(found[0] - before) < 0.02
