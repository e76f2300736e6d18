"""Objects with __dlpack__, made by hand to see what becomes of a capsule."""

import gc

import numpy as np
import pytest
from producer import (
    BFLOAT16_NUMBER,
    CPU,
    CUDA,
    CUDA_HOST,
    Producer,
    VersionedProducer,
    type_with_table,
)
from support import WAIT_SECONDS, Gate

import kvstore


def filled(value, shape=(2, 3)):
    return np.full(shape, value, np.float32)


@pytest.mark.parametrize("kind", [Producer, VersionedProducer])
def test_values_and_outs_without_a_copy(kv, kind):
    value, out = kind(filled(5)), kind(filled(0))
    kv.init(1, value)
    kv.push(1, [value, value])
    kv.pull(1, out=out)
    assert (out.array == 10).all()
    assert (value.array == 5).all()
    kv.pushpull(1, value)
    assert (value.array == 5).all()
    assert value.made == 5
    assert (value.alive, out.alive) == (0, 0)


def test_the_producer_is_asked_for_version_1(kv):
    value = VersionedProducer(filled(1))
    kv.init(1, value)
    assert value.asked == (1, 0)


def test_strides_and_byte_offset(kv):
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    transposed = Producer(base.reshape(4, 3), strides=(1, 4), byte_offset=64)
    kv.init(1, transposed)
    out = filled(0, (4, 3))
    kv.pull(1, out=out)
    assert np.array_equal(out, base.T)


def test_numbers_without_dimensions_and_empty_tensors(kv):
    for shape in ((), (0, 3)):
        kv.init(str(shape), Producer(filled(2, shape)))
        out = Producer(filled(0, shape))
        kv.pull(str(shape), out=out)
        assert np.array_equal(out.array, filled(2, shape))


def test_a_capsule_lives_until_the_operation_has_ended(kv):
    gate = Gate()
    value = VersionedProducer(filled(1))
    kv.init(1, filled(0))
    kv.set_updater(gate)
    ticket = kv.push_async(1, value)
    gc.collect()
    assert value.alive == 1
    gate.open()
    ticket.wait(WAIT_SECONDS)
    assert value.alive == 0


def test_a_refused_call_lets_capsules_go(kv):
    value = Producer(filled(1))
    kv.init(1, filled(0, (5,)))
    with pytest.raises(kvstore.ShapeMismatchError):
        kv.push(1, value)
    assert (value.made, value.alive) == (1, 0)


def test_read_only_producers_are_values_only(kv):
    value = VersionedProducer(filled(1), flags=1)
    kv.init(1, value)
    kv.push(1, value)
    with pytest.raises(kvstore.InvalidArgumentError, match="pull: key 1: an out is a read-only"):
        kv.pull(1, out=value)
    with pytest.raises(kvstore.InvalidArgumentError, match="read-only"):
        kv.pushpull(1, value)
    assert value.alive == 0


def test_another_major_version_is_refused(kv):
    with pytest.raises(kvstore.InvalidArgumentError, match="DLPack 2"):
        kv.init(1, VersionedProducer(filled(1), major=2))


def test_memory_of_a_gpu_is_refused_with_the_key_if_the_store_is_told_so():
    with kvstore.create("device", cuda=False) as kv:
        kv.init(1, filled(0))
        value = VersionedProducer(filled(1), device=CUDA)
        with pytest.raises(kvstore.UnsupportedError, match=r"push: key 1: .*CUDA.*cuda is no"):
            kv.push(1, value)
        with pytest.raises(kvstore.UnsupportedError, match=r"pull: key 1: .*CUDA.*cuda is no"):
            kv.pull(1, out=value)
        assert (value.made, value.alive) == (2, 0)


def test_a_device_and_a_capsule_of_another_are_refused(kv):
    class Odd(Producer):
        def __dlpack_device__(self):
            return (CPU, 0)

    with pytest.raises(kvstore.InvalidArgumentError, match=r"init: key 1: .*capsule is of GPU 0"):
        kv.init(1, Odd(filled(1), device=CUDA))


def test_pinned_memory_is_used_like_any_other(kv):
    kv.init(1, Producer(filled(3), device=CUDA_HOST))
    out = Producer(filled(0), device=CUDA_HOST)
    kv.pull(1, out=out)
    assert (out.array == 3).all()


def test_bfloat16_needs_no_other_package(kv):
    bits = np.array([0x3F80, 0x4000], np.uint16)
    kv.init(1, Producer(bits, dtype=BFLOAT16_NUMBER))
    assert kv.key_info(1) == ("bfloat16", (2,))
    kv.push(1, [Producer(bits, dtype=BFLOAT16_NUMBER)] * 2)
    out = Producer(np.zeros(2, np.uint16), dtype=BFLOAT16_NUMBER)
    kv.pull(1, out=out)
    assert out.array.tolist() == [0x4000, 0x4080]
    wide = np.zeros(2, np.float32)
    kv.pull(1, out=wide)
    assert wide.tolist() == [2, 4]


def test_what_is_no_capsule_is_refused(kv):
    class Odd:
        def __dlpack__(self, *, stream=None, max_version=None):
            return 3

    with pytest.raises(
        TypeError, match="init: key 1: __dlpack__ of Odd returned no DLPack capsule"
    ):
        kv.init(1, Odd())


def test_what_a_producer_raises_reaches_the_caller(kv):
    class Odd:
        def __dlpack__(self, **others):
            raise BufferError("busy")

    with pytest.raises(BufferError, match="busy"):
        kv.init(1, Odd())


@pytest.mark.parametrize("majors", [(1,), (3, 2, 1)])
def test_a_table_of_the_type_is_used(kv, majors):
    kind = type_with_table(majors)
    value, out = kind(filled(5)), kind(filled(0))
    kv.init(1, value)
    kv.pushpull(1, [value, value], out=[out])
    assert (out.array == 10).all()
    assert (value.made, out.made) == (3, 1)
    assert (value.alive, out.alive) == (0, 0)
    gate = Gate()
    kv.set_updater(gate)
    ticket = kv.push_async(1, value)
    assert value.alive == 1
    gate.open()
    ticket.wait(WAIT_SECONDS)
    assert value.alive == 0


def test_a_table_tells_that_an_array_is_read_only(kv):
    value = type_with_table()(filled(1), flags=1)
    kv.init(1, value)
    with pytest.raises(kvstore.InvalidArgumentError, match="pull: key 1: an out is a read-only"):
        kv.pull(1, out=value)
    assert value.alive == 0


def test_a_table_of_versions_from_the_future_alone_is_passed_over(kv):
    kind = type_with_table((4, 3))
    kind.__dlpack__ = VersionedProducer.__dlpack__
    kv.init(1, kind(filled(5)))
    assert kv.key_info(1).shape == (2, 3)
