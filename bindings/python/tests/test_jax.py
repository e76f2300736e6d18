"""JAX's arrays, which never change; runs where JAX is installed."""

import numpy as np
import pytest

import kvstore

jax = pytest.importorskip("jax")


def test_arrays_are_values_only(kv):
    value = jax.numpy.arange(6.0, dtype="float32").reshape(2, 3)
    kv.init(1, value)
    kv.push(1, [value, value])
    out = np.zeros((2, 3), np.float32)
    kv.pull(1, out=out)
    assert np.array_equal(out, np.asarray(value) * 2)
    with pytest.raises(kvstore.InvalidArgumentError, match="read-only"):
        kv.pull(1, out=value)
    with pytest.raises(kvstore.InvalidArgumentError, match="read-only"):
        kv.pushpull(1, value)
