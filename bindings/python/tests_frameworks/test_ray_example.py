"""The script of docs/use/frameworks/ray.md, before and after, and the job of that page."""

import json
import re

import numpy as np
import pytest
from conftest import ROOT, alone, example

pytest.importorskip("ray")

DATA = ROOT / "examples" / "data" / "digits.csv"
FOLDER, DIFFERENCE, SHOWN = example("ray")


def test_two_lines_are_new():
    assert [line[0] for line in DIFFERENCE] == ["+", "-", "+"]


def test_the_page_shows_this_difference():
    assert SHOWN == DIFFERENCE


def trained(name, workers):
    """Accuracy and sum of the weights of each rank."""
    result = alone(FOLDER / f"{name}.py", DATA, "--workers", workers)
    assert result.returncode == 0, result.stdout + result.stderr
    found = re.findall(r"accuracy ([\d.]+), sum of the weights ([-\d.]+)", result.stdout)
    assert len(found) == workers
    # The same weights everywhere.
    assert len(set(found)) == 1
    return [float(each) for each in found[0]]


@pytest.fixture(scope="module")
def one():
    """The same training by one process, whose sums need no other."""
    return trained("after", 1)


@pytest.mark.parametrize("workers", [2, 4])
def test_after_trains_like_one_process(one, workers):
    accuracy, total = trained("after", workers)
    assert accuracy == pytest.approx(one[0], abs=0.005)
    assert accuracy > 0.88
    assert total == pytest.approx(one[1], rel=1e-5)


@pytest.mark.parametrize("workers", [2, 4])
def test_after_trains_like_gloo(workers):
    pytest.importorskip("torch")
    ours, theirs = trained("after", workers), trained("before", workers)
    assert ours[0] == theirs[0]
    # Two numbers have one sum; gloo adds four in another order.
    assert ours[1] == theirs[1] if workers == 2 else ours[1] == pytest.approx(theirs[1], rel=1e-6)


def test_the_job_of_the_page_runs(tmp_path):
    page = (ROOT / "docs" / "use" / "frameworks" / "ray.md").read_text()
    program = re.search(r"```python\n(.*?)```", page, re.S)[1]
    program = program.replace("/shared/", f"{tmp_path}/").replace("ray.init()", INIT)
    (tmp_path / "train.py").write_text(program)
    result = alone(tmp_path / "train.py")
    assert result.returncode == 0, result.stdout + result.stderr
    # Two gradients, weight - 0 and weight - 1, are zero together in the middle.
    assert np.allclose(json.loads(result.stdout), [[0.5] * 3] * 2, rtol=1e-12)
    assert (tmp_path / "model.safetensors").exists()


INIT = "ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)"
