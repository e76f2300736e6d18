"""The script of docs/use/frameworks/lightgbm.md, before and after, and over LightGBM's own sockets.

`python test_lightgbm_example.py` prints the table of the page, in seconds of a training.
"""

import re
import statistics
import sys

import pytest
from conftest import ROOT, alone, example, kvstore_run

pytest.importorskip("lightgbm")

DATA = ROOT / "examples" / "data" / "digits.csv"
FOLDER, DIFFERENCE, SHOWN = example("lightgbm")

# Trains by the functions of after.py, and by those of before.py over LightGBM's own sockets.
BESIDE = """
import socket
import sys
import time

sys.path.insert(0, sys.argv[1])
import after
import before
import kvstore.lightgbm
import numpy as np

kv, rows = kvstore.lightgbm.store(), np.loadtxt(sys.argv[2], delimiter=",")
rows, held_out = rows[:-360], rows[-360:]
for module in (before, after):
    module.PARAMETERS["num_threads"] = 1


def seconds_of(train, *arguments):
    kv.allreduce(np.zeros(1))
    began = time.perf_counter()
    booster = train(*arguments)
    slowest = np.array([time.perf_counter() - began])
    kv.allreduce(slowest, op="max")
    return booster, slowest[0]


def own():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = np.array([server.getsockname()[1]])
    ports = [np.zeros_like(port) for _ in range(kv.num_workers)]
    kv.allgather(port, ports)
    machines = ",".join(f"127.0.0.1:{each[0]}" for each in ports)
    network = {"machines": machines, "local_listen_port": int(port[0]), "tree_learner": "data"}
    before.PARAMETERS.update(network)
    return before.train(rows[kv.rank :: kv.num_workers], 30).free_network()


for _ in range(int(sys.argv[3])):
    beside, theirs = seconds_of(own)
    booster, ours = seconds_of(after.train, rows, 30)
    trees = [each.model_to_string().split("parameters:")[0] for each in (beside, booster)]
    assert trees[0] == trees[1]
    accuracies = [f"{after.accuracy(each, held_out):.4f}" for each in (beside, booster)]
    print("accuracy", *accuracies, f"{theirs:.3f} {ours:.3f}", flush=True)
"""


def test_three_lines_are_new():
    assert [line[0] for line in DIFFERENCE] == ["+"] * 3


def test_the_page_shows_this_difference():
    assert SHOWN == DIFFERENCE


def accuracies(output):
    return re.findall(r"accuracy ([\d.]+)", output)


@pytest.fixture(scope="module")
def before():
    result = alone(FOLDER / "before.py", DATA)
    assert result.returncode == 0, result.stderr
    (accuracy,) = accuracies(result.stdout)
    assert float(accuracy) > 0.85
    return accuracy


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_after_trains_like_before(before, processes, tmp_path):
    command = [sys.executable, FOLDER / "after.py", DATA]
    found = accuracies(kvstore_run(processes, *command, folder=tmp_path))
    assert len(found) == processes
    # The same trees everywhere; alone they are those of before.py.
    assert len(set(found)) == 1
    assert abs(float(found[0]) - float(before)) < (0.02 if processes > 1 else 1e-9)


def beside(processes, series, folder):
    """The lines of rank 0: accuracies and seconds, of LightGBM's sockets and of the store."""
    (folder / "beside.py").write_text(BESIDE)
    command = [sys.executable, "beside.py", FOLDER, DATA, series]
    output = kvstore_run(processes, *command, folder=folder)
    lines = [line for line in output.splitlines() if line.startswith("worker 0 ")]
    return [line.split("accuracy ")[1].split() for line in lines if "accuracy " in line]


@pytest.mark.parametrize("processes", [2, 4])
def test_after_has_the_trees_of_lightgbms_own_sockets(processes, tmp_path):
    ((theirs, ours, _, _),) = beside(processes, 1, tmp_path)
    assert theirs == ours


def main():
    import tempfile
    from pathlib import Path

    for processes in (2, 4):
        with tempfile.TemporaryDirectory() as folder:
            lines = beside(processes, 7, Path(folder))
        for number, side in ((0, "sockets"), (1, "store")):
            times = [float(line[2 + number]) for line in lines]
            seconds = statistics.median(times)
            accuracy = lines[0][number]
            print(f"{processes} processes, {side}: accuracy {accuracy}, {seconds:.3f} s {times}")


if __name__ == "__main__":
    main()
