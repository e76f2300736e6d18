"""Groups of workers: in a local store, and in jobs of processes, against numpy."""

import numpy as np
import pytest
from support import output_of_job

import kvstore


def test_the_group_of_a_local_store_is_a_store_of_its_own():
    with kvstore.create("local") as kv, kv.group("alone", [0]) as group:
        assert (group.rank, group.num_workers, group.type) == (0, 1, "local")
        kv.init("w", np.zeros(3))
        group.init("w", np.ones(3))
        group.push("w", np.full(3, 5.0))
        out = np.zeros(3)
        kv.pull("w", out=out)
        np.testing.assert_array_equal(out, np.zeros(3))
        group.pull("w", out=out)
        np.testing.assert_array_equal(out, np.full(3, 5.0))
        group.barrier()
    with pytest.raises(kvstore.ClosedError):
        group.pull("w", out=out)


def test_a_group_outlives_the_name_of_its_store():
    group = kvstore.create("local").group("alone", range(1))
    group.init(1, np.ones(2))
    out = np.zeros(2)
    group.pull(1, out=out)
    np.testing.assert_array_equal(out, np.ones(2))
    group.close()
    group.close()


@pytest.mark.parametrize(
    ("name", "ranks", "kind", "text"),
    [
        ("", [0], kvstore.InvalidArgumentError, "empty"),
        ("x" * 256, [0], kvstore.InvalidArgumentError, "255 bytes"),
        ("a\0b", [0], kvstore.InvalidArgumentError, "NUL"),
        (3, [0], TypeError, "is a str"),
        ("g", [], kvstore.InvalidArgumentError, "worker 0 alone"),
        ("g", [1], kvstore.InvalidArgumentError, "worker 0 alone"),
        ("g", [-1], kvstore.InvalidArgumentError, "ranks begin at 0"),
        ("g", [2**40], kvstore.InvalidArgumentError, "worker 0 alone"),
        ("g", ["0"], TypeError, "str"),
    ],
)
def test_what_is_no_group_is_refused(name, ranks, kind, text):
    with kvstore.create("local") as kv, pytest.raises(kind, match=text):
        kv.group(name, ranks)


PROGRAM = """
import kvstore, numpy as np
kv = kvstore.create("dist_sync")
rank, count = kv.rank, kv.num_workers
groups = {"evens": range(0, count, 2), "tail": range(1, count)}
mine = {name: kv.group(name, ranks) for name, ranks in groups.items() if rank in ranks}

def values(rank, step):
    return np.random.default_rng([rank, step]).standard_normal(5000).astype(np.float32)

kv.init("w", values(0, 99))
for name, group in mine.items():
    assert group.rank == list(groups[name]).index(rank)
    group.init("w", values(0, 99))
for step in range(3):
    for name, group in mine.items():
        group.push("w", values(rank, step))
    for name, group in mine.items():
        wanted = values(groups[name][0], step)
        for other in groups[name][1:]:
            wanted += values(other, step)
        out = np.zeros(5000, np.float32)
        group.pull("w", out=out)
        assert (out == wanted).all(), (name, step)
        own = values(rank, step)
        group.allreduce(own)
        assert (own == wanted).all(), (name, step)
out = np.zeros(5000, np.float32)
kv.pull("w", out=out)
assert (out == values(0, 99)).all()
if rank == 1:
    try:
        kv.group("evens", [0, 1])
    except kvstore.DiffersError as error:
        print("differs:", error, flush=True)
# The group is there until its workers leave it.
kv.barrier(timeout=30)
for group in mine.values():
    group.barrier(timeout=30)
    group.close()
kv.barrier(timeout=30)
kv.close()
print("done", rank)
"""


@pytest.mark.parametrize("workers", [3, 4])
def test_groups_of_a_job_have_rounds_and_exchanges_of_their_own(workers):
    output = output_of_job(PROGRAM, workers)
    assert output.count("done") == workers, output
    assert "worker 1 gives it worker 0, worker 1; it has worker 0, worker 2" in output
