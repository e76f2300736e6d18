"""Collective calls: in a local store, and in jobs of processes, against numpy."""

import os
import re
import signal
import time

import numpy as np
import pytest
from support import output_of_job, start_job

import kvstore

WAIT_SECONDS = 60

REDUCTIONS = {
    "sum": lambda arrays: np.sum(arrays, axis=0, dtype=arrays[0].dtype),
    "mean": lambda arrays: np.sum(arrays, axis=0, dtype=arrays[0].dtype) / len(arrays),
    "max": lambda arrays: np.max(arrays, axis=0),
    "min": lambda arrays: np.min(arrays, axis=0),
}


@pytest.fixture
def store():
    with kvstore.create("local") as kv:
        yield kv


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("way", ["call", "ticket", "in place"])
def test_a_local_store_reduces_the_arrays_given(store, op, way):
    arrays = [np.arange(6, dtype=np.float64).reshape(2, 3) * step for step in (1, -2, 3)]
    wanted = REDUCTIONS[op](arrays)
    outs = [np.zeros((2, 3)), np.zeros((2, 3))]
    if way == "ticket":
        store.allreduce_async(arrays, outs, op=op).wait()
    elif way == "in place":
        outs = [array.copy() for array in arrays]
        store.allreduce(outs, op=op)
    else:
        store.allreduce(arrays, out=outs, op=op)
    for out in outs:
        np.testing.assert_array_equal(out, wanted)


def test_a_local_store_moves_to_itself(store):
    value, out = np.arange(4), np.zeros(4, np.int64)

    def took():
        np.testing.assert_array_equal(out, value)
        out[:] = 0

    store.allgather(value, [out])
    took()
    store.gather_async(value, out=[out]).wait()
    took()
    store.scatter(out, values=[value])
    took()
    store.all_to_all_async([value], [out]).wait()
    took()
    store.reduce_scatter([value], out)
    took()
    store.reduce(value, out=out)
    took()
    store.broadcast_from(value)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda kv: kv.allreduce(np.ones(2), op="prod"), kvstore.InvalidArgumentError, "'prod'"),
        (lambda kv: kv.allreduce(np.ones(2), np.ones(3)), kvstore.ShapeMismatchError, "allreduce"),
        (lambda kv: kv.allreduce(np.ones(2, int), op="mean"), kvstore.UnsupportedError, "mean"),
        (lambda kv: kv.reduce(np.ones(2), root=1), kvstore.InvalidArgumentError, "root is 1"),
        (lambda kv: kv.allreduce("text"), TypeError, "allreduce: value 0"),
        (lambda kv: kv.allgather(np.ones(2), [(1, 2)]), TypeError, "allgather: out 0"),
        (lambda kv: kv.gather([np.ones(2)] * 2), kvstore.InvalidArgumentError, "2 arrays"),
    ],
)
def test_what_is_refused_says_why(store, call, kind, text):
    with pytest.raises(kind, match=text):
        call(store)


EXCHANGES = """
import kvstore, numpy as np
kv = kvstore.create("dist_sync")
rank, count = kv.rank, kv.num_workers

def values(rank, size):
    return np.random.default_rng(rank).standard_normal(size).astype(np.float32)

for size in (1, 1000, 5000, 300_001):
    every = [values(rank, size) for rank in range(count)]
    wanted = every[0].copy()
    for other in every[1:]:
        wanted += other
    own = values(rank, size)
    out = np.zeros(size, np.float32)
    kv.allreduce(own, out)
    assert (out == wanted).all()
    ticket = kv.allreduce_async(own, out, op="max")
    ticket.wait()
    assert (out == np.max(every, axis=0)).all()
    kv.allreduce(own)
    assert (own == wanted).all()
    outs = [np.zeros(size, np.float32) for _ in range(count)]
    kv.allgather(values(rank, size), outs)
    assert all((out == value).all() for out, value in zip(outs, every))
    kv.broadcast_from(out, root=count - 1)
    own = values(rank, size)
    kv.broadcast_from(own, root=count - 1)
    assert (own == every[-1]).all()
    strided = np.zeros((size, 2), np.float32)
    kv.reduce(values(rank, size), root=0, out=strided[:, 0])
    assert (strided[:, 0] == wanted).all() if rank == 0 else not strided.any()
try:
    kv.allreduce(np.zeros(3 + rank))
except kvstore.DiffersError as error:
    print("differs:", error)
kv.close()
print("done", rank)
"""


@pytest.mark.parametrize("workers", [2, 3])
def test_a_job_exchanges_arrays(workers):
    output = output_of_job(EXCHANGES, workers)
    assert output.count("done") == workers and output.count("differs:") == workers, output
    # Of two workers, whichever two meet first.
    assert len(set(re.findall(r"of (\d) float64", output))) >= 2, output


DEATHS = """
import os, kvstore, numpy as np, sys, time
kv = kvstore.create("dist_sync")
kv.allreduce(np.ones(200_000))
print("pid", kv.rank, os.getpid(), flush=True)
start = time.monotonic()
try:
    while True:
        kv.allreduce(np.ones(200_000))
except kvstore.KVStoreError as error:
    print("error", type(error).__name__, error, flush=True)
"""


def test_the_death_of_a_worker_ends_the_exchanges_of_others():
    job = start_job(DEATHS, 3)
    output, pids = "", {}
    while len(pids) < 3:
        line = job.stdout.readline()
        assert line, output
        output += line
        words = line.split("|")[-1].split()
        if words[:1] == ["pid"]:
            pids[int(words[1])] = int(words[2])
    time.sleep(0.3)
    os.kill(pids[1], signal.SIGKILL)
    began = time.monotonic()
    rest, _ = job.communicate(timeout=WAIT_SECONDS)
    output += rest
    assert time.monotonic() - began < 20, output
    errors = [line for line in output.splitlines() if "error PeerLostError" in line]
    assert len(errors) == 2, output
    assert all("allreduce" in line and "worker 1" in line for line in errors), output


EXPIRED = """
import asyncio, time
import numpy as np
import kvstore

kv = kvstore.create("dist_sync", timeout_ms=1500)
own = np.ones(3, np.float32)
kv.allreduce(own)
if kv.rank == 0:
    told = []
    begin = time.monotonic()
    ticket = kv.allreduce_async(own)
    ticket.add_done_callback(lambda ticket: told.append(ticket.done()))
    while not ticket.done():
        assert time.monotonic() < begin + 30
        time.sleep(0.01)

    async def awaited():
        await ticket

    for wait in (ticket.wait, lambda: ticket.wait(0), lambda: asyncio.run(awaited())):
        try:
            wait()
        except kvstore.ExpiredError as error:
            print(error, flush=True)
    print("took", 1.4 < time.monotonic() - begin < 15, told, flush=True)
    second = kv.allreduce_async(own)
    try:
        kv.wait_all()
    except kvstore.ExpiredError as error:
        print("all:", error, flush=True)
kv.barrier(timeout=40)
"""


def test_an_operation_whose_time_is_over_has_ended():
    output = output_of_job(EXPIRED, 2)
    text = r"allreduce: not done within 150\d ms, waiting for worker 1"
    assert len(re.findall(text, output)) == 4, output
    assert re.search(f"all: {text}", output), output
    assert "took True [True]" in output
