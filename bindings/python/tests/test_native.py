"""Arrays as the native half describes them: kinds, mistakes at any place, lives, threads."""

import gc
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from producer import CPU, Producer, VersionedProducer
from support import BFLOAT16, WAIT_SECONDS, Gate

import kvstore


def filled(value, shape=(2, 3)):
    return np.full(shape, value, np.float32)


def pulled(kv, key, shape=(2, 3)):
    out = filled(-1, shape)
    kv.pull(key, out=out)
    return out


class Matrix(np.ndarray):
    """A subclass, to which weak references are possible."""


KINDS = {
    "numpy": lambda array: array,
    "a subclass": lambda array: array.view(Matrix),
    "reversed": lambda array: array[::-1, ::-1][::-1, ::-1],
    "fortran": np.asfortranarray,
    "read-only": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    "an old producer": Producer,
    "a producer": VersionedProducer,
    "a buffer": memoryview,
    "a written-out list": lambda array: array.tolist(),
}


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_kinds_of_arrays_mix_in_a_call(kv, one, other):
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), filled(10)
    kv.init([1, 2], [filled(0)] * 2)
    values = [KINDS[one](first), KINDS[other](second)]
    kv.push([1, 2], values)
    assert np.array_equal(pulled(kv, 1), first)
    assert np.array_equal(pulled(kv, 2), second)
    kv.push(1, [KINDS["numpy"](first), *values])
    assert np.array_equal(pulled(kv, 1), 2 * first + second)


def test_kinds_are_told_apart_after_very_many_types(kv):
    kv.init(1, filled(0))
    for _ in range(3):
        for number in range(40):
            kind = type(f"Kind{number}", (Producer,), {})
            kv.push(1, [kind(filled(number)), filled(1).view(Matrix)])
            assert (pulled(kv, 1) == number + 1).all()


def test_an_attribute_of_an_instance_makes_an_array(kv):
    class Proxy:
        def __init__(self, target=None):
            self.target = target

        def __getattr__(self, name):
            if self.target is None:
                raise AttributeError(name)
            return getattr(self.target, name)

    with pytest.raises(TypeError, match="init: key 1: arrays of type Proxy cannot be stored"):
        kv.init(1, Proxy())
    kv.init(1, Proxy(Producer(filled(3))))
    assert (pulled(kv, 1) == 3).all()


@pytest.mark.parametrize("count", [1, 1000, 20_000])
def test_a_list_of_any_length(kv, count):
    keys = [*range(count - 1), "the last"]
    values = [np.full(3, float(i)) for i in range(count)]
    kv.init(keys, values)
    outs = [np.zeros(6)[::2] if i % 3 else np.zeros(3) for i in range(count)]
    kv.pushpull(keys, [[value, value] for value in values], out=outs)
    assert all((out == 2 * value).all() for out, value in zip(outs, values))


@pytest.mark.skipif(BFLOAT16 is None, reason="ml_dtypes not installed")
def test_bfloat16_is_told_from_two_untyped_bytes(kv):
    kv.init(1, np.ones((4, 4), BFLOAT16))
    out = np.zeros((4, 8), BFLOAT16)[:, ::2]
    kv.pull(1, out=out)
    assert (out == 1).all()
    with pytest.raises(TypeError, match=r"push: key 1: arrays of dtype \|V2 cannot be stored"):
        kv.push(1, np.ones((4, 4), BFLOAT16).view("V2"))


MISTAKES = {
    "no array": (object(), TypeError, "object cannot be stored"),
    "text": (np.full((2, 3), "x"), TypeError, "dtype <U1 cannot be stored"),
    "another byte order": (filled(1).astype(">f4"), TypeError, "other byte order"),
    "odd strides": (
        np.zeros((2, 3), [("a", "f4"), ("b", "u1")])["a"],
        kvstore.InvalidArgumentError,
        r"strides of \(15, 5\) bytes",
    ),
    "DLPack 2": (VersionedProducer(filled(1), major=2), kvstore.InvalidArgumentError, "DLPack 2"),
}


@pytest.mark.parametrize("place", [0, 3, 9])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_at_any_place_names_its_key_and_changes_nothing(kv, name, place):
    wrong, kind, text = MISTAKES[name]
    keys = [f"key {i}" for i in range(10)]
    kv.init(keys, [filled(0)] * 10)
    values = [[filled(1), filled(1)] for _ in keys]
    values[place][1] = wrong
    with pytest.raises(kind, match=f"push: key 'key {place}': .*{text}") as caught:
        kv.push(keys, values)
    assert caught.value.__cause__ is not None
    assert not any(pulled(kv, key).any() for key in keys)


def test_what_an_exporter_raises_lets_go_of_the_arrays_before_it(kv):
    class Broken:
        def __dlpack__(self, **others):
            raise OverflowError("too much")

    kv.init(1, filled(0))
    before = filled(1).view(Matrix)
    followed = weakref.ref(before)
    producer = Producer(filled(1))
    with pytest.raises(OverflowError, match="too much"):
        kv.push(1, [before, producer, Broken()])
    del before
    gc.collect()
    assert followed() is None
    assert (producer.made, producer.alive) == (1, 0)


def test_a_capsule_that_was_consumed_is_refused(kv):
    class Consumed(Producer):
        def __dlpack__(self, **others):
            return self._capsule(self.tensor, b"used_dltensor")

    value = Consumed(filled(1))
    with pytest.raises(TypeError, match="__dlpack__ of Consumed returned no DLPack capsule"):
        kv.init(1, value)
    assert value.alive == 0


def test_a_table_that_is_none_is_passed_over(kv):
    class Tableless(Producer):
        __dlpack_c_exchange_api__ = None

    kv.init(1, Tableless(filled(4), device=CPU))
    assert (pulled(kv, 1) == 4).all()


def test_an_exporter_may_call_the_store(kv):
    class Nested(Producer):
        def __dlpack__(self, **others):
            kv.push(2, [filled(7), filled(1)])
            return super().__dlpack__()

    kv.init([1, 2], [filled(0)] * 2)
    kv.push(1, [filled(1), Nested(filled(2)), filled(3)])
    assert (pulled(kv, 1) == 6).all()
    assert (pulled(kv, 2) == 8).all()


def test_a_list_may_change_while_it_is_described(kv):
    class Shortening(Producer):
        def __dlpack__(self, **others):
            values.clear()
            return super().__dlpack__()

    kv.init(1, filled(0))
    values = [Shortening(filled(1)), filled(2)]
    with pytest.raises(IndexError):
        kv.push(1, values)
    assert not pulled(kv, 1).any()


def test_lists_may_change_while_a_ticket_is_pending(kv):
    gate = Gate()
    kv.init(1, filled(0))
    kv.set_updater(gate)
    first = kv.push_async(1, filled(1))
    values = [filled(5), filled(6)]
    second = kv.push_async(1, values)
    values.clear()
    noise = [filled(-1) for _ in range(1000)]
    gate.open()
    for ticket in (first, second):
        ticket.wait(WAIT_SECONDS)
    assert (pulled(kv, 1) == 12).all()
    assert len(noise) == 1000


def test_a_ticket_in_a_cycle_with_its_arrays_is_garbage(kv):
    class Cyclic(Producer):
        pass

    kv.init(1, filled(0))
    value = Cyclic(filled(1))
    value.ticket = kv.push_async(1, value)
    value.ticket.wait(WAIT_SECONDS)
    followed = weakref.ref(value)
    del value
    gc.collect()
    assert followed() is None


def test_many_threads_describe_at_once(kv):
    count, rounds = 8, 200
    kv.init(range(count), [np.zeros(16)] * count)
    wrong = []

    def work(rank):
        out = np.zeros(32)[::2]
        for step in range(rounds):
            value = float(rank * rounds + step)
            kv.pushpull([rank], [[np.full(16, value), Producer(np.full(16, value))]], out=[out])
            if not (out == 2 * value).all():
                wrong.append((rank, step))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_a_signal_ends_a_wait_and_an_out_counts_as_written(kv):
    gate = Gate()
    kv.init(1, filled(0))
    kv.set_updater(gate)
    ticket = kv.push_async(1, filled(1))
    assert gate.entered.wait(WAIT_SECONDS)

    class Handled(Exception):
        pass

    def handler(number, frame):
        raise Handled

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        main = threading.get_ident()
        timer = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGUSR1))
        timer.start()
        start = time.monotonic()
        with pytest.raises(Handled):
            kv.pull(1, out=filled(0))
        assert time.monotonic() - start < WAIT_SECONDS
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
        gate.open()
    ticket.wait(WAIT_SECONDS)
    assert (pulled(kv, 1) == 1).all()


def test_an_import_loads_neither_numpy_nor_logging(run):
    result = run("-c", "import kvstore, sys; print({'numpy', 'logging'} & {*sys.modules})")
    assert (result.returncode, result.stdout, result.stderr) == (0, "set()\n", "")
