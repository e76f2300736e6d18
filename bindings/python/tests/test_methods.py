"""The data methods are native: they take and refuse arguments as Python functions do."""

import inspect

import numpy as np
import pytest

import kvstore

PARAMETERS = {
    "init": "(self, /, key, value=None)",
    "push": "(self, /, key, value=None, priority=0)",
    "pull": "(self, /, key=None, out=None, priority=0)",
    "pushpull": "(self, /, key, value=None, out=None, priority=0)",
    "broadcast": "(self, /, key, value=None, out=None, priority=0)",
    "push_rows": "(self, /, key, row_ids, rows, priority=0)",
    "pull_rows": "(self, /, key, row_ids, out, priority=0)",
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_method_shows_its_parameters_and_its_documentation(name):
    method = getattr(kvstore.KVStore, name)
    assert str(inspect.signature(method)) == PARAMETERS[name]
    assert method.__name__ == name
    assert method.__doc__.splitlines()[0].endswith(".")


def test_arguments_come_by_place_or_by_name_in_any_order(kv):
    one, out = np.ones(2), np.zeros(2)
    kv.init(value=one, key=1)
    for call in (
        lambda: kv.pushpull(1, one, out, 2),
        lambda: kv.pushpull(1, one, priority=2, out=out),
        lambda: kv.pushpull(priority=2, out=out, value=one, key=1),
        # Names that are made at run time are other objects than those of the declaration.
        lambda: kv.pushpull(1, **{"".join(["va", "lue"]): one, "".join(["o", "ut"]): out}),
        lambda: kvstore.KVStore.pushpull(kv, 1, one, out=out),
    ):
        out[:] = 0
        call()
        assert out.tolist() == [1, 1]
    out[:] = 2
    kv.pushpull(1, out, None)
    assert out.tolist() == [2, 2]


REFUSED = {
    "missing 1 required positional argument: 'key'": ((), {}),
    "missing 1 required positional argument: 'value'": ((1,), {"priority": 0}),
    "takes from 2 to 4 positional arguments but 6 were given": ((1, 2, 3, 4, 5), {}),
    "got an unexpected keyword argument 'values'": ((1, 2), {"values": 3}),
    "got multiple values for argument 'key'": ((1, 2), {"key": 3}),
    "'str' object cannot be interpreted as an integer": ((1, 2), {"priority": "high"}),
}


@pytest.mark.parametrize("text", REFUSED)
def test_wrong_arguments_are_refused_in_the_words_of_python(kv, text):
    positional, named = REFUSED[text]
    with pytest.raises(TypeError) as caught:
        kv.push(*positional, **named)
    assert text in str(caught.value)


def test_a_method_of_a_store_takes_nothing_else():
    with pytest.raises(TypeError, match="doesn't apply to a 'object' object"):
        kvstore.KVStore.push(object(), 1, np.ones(2))
    store = kvstore.KVStore.__new__(kvstore.KVStore)
    with pytest.raises(kvstore.ClosedError, match="the store is closed"):
        store.push(1, np.ones(2))


def test_a_derived_class_overrides_methods():
    class Counting(kvstore.KVStore):
        def __init__(self, name, *, factor):
            super().__init__(name)
            self.factor = factor

        def push(self, key, value, priority=0):
            super().push(key, value * self.factor, priority)

    with Counting("local", factor=3) as kv:
        kv.init(1, np.ones(2))
        kv.push(1, np.ones(2))
        out = np.zeros(2)
        kv.pull(1, out=out)
    assert out.tolist() == [3, 3]
