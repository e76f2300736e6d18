"""The example for scikit-learn."""

import sys

import pytest
from conftest import ROOT, trained

pytest.importorskip("sklearn")

DATA = ROOT / "examples" / "data" / "digits.csv"
FOLDER = ROOT / "examples" / "frameworks" / "scikit-learn"


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_train_together(processes, tmp_path):
    command = [sys.executable, FOLDER / "train_digits.py", DATA]
    accuracy, _ = trained(processes, *command, folder=tmp_path)
    # The mean of classifiers is another one than that of all rows, and as good.
    assert accuracy > 0.86
