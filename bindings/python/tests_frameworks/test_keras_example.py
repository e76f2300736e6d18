"""The example for Keras 3, on two of its back ends."""

import sys

import pytest
from conftest import ROOT, trains_like_one

DATA = ROOT / "examples" / "data" / "digits.csv"
COMMAND = [sys.executable, ROOT / "examples" / "frameworks" / "keras" / "train_digits.py", DATA]


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_processes_train_like_one(monkeypatch, backend, processes, tmp_path):
    pytest.importorskip(backend)
    monkeypatch.setenv("KERAS_BACKEND", backend)
    pytest.importorskip("keras")
    trains_like_one(processes, *COMMAND, folder=tmp_path)
