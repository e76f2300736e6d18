"""The script of docs/use/frameworks/mxnet.md, before and after."""

import re

import pytest
from conftest import ROOT, alone, example

pytest.importorskip("mxnet")

DATA = ROOT / "examples" / "data" / "digits.csv"
FOLDER, DIFFERENCE, SHOWN = example("mxnet")


def test_an_import_is_new_and_a_word_is_another():
    assert [line[0] for line in DIFFERENCE] == ["+", "-", "+"]


def test_the_page_shows_this_difference():
    assert SHOWN == DIFFERENCE


def test_both_train_to_the_same_accuracy():
    found = []
    for name in ("before", "after"):
        result = alone(FOLDER / f"{name}.py", DATA)
        assert result.returncode == 0, result.stderr
        found.append(float(re.search(r"accuracy ([\d.]+)", result.stdout)[1]))
    assert min(found) > 0.9
    assert abs(found[0] - found[1]) < 0.01
