"""Updaters in Python: what they get, what they change, how they fail."""

import gc
import threading
import traceback
import weakref

import numpy as np
import pytest
from producer import BFLOAT16_NUMBER, Producer
from support import DTYPES, random_array, same_bits, sum_of

import kvstore


def pulled(kv, key, like):
    out = np.zeros_like(like)
    kv.pull(key, out=out)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (1000,)], ids=str)
def test_arrays_have_the_dtype_and_shape_of_the_key(kv, dtype, shape):
    random = np.random.default_rng(11)
    values = [random_array(random, dtype, shape) for _ in range(3)]
    seen = []

    def update(key, merged, stored):
        assert merged.dtype == stored.dtype == dtype
        assert merged.shape == stored.shape == shape
        assert merged.flags.c_contiguous
        assert stored.flags.c_contiguous
        assert stored.flags.writeable
        assert not merged.flags.writeable
        seen.append(merged.copy())
        stored[...] = merged

    kv.init("w", values[0])
    kv.set_updater(update)
    kv.push("w", values)
    assert len(seen) == 1
    assert same_bits(seen[0], sum_of(values, dtype))
    assert same_bits(pulled(kv, "w", values[0]), seen[0])


def test_dtypes_of_ml_dtypes_are_without_it_unsigned_integers(kv, monkeypatch):
    ones = Producer(np.full(2, 0x3F80, np.uint16), dtype=BFLOAT16_NUMBER)
    scales = Producer(np.full(2, 0x7F, np.uint8), dtype=14 | 8 << 8 | 1 << 16)
    kv.init([1, 2], [ones, scales])
    monkeypatch.setattr(kvstore._dtypes, "_extension", lambda name: None)
    seen = []
    kv.set_updater(lambda key, merged, stored: seen.append((merged.dtype, merged.tolist())))
    kv.push([1, 2], [ones, scales])
    assert seen == [(np.uint16, [0x3F80, 0x3F80]), (np.uint8, [0x7F, 0x7F])]


def test_keys_arrive_as_given_in_the_documented_order(kv):
    keys = ["z", 9, "a", 5]
    kv.init(keys, [np.zeros(1)] * 4)
    calls = []
    kv.set_updater(lambda key, merged, stored: calls.append(key))
    kv.push(["a", 9, "z", 5], [np.ones(1)] * 4)
    assert calls == [5, 9, "z", "a"]


def test_merged_may_be_the_callers_own_buffer_but_cannot_be_written(kv):
    kv.init(1, np.zeros(3))

    def update(key, merged, stored):
        merged[:] = 0

    kv.set_updater(update)
    with pytest.raises(kvstore.CallbackError, match="read-only"):
        kv.push(1, np.ones(3))


def test_none_assigns_again(kv):
    kv.init(1, np.zeros(1))
    kv.set_updater(lambda key, merged, stored: stored.__iadd__(1))
    kv.push(1, np.full(1, 5.0))
    assert pulled(kv, 1, np.zeros(1))[0] == 1
    kv._set_updater(None)
    kv.push(1, np.full(1, 5.0))
    assert pulled(kv, 1, np.zeros(1))[0] == 5


def test_an_updater_is_a_function(kv):
    with pytest.raises(TypeError, match="an updater is a function or None, not int"):
        kv.set_updater(3)


def test_an_exception_becomes_an_error_with_its_cause(kv):
    kv.init("w", np.zeros(2))
    original = ZeroDivisionError("learning rate is 0")

    def update(key, merged, stored):
        raise original

    kv.set_updater(update)
    with pytest.raises(kvstore.CallbackError) as caught:
        kv.push("w", np.ones(2))
    assert caught.value.__cause__ is original
    assert caught.value.status == kvstore.Status.CALLBACK
    assert "ZeroDivisionError: learning rate is 0" in str(caught.value)
    assert '"w"' in str(caught.value)
    assert "in update" in "".join(
        traceback.format_exception(None, original, original.__traceback__)
    )
    kv.set_updater(None)
    kv.push("w", np.ones(2))
    assert pulled(kv, "w", np.zeros(2)).tolist() == [1, 1]


def test_the_cause_belongs_to_one_call_only(kv):
    kv.init(1, np.zeros(2))

    def update(key, merged, stored):
        raise ValueError("first")

    kv.set_updater(update)
    with pytest.raises(kvstore.CallbackError):
        kv.push(1, np.ones(2))
    with pytest.raises(kvstore.ShapeMismatchError) as caught:
        kv.push(1, np.ones(3))
    assert caught.value.__cause__ is None
    with pytest.raises(kvstore.CallbackError) as caught:
        kv.push_async(1, np.ones(2)).wait(60)
    assert caught.value.__cause__ is None


def test_an_exception_lets_go_of_the_arrays(kv):
    kv.init(1, np.zeros(2))

    def helper(view):
        try:
            raise ValueError("inner")
        except ValueError as error:
            raise KeyError("outer") from error

    kv.set_updater(lambda key, merged, stored: helper(stored))
    with pytest.raises(kvstore.CallbackError) as caught:
        kv.push(1, np.ones(2))
    error = caught.value.__cause__
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            assert not any(isinstance(each, np.ndarray) for each in frame.f_locals.values())
        error = error.__cause__


def test_keys_before_a_failure_stay_applied(kv):
    kv.init([1, 2, 3], [np.zeros(1)] * 3)

    def update(key, merged, stored):
        stored += merged
        if key == 2:
            raise ValueError("no")

    kv.set_updater(update)
    with pytest.raises(kvstore.CallbackError, match="key 2"):
        kv.push([1, 2, 3], [np.ones(1)] * 3)
    assert [pulled(kv, key, np.zeros(1))[0] for key in (1, 2, 3)] == [1, 1, 0]


def test_updater_undo_restores_what_failed():
    with kvstore.create("local", updater_undo=True) as kv:
        kv.init([1, 2], [np.zeros(1)] * 2)

        def update(key, merged, stored):
            stored += merged
            if key == 2:
                raise ValueError("no")

        kv.set_updater(update)
        with pytest.raises(kvstore.CallbackError):
            kv.push([1, 2], [np.ones(1)] * 2)
        assert [pulled(kv, key, np.zeros(1))[0] for key in (1, 2)] == [1, 0]


def test_a_keyboard_interrupt_stays_one(kv):
    kv.init(1, np.zeros(1))

    def update(key, merged, stored):
        raise KeyboardInterrupt

    kv.set_updater(update)
    with pytest.raises(KeyboardInterrupt):
        kv.push(1, np.ones(1))
    with pytest.raises(kvstore.CallbackError, match="KeyboardInterrupt"):
        kv.push_async(1, np.ones(1)).wait(60)


def test_the_store_is_not_to_be_used_inside_its_updater(kv):
    kv.init(["w", 2], [np.zeros(2), np.zeros(2)])
    out, errors = np.zeros(2), []
    refused = [
        lambda: kv.push(2, np.ones(2)),
        lambda: kv.pull(2, out=out),
        lambda: kv.pushpull(2, np.ones(2), out=out),
        lambda: kv.broadcast(4, np.ones(2), out=out),
        lambda: kv.init(5, np.ones(2)),
        lambda: kv.remove(2),
        lambda: kv.push_async(2, np.ones(2)),
        lambda: kv.wait_all(),
        lambda: kv.set_updater(None),
        lambda: kv.set_optimizer("sgd"),
        lambda: kv.set_hyperparameter("learning_rate", 1),
        lambda: kv.set_hyperparameter("lr_mult", 1, key=2),
        lambda: kv.keys(),
        lambda: kv.stats(),
        lambda: kv.barrier(),
        lambda: kv.done(),
        lambda: kv.close(),
        lambda: kv.pull("a new name", out=out),
    ]

    def update(key, merged, stored):
        for call in refused:
            try:
                call()
            except kvstore.ReentrantError as error:
                errors.append(error)
        assert kv.key_info("w") == ("float64", (2,))
        assert (kv.type, kv.role, kv.rank, kv.num_workers) == (kv.type, "worker", 0, 1)
        stored += merged

    kv.set_updater(update)
    kv.push("w", np.ones(2))
    assert len(errors) == len(refused)
    assert pulled(kv, "w", out).tolist() == [1, 1]
    assert kv.keys() == [2, "w"]


def test_another_store_may_be_used_inside_an_updater(kv):
    with kvstore.create() as other:
        other.init("copy", np.zeros(2))
        kv.init(1, np.zeros(2))
        kv.set_updater(lambda key, merged, stored: other.push("copy", merged))
        kv.push(1, np.ones(2))
        kv.push_async(1, np.full(2, 2.0)).wait(60)
        assert pulled(other, "copy", np.zeros(2)).tolist() == [2, 2]


def test_a_failure_in_an_inner_store_is_its_own(kv):
    with kvstore.create() as other:
        other.init(1, np.zeros(2))
        kv.init(1, np.zeros(2))
        inner = []

        def fail(key, merged, stored):
            raise ValueError("inner")

        def update(key, merged, stored):
            try:
                other.push(1, merged)
            except kvstore.CallbackError as error:
                inner.append(error.__cause__)
            raise KeyError("outer")

        other.set_updater(fail)
        kv.set_updater(update)
        with pytest.raises(kvstore.CallbackError) as caught:
            kv.push(1, np.ones(2))
        assert isinstance(inner[0], ValueError)
        assert isinstance(caught.value.__cause__, KeyError)


def test_updaters_of_one_key_never_run_at_the_same_time(kv):
    kv.init(1, np.zeros(1))

    def update(key, merged, stored):
        value = stored[0]
        threading.Event().wait(0.0005)
        stored[0] = value + merged[0]

    kv.set_updater(update)
    threads = [
        threading.Thread(target=lambda: [kv.push(1, np.ones(1)) for _ in range(25)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pulled(kv, 1, np.zeros(1))[0] == 200


class Adder:
    """A callable that weak references may follow."""

    def __call__(self, key, merged, stored):
        stored += merged


def test_a_replaced_updater_is_let_go(kv):
    kv.init(1, np.zeros(1))
    adder = Adder()
    follow = weakref.ref(adder)
    kv.set_updater(adder)
    del adder
    kv.push(1, np.ones(1))
    kv.set_updater(lambda key, merged, stored: None)
    kv.push(1, np.ones(1))
    gc.collect()
    assert follow() is None


def test_a_store_whose_updater_refers_to_it_is_garbage():
    def use():
        kv = kvstore.create()
        kv.init(1, np.zeros(1))
        kv.set_updater(lambda key, merged, stored: stored.__iadd__(kv.num_workers))
        kv.push(1, np.ones(1))
        return weakref.ref(kv._handle), weakref.ref(kv._handle._updaters[0])

    handle, updater = use()
    gc.collect()
    assert handle() is None
    assert updater() is None
