"""Mappings in place of keys and arrays."""

from collections import OrderedDict
from types import MappingProxyType

import numpy as np
import pytest

import kvstore


def arrays(factor=1.0):
    """Arrays by name and by number, as a model may have them."""
    return {
        "layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3) * factor,
        7: np.full(4, factor, np.float64),
        "layer.bias": np.array(factor, np.float32),
    }


def zeros_of(mapping):
    return {key: np.zeros_like(value) for key, value in mapping.items()}


def check_equal(found, expected):
    assert list(found) == list(expected)
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, str(key))


@pytest.fixture(name="kv")
def store():
    with kvstore.create("local") as kv:
        yield kv


@pytest.mark.parametrize("form", [dict, OrderedDict, MappingProxyType])
def test_each_data_call_takes_a_mapping(kv, form):
    first, pushed = arrays(), arrays(3.0)
    kv.init(form(first))
    out = zeros_of(first)
    kv.pull(out=form(out))
    check_equal(out, first)
    kv.push(form(pushed))
    kv.pull(None, form(out))
    check_equal(out, pushed)
    kv.pushpull(form(first), out=form(out))
    check_equal(out, first)
    in_place = arrays(5.0)
    kv.pushpull(form(in_place), priority=1)
    check_equal(in_place, arrays(5.0))


def test_a_broadcast_takes_two_mappings(kv):
    first = arrays()
    out = zeros_of(first)
    kv.broadcast(first, out=out)
    check_equal(out, first)


def test_tickets_take_mappings(kv):
    first = arrays()
    out = zeros_of(first)
    kv.init(first)
    kv.push_async(arrays(2.0)).wait()
    kv.pull_async(out=out).wait()
    check_equal(out, arrays(2.0))
    kv.pushpull_async(first, out=out).wait()
    check_equal(out, first)
    other = {key: np.zeros_like(value) for key, value in arrays().items()}
    with kvstore.create("local") as fresh:
        fresh.broadcast_async(first, out=other).wait()
    check_equal(other, first)


def test_the_values_of_a_key_may_be_those_of_several_devices(kv):
    kv.init({"w": np.zeros(3, np.float32)})
    kv.push({"w": [np.full(3, 1, np.float32), np.full(3, 2, np.float32)]})
    outs = [np.zeros(3, np.float32), np.zeros(3, np.float32)]
    kv.pull(out={"w": outs})
    for out in outs:
        np.testing.assert_array_equal(out, np.full(3, 3))


def test_a_second_mapping_may_have_more_keys_in_any_order(kv):
    kv.init(arrays())
    out = dict(reversed(list(zeros_of(arrays()).items())))
    out["buffer"] = np.full(2, 9.0)
    kv.pushpull(arrays(2.0), out=out)
    for key, value in arrays(2.0).items():
        np.testing.assert_array_equal(out[key], value)
    np.testing.assert_array_equal(out["buffer"], np.full(2, 9.0))


def test_an_empty_mapping_is_an_empty_list(kv):
    kv.init({})
    kv.push({})
    kv.pull(out={})
    assert kv.keys() == []


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda kv: kv.init({"a": np.zeros(2)}, np.zeros(2)), TypeError, "has its arrays"),
        (lambda kv: kv.push({"a": np.zeros(2)}, [np.zeros(2)]), TypeError, "has its arrays"),
        (lambda kv: kv.pull({"a": np.zeros(2)}, {"a": np.zeros(2)}), TypeError, "has its arrays"),
        (lambda kv: kv.push_rows({"a": 1}, [0], np.zeros(2)), TypeError, "row ids"),
        (lambda kv: kv.pushpull({"a": np.ones(2)}, out=[np.zeros(2)]), TypeError, "a mapping as"),
        (
            lambda kv: kv.pushpull({"a": np.ones(2)}, out={"b": np.zeros(2)}),
            kvstore.InvalidArgumentError,
            "out has no array for the key 'a'",
        ),
        (lambda kv: kv.init("a"), TypeError, "missing 1 required positional argument: 'value'"),
        (lambda kv: kv.push(1), TypeError, "missing 1 required positional argument: 'value'"),
        (lambda kv: kv.pull("a"), TypeError, "missing 1 required positional argument: 'out'"),
        (lambda kv: kv.pull(), TypeError, "missing 1 required positional argument: 'key'"),
        (lambda kv: kv.pull(out=np.zeros(2)), TypeError, "argument: 'key'"),
        (lambda kv: kv.init({1.5: np.zeros(2)}), TypeError, "a key is an integer or a str"),
        (
            lambda kv: kv.push({"a": np.zeros(3)}),
            kvstore.ShapeMismatchError,
            'key "a"',
        ),
    ],
)
def test_mistakes_are_named_and_change_nothing(kv, call, kind, text):
    kv.init("a", np.full(2, 4.0))
    with pytest.raises(kind, match=text):
        call(kv)
    out = np.zeros(2)
    kv.pull("a", out)
    np.testing.assert_array_equal(out, np.full(2, 4.0))
    assert kv.keys() == ["a"]
