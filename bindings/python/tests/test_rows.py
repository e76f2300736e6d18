"""Rows of a key, against numpy."""

import numpy as np
import pytest

import kvstore

RNG = np.random.default_rng(11)


def table(rows=50, length=7, dtype=np.float32):
    return RNG.integers(-50, 50, (rows, length)).astype(dtype)


def pulled(kv, key, like):
    out = np.empty_like(like)
    kv.pull(key, out=out)
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.uint8])
def test_pushed_rows_are_summed_and_replaced(kv, dtype):
    value = table(dtype=dtype)
    kv.init("w", value)
    ids = RNG.integers(0, len(value), 80)
    rows = table(80, dtype=dtype)
    kv.push_rows("w", ids, rows)
    sums = np.zeros_like(value)
    np.add.at(sums, ids, rows)
    expected = value.copy()
    expected[ids] = sums[ids]
    np.testing.assert_array_equal(pulled(kv, "w", value), expected)


def test_rows_are_pulled_in_the_order_of_their_ids(kv):
    value = table()
    kv.init(3, value)
    ids = RNG.integers(0, len(value), (4, 5))
    out = np.empty((4, 5, 7), np.float64)
    kv.pull_rows(3, ids, out=out)
    np.testing.assert_array_equal(out, value[ids])
    few = np.empty((3, 7), np.float32)
    kv.row_sparse_pull(3, out=few, row_ids=[9, 0, 9])
    np.testing.assert_array_equal(few, value[[9, 0, 9]])
    for none in [], (), np.array([], np.int64):
        kv.pull_rows(3, none, out=np.empty((0, 7), np.float32))
    outs = [np.empty((0, 7), np.float32), np.empty((1, 7), np.float32)]
    kv.pull_rows([3, 3], [[], [4]], out=outs)
    np.testing.assert_array_equal(outs[1], value[[4]])


def test_several_keys_and_several_arrays_of_a_key(kv):
    first, second = table(), table()
    kv.init(["a", "b"], [first, second])
    ids = [np.array([1, 2]), np.array([2, 3]), np.array([0])]
    rows = [table(2), table(2), table(1)]
    kv.push_rows(["a", "b"], [ids[:2], ids[2]], [rows[:2], rows[2]])
    expected = first.copy()
    expected[[1, 2, 3]] = [rows[0][0], rows[0][1] + rows[1][0], rows[1][1]]
    np.testing.assert_array_equal(pulled(kv, "a", first), expected)
    second[0] = rows[2][0]
    np.testing.assert_array_equal(pulled(kv, "b", second), second)
    with pytest.raises(kvstore.InvalidArgumentError, match="1 arrays of rows, but 2 of row ids"):
        kv.push_rows("a", ids[:2], rows[0])


def test_in_the_background(kv):
    value = table()
    kv.init(1, value)
    ids, rows = np.array([5, 6]), table(2)
    push = kv.push_rows_async(1, ids, rows)
    out = np.empty_like(rows)
    pull = kv.pull_rows_async(1, ids, out)
    pull.wait(60)
    push.wait(60)
    np.testing.assert_array_equal(out, rows)


def test_lazy_adam_touches_the_pushed_rows_alone(kv):
    """The reference is written from the formulas, row by row."""
    value = RNG.standard_normal((6, 4))
    kv.init(0, value)
    kv.set_optimizer("adam", learning_rate=0.1, wd=0.01, lazy_update=True)
    model, mean, square = value.copy(), np.zeros((6, 4)), np.zeros((6, 4))
    for t in range(1, 20):
        ids = np.unique(RNG.integers(0, 6, 3))
        rows = RNG.standard_normal((len(ids), 4))
        kv.push_rows(0, ids, rows)
        gradient = rows + 0.01 * model[ids]
        mean[ids] = 0.9 * mean[ids] + 0.1 * gradient
        square[ids] = 0.999 * square[ids] + 0.001 * gradient**2
        rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        model[ids] -= rate * mean[ids] / (np.sqrt(square[ids]) + 1e-8)
        np.testing.assert_allclose(pulled(kv, 0, value), model, rtol=1e-10, atol=1e-12)


def test_an_updater_gets_the_dense_sum(kv):
    value = table()
    kv.init(1, value)

    def update(_, given, stored):
        assert given.shape == value.shape
        stored += 2 * given

    kv.set_updater(update)
    kv.push_rows(1, [3, 3], np.ones((2, 7), np.float32))
    value[3] += 4
    np.testing.assert_array_equal(pulled(kv, 1, value), value)


def test_what_is_wrong_is_named_and_nothing_happens(kv):
    value = table()
    kv.init("w", value)
    rows = table(2)
    with pytest.raises(kvstore.InvalidArgumentError, match=r'"w".*row id 50 is out of range'):
        kv.push_rows("w", [0, 50], rows)
    with pytest.raises(kvstore.DtypeMismatchError, match="must be int64"):
        kv.push_rows("w", np.array([0, 1], np.int32), rows)
    with pytest.raises(kvstore.ShapeMismatchError, match=r"must be float32\[3,7\]"):
        kv.push_rows("w", [0, 1, 2], rows)
    with pytest.raises(kvstore.InvalidArgumentError, match="row_ids="):
        kv.row_sparse_pull("w", out=rows)
    np.testing.assert_array_equal(pulled(kv, "w", value), value)
