"""Weights of pushes, against numpy."""

import numpy as np
import pytest

import kvstore


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_pushes_with_a_weight_make_means(dtype):
    random = np.random.default_rng(70)
    wide = np.float64 if dtype == np.float64 else np.float32
    with kvstore.create("local") as kv:
        kv.init("w", np.zeros(1000, dtype))
        for weight in [1, 3, 96.25, np.float32(7)]:
            values = [random.standard_normal(1000).astype(dtype) for _ in range(3)]
            kv.set_weight(weight)
            kv.push("w", values)
            out = np.empty(1000, dtype)
            kv.pull("w", out=out)
            first, second, third = (value.astype(wide) for value in values)
            expected = ((first + second) + third) / wide(weight)
            assert out.tobytes() == expected.astype(dtype).tobytes()
        assert kv.last_round("w") == kvstore.KeyRound(4, 1, 7.0)
        kv.clear_weight()
        kv.push("w", values[0])
        kv.pull("w", out=out)
        assert out.tobytes() == values[0].tobytes()
        assert kv.last_round("w") == kvstore.KeyRound(5, 1, 0.0)


def test_what_is_no_weight_is_refused():
    with kvstore.create("local") as kv:
        kv.init(1, np.zeros(2, np.float32))
        kv.init(2, np.zeros(2, np.int32))
        for bad in [-1, float("nan"), float("inf"), 2.0**101]:
            with pytest.raises(kvstore.InvalidArgumentError, match="weight"):
                kv.set_weight(bad)
        with pytest.raises((TypeError, kvstore.InvalidArgumentError)):
            kv.set_weight(None)
        kv.set_weight(2)
        with pytest.raises(kvstore.DtypeMismatchError, match="key 2"):
            kv.push(2, np.ones(2, np.int32))
        with pytest.raises(kvstore.KeyNotFoundError, match="404"):
            kv.last_round(404)


def test_a_local_store_resumes_at_once():
    with kvstore.create("local") as kv:
        kv.done()
        kv.resume()
        kv.resume(timeout=0)


def test_rules_get_the_mean():
    with kvstore.create("local") as kv:
        kv.init(1, np.full(3, 10, np.float32))
        kv.set_optimizer("sgd", learning_rate=0.5)
        kv.set_weight(4)
        kv.push(1, [np.full(3, 5, np.float32), np.full(3, 7, np.float32)])
        out = np.empty(3, np.float32)
        kv.pull(1, out=out)
        assert (out == 8.5).all()
