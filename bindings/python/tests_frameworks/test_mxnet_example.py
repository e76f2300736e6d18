"""The script of docs/use/frameworks/mxnet.md, before and after."""

import difflib
import re

import pytest
from conftest import ROOT, alone

pytest.importorskip("mxnet")

FOLDER = ROOT / "examples" / "frameworks" / "mxnet"
DATA = ROOT / "examples" / "data" / "digits.csv"
PAGE = ROOT / "docs" / "use" / "frameworks" / "mxnet.md"


def diff():
    before, after = (
        (FOLDER / f"{name}.py").read_text().splitlines() for name in ("before", "after")
    )
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    return [line for line in lines if not line.startswith("@@")]


def test_an_import_is_new_and_a_word_is_another():
    assert [line[0] for line in diff()] == ["+", "-", "+"]


def test_the_page_shows_this_difference():
    shown = re.search(r"```diff\n(.*?)```", PAGE.read_text(), re.S)[1].splitlines()
    assert shown == diff()


def test_both_train_to_the_same_accuracy():
    found = []
    for name in ("before", "after"):
        result = alone(FOLDER / f"{name}.py", DATA)
        assert result.returncode == 0, result.stderr
        found.append(float(re.search(r"accuracy ([\d.]+)", result.stdout)[1]))
    assert min(found) > 0.9
    assert abs(found[0] - found[1]) < 0.01
