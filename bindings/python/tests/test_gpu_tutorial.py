"""The tutorial on four GPUs prints what it prints in host memory.

"Device" i of examples/python/tutorial.py is GPU i here, with a stream of its own. The test has a
process of its own, see `pytest_pyfunc_call` of conftest.py.
"""

import numpy as np
import pytest
import stand_in
from conftest import ROOT
from stand_in import driver, filled

import kvstore

pytestmark = pytest.mark.gpu(DEVICES=4)

GPUS = 4


class Page:
    """The lines of the tutorial, with arrays of a package whose current streams are its own."""

    def __init__(self):
        self.cupy, self.text = stand_in.cupy(), ""
        for gpu in range(GPUS):
            self.cupy.current.streams[gpu] = driver.stream(gpu)

    def line(self, name, value):
        self.text += f"{name}: {value}\n"

    def arrays(self, count, number):
        """One array on each of the first GPUs."""
        return [self.cupy.ndarray(filled(number), gpu) for gpu in range(count)]

    def show(self, name, *arrays):
        """Prints the one value that all elements of all arrays have."""
        contents = np.stack([array.get() for array in arrays])
        assert (contents == contents.flat[0]).all(), (name, contents)
        self.line(name, f"{contents.flat[0]:g}")

    def pull(self, name, kv, count=1):
        outs = self.arrays(count, 0)
        kv.pull(3, out=outs)
        self.show(name, *outs)

    def first(self):
        kv = kvstore.create("local")
        kv.init(3, self.arrays(1, 2)[0])
        self.pull("init", kv)
        kv.push(3, self.arrays(1, 8))
        self.pull("push", kv)
        kv.push(3, self.arrays(GPUS, 1))
        self.pull("four devices", kv)
        calls = []

        def update(key, input, stored):
            calls.append(key)
            stored += input * 2

        kv.set_updater(update)
        self.pull("updater set", kv)
        kv.push(3, self.arrays(1, 1))
        self.pull("updater push", kv)
        self.line("updater calls", len(calls))
        self.line("updater key", calls[0])
        self.pull("four outs", kv, GPUS)

        calls.clear()
        keys, each, (out,) = [5, 7, 9], self.arrays(3, 1), self.arrays(1, 0)
        kv.init(keys, each)
        kv.push(keys, each)
        kv.pull(keys, out=each)
        self.show("keys 5 7 9", *each)
        self.line("updater order", " ".join(map(str, calls)))
        kv.pull(keys, out=[out] * 3)
        self.show("one out of three keys", out)
        outs = self.arrays(GPUS, 0)
        kv.push(keys, [self.arrays(GPUS, 1)] * 3)
        kv.pull(keys, out=[outs] * 3)
        self.show("list of lists", *outs)

    def second(self):
        kv = kvstore.create("device")
        kv.init(3, self.arrays(1, -2)[0])
        self.pull("device init", kv)
        kv.push(3, self.arrays(1, -7))
        self.pull("device push", kv)
        kv.push(3, self.arrays(3, 1))
        self.pull("device three ones", kv)

        keys, each = [7, 11, 13, 17], self.arrays(GPUS, -3)
        kv.init(keys, each)
        assert [kv.key_device(key) for key in keys] == [f"cuda:{gpu}" for gpu in range(GPUS)]
        kv.pull(keys, out=each)
        self.show("device keys", *each)
        kv.push(keys, [self.arrays(3, -0.1)] * 4)
        kv.pull(keys, out=each)
        self.show("device multi push", *each)

        def update(key, input, stored):
            stored += 0.01 * input

        kv.set_updater(update)
        self.pull("device updater set", kv)
        kv.push(3, self.arrays(1, 5))
        self.pull("device updater push", kv)


def test_the_tutorial_on_four_gpus_prints_the_numbers_of_host_memory():
    page = Page()
    page.first()
    page.second()
    assert page.text == (ROOT / "tests" / "golden" / "tutorial.txt").read_text()
