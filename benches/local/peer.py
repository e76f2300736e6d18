"""Runs the same rounds with another library, for benches/local/peers.rs.

Usage: peer.py mxnet | numpy

Reads requests from standard input, one JSON object a line, and answers each with one:

    {"shapes": [[3, 4], ...], "values": 4, "outs": 4, "rule": "assign"}
        makes keys 0, 1, ... with the numbers i % 251 - 125 in each value; does one round and
        answers {"out": [the first numbers of the last out]}, or {"out": null} if it has no such
        rule
    {"call": "pushpull", "repeats": 10}
        answers {"seconds": a round's}, which ends when the outs can be read
"""

import ctypes
import json
import sys
import time

import numpy as np


def numbers(count):
    """Numbers that every peer uses: small, whole, zero among them."""
    return (np.arange(count) % 251 - 125).astype(np.float32)


def copies(shapes, count):
    """Make `count` arrays for each shape; each of the `count` is one block of memory."""
    blocks = [numbers(sum(int(np.prod(shape)) for shape in shapes)) for _ in range(count)]
    lists, place = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        lists.append([block[place : place + size].reshape(shape) for block in blocks])
        place += size
    return lists


class Numpy:
    """What one writes without a library: a pass over memory for each sum and each copy."""

    def __init__(self, shapes, values, outs, rule):
        """Make `values` and `outs` arrays for each shape."""
        if rule != "assign":
            raise NotImplementedError
        self.values, self.outs = copies(shapes, values), copies(shapes, outs)
        self.stored = [np.zeros(shape, np.float32) for shape in shapes]

    def call(self, _):
        """Return what does a round; there is one way."""
        return self.round

    def round(self):
        """Sum the values of each key, then fill its outs."""
        for stored, values, outs in zip(self.stored, self.values, self.outs):
            if len(values) == 1:
                np.copyto(stored, values[0])
            else:
                np.add(values[0], values[1], out=stored)
                for value in values[2:]:
                    np.add(stored, value, out=stored)
            for out in outs:
                np.copyto(out, stored)

    def last_out(self):
        """Return the last out of the last key."""
        return self.outs[-1][-1]


class MXNet:
    """Its local store through its C interface; arrays on one CPU device for each value and out."""

    def __init__(self, shapes, values, outs, rule):
        """Make a store with a key for each shape, and `values` and `outs` arrays for each."""
        import mxnet as mx

        self.lib = mx.base._LIB
        self.store = mx.kv.create("local")
        if rule == "momentum":
            self.store.set_optimizer(mx.optimizer.SGD(learning_rate=0.001, momentum=0.9, wd=0.0))
        elif rule != "assign":
            raise NotImplementedError

        def arrays(count):
            return [
                [mx.nd.array(array, ctx=mx.cpu(device)) for device, array in enumerate(list_)]
                for list_ in copies(shapes, count)
            ]

        first = [list_[0] for list_ in arrays(1)]
        self.store.init(list(range(len(shapes))), first)
        self.values, self.outs = arrays(values), arrays(outs)
        self.pushed, self.pulled = self.pairs(self.values), self.pairs(self.outs)
        mx.nd.waitall()

    @staticmethod
    def pairs(lists):
        """A count, an array of keys and an array of handles."""
        flat = [(key, array.handle) for key, list_ in enumerate(lists) for array in list_]
        keys, handles = zip(*flat)
        count = len(flat)
        return (
            ctypes.c_uint(count),
            (ctypes.c_int * count)(*keys),
            (ctypes.c_void_p * count)(*(handle.value for handle in handles)),
        )

    def call(self, name):
        """Return what does a round: one call of the C interface or two, and the wait."""
        lib, store = self.lib, self.store.handle
        (count, keys, values), (out_count, out_keys, outs) = self.pushed, self.pulled
        zero, sparse = ctypes.c_int(0), ctypes.c_bool(True)

        def pushpull():
            return (
                lib.MXKVStorePushPull(store, count, keys, out_count, out_keys, values, outs, zero)
                or lib.MXNDArrayWaitAll()
            )

        def push_then_pull():
            return (
                lib.MXKVStorePush(store, count, keys, values, zero)
                or lib.MXKVStorePullWithSparse(store, out_count, out_keys, outs, zero, sparse)
                or lib.MXNDArrayWaitAll()
            )

        chosen = {"pushpull": pushpull, "push + pull": push_then_pull}[name]

        def checked():
            if chosen() != 0:
                self.lib.MXGetLastError.restype = ctypes.c_char_p
                raise RuntimeError(self.lib.MXGetLastError().decode())

        return checked

    def last_out(self):
        """Return the last out of the last key."""
        return self.outs[-1][-1].asnumpy()


PEERS = {"mxnet": MXNet, "numpy": Numpy}


def answer(make, peer, request):
    """Answer one request; return the peer that is ready now, and the answer."""
    if "shapes" in request:
        try:
            peer = make(**request)
        except NotImplementedError:
            return None, {"out": None}
        peer.call("pushpull")()
        return peer, {"out": [float(number) for number in peer.last_out().ravel()[:8]]}
    call, repeats = peer.call(request["call"]), request["repeats"]
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return peer, {"seconds": (time.perf_counter() - start) / repeats}


def main():
    """Answer requests until the input ends."""
    make, peer = PEERS[sys.argv[1]], None
    for line in sys.stdin:
        request = json.loads(line)
        if "shapes" in request:
            peer = None  # Its memory goes before the next one's comes.
        peer, answered = answer(make, peer, request)
        print(json.dumps(answered), flush=True)


if __name__ == "__main__":
    main()
