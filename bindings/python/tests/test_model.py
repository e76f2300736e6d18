"""Random sequences of operations against a plain model in numpy, bit for bit.

KV_TEST_SEED repeats a run, KV_TEST_OPERATIONS sets its length.
"""

import os
import secrets

import numpy as np
import pytest
from support import DTYPES, FLOATS, is_float, random_array, same_numbers, sum_of

import kvstore

OPERATIONS = int(os.environ.get("KV_TEST_OPERATIONS", 50_000))
KEYS = [0, 1, 7, 2**62, "w", "b", "1", "gewicht"]
SHAPES = [(), (1,), (0, 2), (5,), (2, 3), (4, 1, 3)]


class Model:
    """What a store does, said in numpy."""

    def __init__(self):
        self.values = {}
        self.updater = None

    def push(self, pairs):
        for key in dict.fromkeys(key for key, _ in pairs):
            stored = self.values[key]
            merged = sum_of([value for each, value in pairs if each == key], stored.dtype)
            if self.updater is None:
                self.values[key] = merged
            else:
                self.updater(key, merged, stored)


def add_twice(key, merged, stored):
    stored += merged
    stored += merged


def subtract(key, merged, stored):
    stored -= merged


class Walk:
    """One store and its model, side by side."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.kv = kvstore.create(["local", "device"][seed % 2], threads=1 + seed % 3)
        self.model = Model()
        self.tickets = []

    def choice(self, things):
        return things[self.random.integers(len(things))]

    def some_keys(self, allowed, most):
        allowed = list(allowed)
        return [self.choice(allowed) for _ in range(self.random.integers(1, most + 1))]

    def laid_out(self, array):
        """The same elements in memory of another layout."""
        kind = self.random.integers(4)
        if kind == 0:
            return array
        if kind == 1:
            return array.copy(order="F")
        wide = np.zeros([2 * length for length in array.shape], array.dtype)
        # The ellipsis makes this a view also where there is no dimension.
        view = wide[(..., *(slice(None, None, 2 if kind == 2 else -2) for _ in array.shape))]
        view[...] = array
        return view

    def value_for(self, key):
        stored = self.model.values[key]
        dtype = stored.dtype
        if is_float(dtype) and self.random.random() < 0.2:
            dtype = self.choice(FLOATS)
        return self.laid_out(np.asarray(random_array(self.random, dtype, stored.shape)))

    def out_for(self, key):
        stored = self.model.values[key]
        dtype = stored.dtype
        if is_float(dtype) and self.random.random() < 0.2:
            dtype = self.choice(FLOATS)
        return self.laid_out(np.zeros(stored.shape, dtype))

    def run(self, operations):
        steps = [self.init, self.push, self.push, self.pull, self.pull, self.pushpull]
        steps += [self.pushpull_in_place, self.broadcast, self.push_later, self.pull_later]
        rare = [self.remove, self.set_updater, self.check_keys, self.settle]
        for _ in range(operations):
            self.choice(rare if self.random.random() < 0.1 else steps)()
        self.settle()
        self.kv.close()

    def check(self, pairs):
        for key, out in pairs:
            expected = self.model.values[key].astype(out.dtype)
            assert same_numbers(out, expected), key

    def fresh_keys(self):
        return [key for key in KEYS if key not in self.model.values]

    def new_value(self):
        return np.asarray(random_array(self.random, self.choice(DTYPES), self.choice(SHAPES)))

    def init(self):
        keys = self.fresh_keys()[: self.random.integers(1, 3)]
        values = [self.new_value() for _ in keys]
        self.kv.init(keys, values)
        self.model.values.update(zip(keys, (value.copy() for value in values)))

    def broadcast(self):
        for key in self.fresh_keys()[:1]:
            value = self.new_value()
            self.model.values[key] = value.copy()
            out = self.out_for(key)
            self.kv.broadcast(key, value, out=out)
            self.check([(key, out)])

    def pushed(self):
        keys = self.some_keys(self.model.values, 4)
        pairs, values = [], []
        for key in keys:
            mine = [self.value_for(key) for _ in range(self.choice([1, 1, 1, 2, 3, 5]))]
            pairs += [(key, value) for value in mine]
            values.append(mine if len(mine) > 1 else mine[0])
        return keys, values, pairs

    def push(self):
        if self.model.values:
            keys, values, pairs = self.pushed()
            self.kv.push(keys, values)
            self.model.push(pairs)

    def push_later(self):
        if self.model.values:
            keys, values, pairs = self.pushed()
            priority = int(self.random.integers(-3, 4))
            self.tickets.append((self.kv.push_async(keys, values, priority), []))
            self.model.push(pairs)

    def pull(self):
        if self.model.values:
            keys = self.some_keys(self.model.values, 4)
            outs = [self.out_for(key) for key in keys]
            self.kv.pull(keys, out=outs)
            self.check(zip(keys, outs))

    def pull_later(self):
        if self.model.values:
            keys = self.some_keys(self.model.values, 4)
            outs = [self.out_for(key) for key in keys]
            ticket = self.kv.pull_async(keys, out=outs)
            expected = [self.model.values[key].astype(out.dtype) for key, out in zip(keys, outs)]
            self.tickets.append((ticket, list(zip(outs, expected))))

    def pushpull(self):
        if self.model.values:
            keys, _, pairs = self.pushed()
            both = list(dict.fromkeys(keys))
            grouped = [[value for each, value in pairs if each == key] for key in both]
            outs = [self.out_for(key) for key in both]
            self.kv.pushpull(both, grouped, out=outs)
            self.model.push(pairs)
            self.check(zip(both, outs))

    def pushpull_in_place(self):
        if self.model.values:
            key = self.choice(list(self.model.values))
            values = [self.value_for(key) for _ in range(self.choice([1, 2, 3]))]
            pairs = [(key, value.copy()) for value in values]
            self.kv.pushpull(key, values)
            self.model.push(pairs)
            self.check((key, value) for value in values)

    def remove(self):
        if self.model.values:
            key = self.choice(list(self.model.values))
            self.kv.remove(key)
            del self.model.values[key]

    def set_updater(self):
        self.model.updater = self.choice([None, None, add_twice, subtract])
        self.kv.set_updater(self.model.updater)

    def check_keys(self):
        keys = self.kv.keys()
        assert set(keys) == set(self.model.values)
        integers = [key for key in keys if not isinstance(key, str)]
        assert keys[: len(integers)] == sorted(integers)
        for key in keys:
            value = self.model.values[key]
            assert self.kv.key_info(key) == (value.dtype.name, value.shape)

    def settle(self):
        for ticket, pairs in self.tickets:
            ticket.wait(60)
            for out, expected in pairs:
                assert same_numbers(out, expected)
        self.tickets.clear()


@pytest.mark.parametrize("part", range(4))
def test_random_sequences_of_operations(part):
    base = int(os.environ.get("KV_TEST_SEED") or secrets.randbits(32))
    print(f"KV_TEST_SEED={base}")
    with np.errstate(all="ignore"):
        Walk(base + part).run(OPERATIONS // 4)
