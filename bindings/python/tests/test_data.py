"""What goes in comes out: every method, form, dtype and layout, against numpy."""

import array as array_module

import numpy as np
import pytest
from support import BFLOAT16, DTYPES, FLOATS, is_float, random_array, same_bits, sum_of

import kvstore

SHAPES = [(), (1,), (0,), (7,), (2, 3), (3, 0, 2), (2, 3, 4, 5), (1,) * 12, (4099,)]


@pytest.fixture
def random():
    return np.random.default_rng(7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_init_push_and_pull_keep_every_bit(kv, random, dtype, shape):
    first, second = random_array(random, dtype, shape), random_array(random, dtype, shape)
    out = np.zeros(shape, dtype)
    kv.init(1, first)
    kv.pull(1, out=out)
    assert same_bits(out, first)
    kv.push(1, second)
    kv.pull(1, out=out)
    assert same_bits(out, second)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [2, 3, 4, 5, 17])
def test_a_list_of_arrays_is_added_up_in_order(kv, random, dtype, count):
    values = [random_array(random, dtype, (5, 7)) for _ in range(count)]
    out = np.zeros((5, 7), dtype)
    kv.init("sum", values[0])
    kv.push("sum", values)
    kv.pull("sum", out=out)
    assert same_bits(out, sum_of(values, dtype))


def test_special_floats_survive(kv):
    value = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324, 1.7e308])
    out = np.zeros(6)
    kv.init(0, value)
    kv.pull(0, out=out)
    assert same_bits(out, value)


@pytest.mark.parametrize("stored", FLOATS + ([BFLOAT16] if BFLOAT16 else []), ids=str)
@pytest.mark.parametrize("other", FLOATS + ([BFLOAT16] if BFLOAT16 else []), ids=str)
def test_float_dtypes_are_converted(kv, random, stored, other):
    value = random_array(random, other, (33,))
    kv.init(4, np.zeros(33, stored))
    kv.push(4, value)
    out = np.zeros(33, other)
    kv.pull(4, out=out)
    assert same_bits(out, value.astype(stored).astype(other))


def layouts():
    base = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
    return {
        "transposed": base.T,
        "reversed": base[::-1, :, ::-1],
        "every other": base[::2, 1::2, ::3],
        "column": base[:, 2, :],
        "fortran": np.asfortranarray(base),
        "broadcast": np.broadcast_to(base[0], (3, 5, 6)),
        "field": np.zeros(9, [("a", "f4"), ("b", "f4")])["b"],
        "one element": base[1:2, 2:3, 3:4],
    }


@pytest.mark.parametrize("name", layouts())
def test_values_may_have_any_strides(kv, name):
    value = layouts()[name]
    before = value.copy()
    out = np.zeros(value.shape, np.float32)
    kv.init(1, value)
    kv.push(1, [value, value])
    kv.pull(1, out=out)
    assert np.array_equal(out, before + before)
    assert np.array_equal(value, before)


@pytest.mark.parametrize("name", [name for name in layouts() if name != "broadcast"])
def test_outs_may_have_any_strides(kv, name):
    out = layouts()[name]
    value = np.random.default_rng(3).standard_normal(out.shape).astype(np.float32)
    kv.init(1, value)
    kv.pull(1, out=out)
    assert np.array_equal(out, value)


def test_what_lies_between_the_elements_of_an_out_stays(kv):
    whole = np.zeros((6, 6), np.float32)
    kv.init(1, np.ones((3, 2), np.float32))
    kv.pull(1, out=whole[::2, 1:5:2])
    assert whole.sum() == 6
    assert whole[::2, 1:5:2].sum() == 6


def test_read_only_values_are_taken_and_never_written(kv):
    value = np.arange(6.0)
    value.flags.writeable = False
    kv.init(1, value)

    def update(key, merged, stored):
        assert not merged.flags.writeable
        stored += merged

    kv.set_updater(update)
    kv.push(1, value)
    kv.push(1, [value, value])
    out = np.zeros(6)
    kv.pull(1, out=out)
    assert np.array_equal(out, 4 * np.arange(6.0))
    assert np.array_equal(value, np.arange(6.0))


def test_init_copies(kv):
    value = np.ones(3)
    kv.init(1, value)
    value[:] = 42
    out = np.zeros(3)
    kv.pull(1, out=out)
    assert out.tolist() == [1, 1, 1]


def test_a_pushed_array_stays_the_callers(kv):
    value = np.ones(3)
    kv.init(1, np.zeros(3))
    kv.push(1, value)
    value[:] = 42
    out = np.zeros(3)
    kv.pull(1, out=out)
    assert out.tolist() == [1, 1, 1]


def test_numbers_and_lists_of_numbers_are_values(kv):
    kv.init("number", 1.5)
    kv.init("list", [1, 2, 3])
    kv.init("matrix", [[1.0, 2.0], [3.0, 4.0]])
    assert kv.key_info("number") == ("float64", ())
    assert kv.key_info("list") == ("int64", (3,))
    assert kv.key_info("matrix") == ("float64", (2, 2))
    kv.push("number", np.float32(2))
    kv.push("list", (4, 5, 6))
    number, numbers = np.zeros(()), np.zeros(3, np.int64)
    kv.pull(["number", "list"], out=[number, numbers])
    assert number == 2
    assert numbers.tolist() == [4, 5, 6]


def test_other_buffers_are_values(kv):
    kv.init(1, array_module.array("f", [1, 2, 3]))
    kv.push(1, memoryview(array_module.array("f", [4, 5, 6])))
    out = np.zeros(3, np.float32)
    kv.pull(1, out=out)
    assert out.tolist() == [4, 5, 6]


def test_an_empty_list_of_arrays_does_nothing(kv):
    kv.init(1, np.ones(2))
    kv.push(1, [])
    kv.push([], [])
    kv.init([], [])
    kv.pull(1, out=[])
    assert kv.keys() == [1]


def test_lists_of_keys(kv):
    keys = [5, "bias", np.int64(7), 3]
    kv.init(keys, [np.full(2, float(i)) for i in range(4)])
    assert kv.keys() == [3, 5, 7, "bias"]
    outs = [np.zeros(2) for _ in keys]
    kv.pull(tuple(keys), out=tuple(outs))
    assert [out[0] for out in outs] == [0, 1, 2, 3]
    kv.push(range(3, 4), [[np.ones(2)] * 5])
    kv.pull([3], out=[outs[0]])
    assert outs[0].tolist() == [5, 5]


def test_equal_keys_of_a_call_need_not_be_adjacent(kv):
    kv.init([1, 2], [np.zeros(2)] * 2)
    kv.push([1, 2, 1], [np.full(2, 1.0), np.full(2, 10.0), np.full(2, 100.0)])
    a, b, c = np.zeros(2), np.zeros(2), np.zeros(2)
    kv.pull([1, 2, 1], out=[a, b, c])
    assert (a[0], b[0], c[0]) == (101, 10, 101)


def test_the_last_key_wins_an_out_of_several_keys(kv):
    kv.init([5, 7, 9], [np.full(2, float(key)) for key in (5, 7, 9)])
    out = np.zeros(2)
    kv.pull([9, 5, 7], out=[out] * 3)
    assert out.tolist() == [9, 9]


def test_pushpull_with_outs(kv):
    kv.init([1, 2], [np.zeros(2)] * 2)
    outs = [np.zeros(2) for _ in range(4)]
    kv.pushpull([1, 2], [[np.ones(2)] * 3, np.full(2, 7.0)], out=[outs[:2], outs[2:]])
    assert [out[0] for out in outs] == [3, 3, 7, 7]


def test_pushpull_without_outs_writes_into_the_values(kv):
    kv.init([1, 2], [np.zeros(2)] * 2)
    a, b, c = np.ones(2), np.full(2, 2.0), np.full(2, 5.0)
    kv.pushpull(1, [a, b])
    assert (a[0], b[0]) == (3, 3)
    kv.pushpull([1, 2], [[a, b], c])
    assert (a[0], b[0], c[0]) == (6, 6, 5)
    kv.pushpull(2, c)
    assert c[0] == 5


def test_pushpull_cannot_write_into_numbers(kv):
    kv.init(1, 1.0)
    with pytest.raises(kvstore.InvalidArgumentError, match="out="):
        kv.pushpull(1, 2.0)
    with pytest.raises(kvstore.InvalidArgumentError, match="read-only"):
        kv.pushpull(1, np.broadcast_to(np.float64(1), ()))


def test_broadcast(kv):
    outs = [np.zeros(3) for _ in range(3)]
    kv.broadcast(1, np.full(3, 4.0), out=outs)
    assert [out[0] for out in outs] == [4, 4, 4]
    with pytest.raises(kvstore.KeyExistsError):
        kv.broadcast(1, np.full(3, 4.0), out=outs)


def test_remove(kv):
    kv.init([1, "two"], [np.ones(2)] * 2)
    kv.remove(1)
    assert kv.keys() == ["two"]
    with pytest.raises(kvstore.KeyNotFoundError):
        kv.push(1, np.ones(2))
    kv.init(1, np.ones((3, 3), np.int8))
    assert kv.key_info(1) == ("int8", (3, 3))
    kv.remove([1, "two"])
    assert kv.keys() == []


def test_key_info_and_keys(kv):
    assert kv.keys() == []
    for dtype in DTYPES:
        kv.init(f"of {dtype}", np.zeros((2, 3), dtype))
        info = kv.key_info(f"of {dtype}")
        assert (info.dtype, info.shape) == (dtype.name, (2, 3))
    kv.init(range(100, 0, -1), [np.zeros(())] * 100)
    assert kv.keys() == [*range(1, 101), *(f"of {dtype}" for dtype in DTYPES)]
    assert kv.key_info(100).shape == ()


def test_names_are_unicode_and_never_integers(kv):
    names = ["", "7", "fc1.weight", "gewicht \N{LATIN SMALL LETTER U WITH DIAERESIS}", "x" * 1000]
    kv.init(names, [np.full(1, float(i)) for i in range(len(names))])
    kv.init(7, np.full(1, 70.0))
    out = np.zeros(1)
    for i, name in enumerate(names):
        kv.pull(name, out=out)
        assert out[0] == i
    assert kv.keys() == [7, *names]


def test_the_largest_integer_key(kv):
    kv.init(2**63 - 1, np.ones(1))
    kv.init(0, np.ones(1))
    assert kv.keys() == [0, 2**63 - 1]


def test_integers_wrap(kv):
    kv.init(1, np.zeros(1, np.int8))
    kv.push(1, [np.full(1, 100, np.int8)] * 3)
    out = np.zeros(1, np.int8)
    kv.pull(1, out=out)
    assert out[0] == 44


def test_float_values_reach_integer_keys_only_by_mistake(kv):
    for dtype in DTYPES:
        kv.init(str(dtype), np.zeros(2, dtype))
        for other in DTYPES:
            if dtype != other and not (is_float(dtype) and is_float(other)):
                with pytest.raises(kvstore.DtypeMismatchError):
                    kv.push(str(dtype), np.zeros(2, other))
