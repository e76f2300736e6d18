"""The two KVStore tutorials. Prints `name: value`, the same lines as in the other languages.

Usage: tutorial.py
"""

import kvstore
import numpy as np

SHAPE = (2, 3)


def filled(value):
    return np.full(SHAPE, value, np.float32)


def show(name, *arrays):
    """Prints the one value that all elements of all arrays have."""
    value = arrays[0].flat[0]
    if not all((array == value).all() for array in arrays):
        raise SystemExit(f"{name}: the elements differ: {arrays}")
    print(f"{name}: {value:g}")


def first():
    kv = kvstore.create("local")
    out = filled(0)
    kv.init(3, filled(2))
    kv.pull(3, out=out)
    show("init", out)
    kv.push(3, filled(8))
    kv.pull(3, out=out)
    show("push", out)
    kv.push(3, [filled(1) for _ in range(4)])
    kv.pull(3, out=out)
    show("four devices", out)

    calls = []

    def update(key, input, stored):
        calls.append(key)
        stored += input * 2

    kv.set_updater(update)
    kv.pull(3, out=out)
    show("updater set", out)
    kv.push(3, filled(1))
    kv.pull(3, out=out)
    show("updater push", out)
    print(f"updater calls: {len(calls)}")
    print(f"updater key: {calls[0]}")
    outs = [filled(0) for _ in range(4)]
    kv.pull(3, out=outs)
    show("four outs", *outs)

    calls.clear()
    keys = [5, 7, 9]
    kv.init(keys, [filled(1)] * 3)
    kv.push(keys, [filled(1)] * 3)
    each = [filled(0) for _ in keys]
    kv.pull(keys, out=each)
    show("keys 5 7 9", *each)
    print("updater order:", *calls)
    kv.pull(keys, out=[out] * 3)
    show("one out of three keys", out)
    kv.push(keys, [[filled(1)] * 4] * 3)
    kv.pull(keys, out=[outs] * 3)
    show("list of lists", *outs)


def second():
    kv = kvstore.create("device")
    out = filled(0)
    kv.init(3, filled(-2))
    kv.pull(3, out=out)
    show("device init", out)
    kv.push(3, filled(-7))
    kv.pull(3, out=out)
    show("device push", out)
    kv.push(3, [filled(1) for _ in range(3)])
    kv.pull(3, out=out)
    show("device three ones", out)

    keys = [7, 11, 13, 17]
    each = [filled(0) for _ in keys]
    kv.init(keys, [filled(-3)] * 4)
    kv.pull(keys, out=each)
    show("device keys", *each)
    kv.push(keys, [[filled(-0.1)] * 3] * 4)
    kv.pull(keys, out=each)
    show("device multi push", *each)

    def update(key, input, stored):
        stored += 0.01 * input

    kv.set_updater(update)
    kv.pull(3, out=out)
    show("device updater set", out)
    kv.push(3, filled(5))
    kv.pull(3, out=out)
    show("device updater push", out)


first()
second()
