"""Transactions: what is taken back is gone, and a step of several pushes has the norm of one."""

import numpy as np
import pytest

import kvstore

KEYS = ["one", "two", 3]


def arrays(seed):
    random = np.random.default_rng(seed)
    return [random.standard_normal((700 * at + 1,), np.float32) for at in range(len(KEYS))]


def made(kv):
    kv.init(KEYS, arrays(0))
    kv.set_optimizer("adam", learning_rate=0.1)
    return kv


def pulled(kv):
    outs = arrays(0)
    kv.pull(KEYS, out=outs)
    return outs


def push(kv, seed):
    for key, gradient in reversed(list(zip(KEYS, arrays(seed)))):
        kv.push(key, gradient)


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other))


def test_pushes_are_taken_back_or_kept(kv):
    made(kv)
    assert kvstore.capable("transactions")
    with kvstore.create("local") as other:
        made(other)
        for seed in range(1, 4):
            before = pulled(kv)
            kv.begin()
            push(kv, 10 + seed)
            tickets = [kv.push_async(key, value) for key, value in zip(KEYS, arrays(5))]
            assert not same(pulled(kv), before)
            kv.rollback()
            [ticket.wait() for ticket in tickets]
            assert same(pulled(kv), before)
            kv.begin()
            push(kv, seed)
            assert kv.commit() is kvstore.Commit.KEPT
            push(other, seed)
            assert same(pulled(kv), pulled(other))


def test_a_norm_is_that_of_all_pushes(kv):
    made(kv).set_clipping(10)
    before = pulled(kv)
    kv.begin()
    push(kv, 1)
    assert kv.commit() is kvstore.Commit.EXCEEDED
    norm = np.sqrt(sum((each.astype(np.float64) ** 2).sum() for each in arrays(1)))
    assert kv.last_norm().norm == pytest.approx(norm, rel=1e-12)
    assert same(pulled(kv), before)
    kv.begin()
    kv.push("one", np.array([np.inf], np.float32))
    push(kv, 1)
    assert kv.commit() is kvstore.Commit.SKIPPED
    assert kv.last_norm() == (np.inf, 1) and same(pulled(kv), before)


def test_what_is_wrong_is_refused(kv):
    for call in (kv.commit, kv.rollback):
        with pytest.raises(kvstore.InvalidArgumentError, match="no transaction has begun"):
            call()
    kv.begin()
    with pytest.raises(kvstore.InvalidArgumentError, match="a transaction has begun"):
        kv.set_optimizer("sgd")
    with pytest.raises(kvstore.InvalidArgumentError, match="a transaction has begun"):
        kv.begin()
    kv.rollback()
    kv.set_compression("2bit")
    with pytest.raises(kvstore.UnsupportedError, match="2bit"):
        kv.begin()
