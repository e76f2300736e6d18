"""What training programs use beyond push and pull, in a store of one process.

Prints `name: value`, the same lines as in the other languages; the same calls serve a job of many
machines.

Usage: features.py
"""

import asyncio
import json
import os
import struct
import tempfile
import threading

import numpy as np

import kvstore


def filled(value):
    return np.full(3, value, np.float32)


def show(what, kv, key):
    out = filled(0)
    kv.pull(key, out=out)
    print(f"{what}: {out[0]:g}")


def what_there_is():
    """A program that is written for one release, and runs with another, asks before it calls."""
    print(f"has tickets: {kvstore.capable('tickets'):d}")
    print(f"has telepathy: {kvstore.capable('telepathy'):d}")


def ends_of_operations():
    """The end of an operation comes to the program: to a coroutine, or as a call."""
    with kvstore.create("local") as kv:
        kv.init("w", filled(0))

        async def pushed():
            await kv.push_async("w", filled(4))

        asyncio.run(pushed())
        print("event: ok")

        told = threading.Event()
        kv.push_async("w", filled(4)).add_done_callback(lambda ticket: (ticket.wait(), told.set()))
        print("told:", "ok" if told.wait(10) else "failed")


def rules_of_keys(kv):
    """Weights learn by a rule, and what is counted beside them is assigned."""
    kv.init({"w": filled(2), "steps": np.array(0)})
    kv.set_optimizer_for("steps", "none")
    kv.set_optimizer("sgd", learning_rate=0.5)
    kv.push("w", filled(1))
    steps = np.array(7)
    kv.push("steps", steps)
    steps[...] = 0
    kv.pull("steps", out=steps)
    show("weight by sgd", kv, "w")
    print(f"steps: {steps}")


def means(kv):
    """A batch pushes the sum over its samples, and their number: the rule gets the mean over all."""
    kv.set_weight(8)
    kv.push("w", filled(24))
    kv.clear_weight()
    last = kv.last_round("w")
    show("weight by a mean", kv, "w")
    print(f"samples: {last.total_weight:g}")
    print(f"contributors: {last.contributors}")

    # A worker without batches says so, and all go on together in the next epoch.
    kv.done()
    kv.resume(timeout=10)
    print(f"lost: {kv.num_lost}")


def bound_list(kv):
    """Keys and arrays that are checked once: each later call costs little beside the bytes."""
    gradient, weight = filled(0), filled(0)
    with kv.bind("w", gradient, weight) as bound:
        for step in range(1, 4):
            gradient.fill(step)
            bound.pushpull()
            print(f"bound step {step}: {weight[0]:g}")


def opaque_values(kv):
    """A mask is stored and given out; two of them have no sum."""
    mask = np.array([True, False, True])
    kv.set_optimizer_for("mask", "none")
    kv.init("mask", mask)
    out = np.zeros(3, bool)
    kv.pull("mask", out=out)
    print("mask:", *out.astype(int))
    try:
        kv.push("mask", [mask, mask])
        print("two masks: summed")
    except kvstore.UnsupportedError:
        print("two masks: unsupported")


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
    """Takes the model's tensors without their prefix, and leaves the others out."""
    before = len(kv.keys())
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        write_model(path)
        kv.load(path, lambda name: name[6:] if name.startswith("model.") else None)
    show("loaded weight", kv, "w")
    print(f"new keys: {len(kv.keys()) - before}")


def a_group(kv):
    """Values that workers add up without a key, and a group of workers with keys of its own."""
    with kv.group("alone", [0]) as group:
        group.init("w", filled(4))
        show("weight of the group", group, "w")
        show("weight of the job", kv, "w")
        total = filled(0)
        group.allreduce([filled(1), filled(2)], out=total)
        print(f"sum of all: {total[0]:g}")


what_there_is()
ends_of_operations()
with kvstore.create("local") as store:
    rules_of_keys(store)
    means(store)
    bound_list(store)
    opaque_values(store)
    a_model_of_another_program(store)
    a_group(store)
