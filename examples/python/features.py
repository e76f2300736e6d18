"""What training programs use beyond push and pull, in one process or in a job of many.

Usage: features.py [TYPE]

    python features.py                 one process, the only worker
    python features.py dist_sync       a worker of a job; `kvstore run` starts them all, and the
                                       servers:
    kvstore run -n 2 -s 1 -- python features.py dist_sync

All workers make the same calls, with values that depend on their rank. Rank 0 prints `name: value`
for each result, the same lines as in the other languages.
"""

import asyncio
import json
import os
import struct
import sys
import tempfile
import threading

import kvstore
import numpy as np


def filled(value):
    return np.full(3, value, np.float32)


def report(kv, what, value):
    """Prints on rank 0: the other workers have the same values."""
    if kv.rank == 0:
        print(f"{what}: {value}")


def show(what, kv, key):
    """Prints the first element of a key. Here as elsewhere all workers make the call."""
    out = filled(0)
    kv.pull(key, out=out)
    report(kv, what, f"{out[0]:g}")


def what_there_is(kv):
    """A program that is written for one release, and runs with another, asks before it calls."""
    report(kv, "has tickets", int(kvstore.capable("tickets")))
    report(kv, "has telepathy", int(kvstore.capable("telepathy")))


def ends_of_operations(kv):
    """The end of an operation comes to the program: to a coroutine, or as a call."""
    kv.init("first", filled(0))

    async def pushed():
        await kv.push_async("first", filled(4))

    asyncio.run(pushed())
    report(kv, "event", "ok")

    told = threading.Event()
    ticket = kv.push_async("first", filled(4))
    ticket.add_done_callback(lambda ticket: (ticket.wait(), told.set()))
    report(kv, "told", "ok" if told.wait(60) else "failed")


def rules_of_keys(kv):
    """Weights learn by a rule. What is counted beside them is assigned: the sum over workers."""
    kv.init({"w": filled(2), "steps": np.array(0)})
    kv.set_optimizer_for("steps", "none")
    kv.set_optimizer("sgd", learning_rate=0.5)
    kv.push("w", filled(kv.rank + 1))
    steps = np.array(7)
    kv.push("steps", steps)
    steps[...] = 0
    kv.pull("steps", out=steps)
    show("weight by sgd", kv, "w")
    report(kv, "steps", steps)


def means(kv):
    """A batch pushes the sum over its samples, and their number: the rule gets the mean over all."""
    kv.set_weight(8 * (kv.rank + 1))  # batches of 8 samples, 16 samples, ...
    kv.push("w", filled(24))
    kv.clear_weight()
    last = kv.last_round("w")
    show("weight by a mean", kv, "w")
    report(kv, "samples", f"{last.total_weight:g}")
    report(kv, "contributors", last.contributors)


def unequal_epochs(kv):
    """Rank 0 has a batch more than the others. Rounds do not wait for workers that are done."""
    if kv.rank == 0:
        kv.push("w", filled(1))
    kv.done()
    kv.resume(timeout=60)  # all go on together, in the next epoch
    show("weight of the epoch", kv, "w")
    report(kv, "lost", kv.num_lost)


def bound_list(kv):
    """Keys and arrays that are checked once: each later call costs little beside the bytes."""
    gradient, weight = filled(0), filled(0)
    with kv.bind("w", gradient, weight) as bound:
        for step in range(1, 4):
            gradient.fill(step * (kv.rank + 1))
            bound.pushpull()
            report(kv, f"bound step {step}", f"{weight[0]:g}")


def opaque_values(kv):
    """A mask is stored and given out; two of them have no sum."""
    mask = np.array([True, False, True])
    kv.set_optimizer_for("mask", "none")
    kv.init("mask", mask)
    out = np.zeros(3, bool)
    kv.pull("mask", out=out)
    report(kv, "mask", " ".join(f"{bit:d}" for bit in out))
    try:
        kv.push("mask", [mask, mask])
        report(kv, "two masks", "summed")
    except kvstore.UnsupportedError:
        report(kv, "two masks", "unsupported")


def write_model(path):
    """A file of safetensors as another program writes it: length of the header, header, elements."""
    header = json.dumps(
        {
            "model.w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]},
            "head": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]},
        }
    ).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + struct.pack("<4f", 9, 9, 9, 1))


def a_model_of_another_program(kv):
    """Takes the model's tensors without their prefix, and leaves the others out.

    All workers load together: the file of rank 0.
    """
    before = len(kv.keys())
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        write_model(path)
        kv.load(path, lambda name: name[6:] if name.startswith("model.") else None)
    show("loaded weight", kv, "w")
    report(kv, "new keys", len(kv.keys()) - before)


def clipping(kv):
    """Gradients of a large norm are scaled down. The norm is that of the sums over the workers."""
    gradient = np.array([3, 4, 0], np.float32) * (kv.rank + 1)
    kv.set_clipping(2.5)
    kv.push("w", gradient)
    report(kv, "norm", f"{kv.last_norm().norm:g}")
    show("weight by a clipped step", kv, "w")
    kv.set_clipping(0)
    kv.push("w", gradient)
    show("weight by a full step", kv, "w")


def a_group(kv):
    """A group of workers, here of all, has keys and rules of its own."""
    with kv.group("all", range(kv.num_workers)) as group:
        group.init("w", filled(0))
        group.push("w", filled(4 * (kv.rank + 1)))
        show("weight of the group", group, "w")
        show("weight of the job", kv, "w")


def collective_calls(kv):
    """Workers exchange values without a key: a sum, the value of one of them, and that of each."""
    one, two, total = filled(kv.rank + 1), filled(2 * (kv.rank + 1)), filled(0)
    kv.allreduce([one, two], out=total)
    report(kv, "sum of all", f"{total[0]:g}")

    value = filled(kv.rank + 1)
    kv.broadcast_from(value, root=kv.num_workers - 1)
    report(kv, "value of the last", f"{value[0]:g}")

    every = [filled(0) for _ in range(kv.num_workers)]
    kv.allgather(one, every)
    report(kv, "values of all", " ".join(f"{value[0]:g}" for value in every))


def main():
    with kvstore.create(sys.argv[1] if len(sys.argv) > 1 else "local") as kv:
        what_there_is(kv)
        ends_of_operations(kv)
        rules_of_keys(kv)
        means(kv)
        unequal_epochs(kv)
        bound_list(kv)
        opaque_values(kv)
        a_model_of_another_program(kv)
        clipping(kv)
        a_group(kv)
        collective_calls(kv)
        kv.barrier(timeout=60)  # no worker leaves while others need its values


main()
