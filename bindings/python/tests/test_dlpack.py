"""Objects with __dlpack__: a producer made by hand, numpy itself, PyTorch and JAX if installed."""

import gc

import numpy as np
import pytest
from producer import CUDA, CUDA_HOST, Producer, VersionedProducer
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


def test_memory_of_a_gpu_is_refused_with_the_key_and_the_shape(kv):
    kv.init(1, filled(0))
    with pytest.raises(kvstore.UnsupportedError) as caught:
        kv.push(1, Producer(filled(1), device=CUDA))
    assert "key 1" in str(caught.value)
    assert "float32[2,3]" in str(caught.value)
    with pytest.raises(kvstore.UnsupportedError):
        kv.pull(1, out=Producer(filled(1), device=CUDA))


def test_pinned_memory_is_used_like_any_other(kv):
    kv.init(1, Producer(filled(3), device=CUDA_HOST))
    out = Producer(filled(0), device=CUDA_HOST)
    kv.pull(1, out=out)
    assert (out.array == 3).all()


def test_bfloat16_needs_no_other_package(kv):
    bfloat16 = 4 | 16 << 8 | 1 << 16
    bits = np.array([0x3F80, 0x4000], np.uint16)
    kv.init(1, Producer(bits, dtype=bfloat16))
    assert kv.key_info(1) == ("bfloat16", (2,))
    kv.push(1, [Producer(bits, dtype=bfloat16)] * 2)
    out = Producer(np.zeros(2, np.uint16), dtype=bfloat16)
    kv.pull(1, out=out)
    assert out.array.tolist() == [0x4000, 0x4080]
    wide = np.zeros(2, np.float32)
    kv.pull(1, out=wide)
    assert wide.tolist() == [2, 4]


def test_what_is_no_capsule_is_refused(kv):
    class Odd:
        def __dlpack__(self, *, stream=None, max_version=None):
            return 3

    with pytest.raises(TypeError, match="init: key 1: __dlpack__ of Odd returned no DLPack capsule"):
        kv.init(1, Odd())


def test_what_a_producer_raises_reaches_the_caller(kv):
    class Odd:
        def __dlpack__(self, **others):
            raise BufferError("busy")

    with pytest.raises(BufferError, match="busy"):
        kv.init(1, Odd())


class TestTorch:
    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch")

    @pytest.mark.parametrize(
        "name", ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]
    )
    def test_every_dtype(self, kv, torch, name):
        dtype = getattr(torch, name)
        value = torch.arange(12).reshape(3, 4).to(dtype)
        out = torch.zeros(4, 3, dtype=dtype)
        kv.init(1, value.T)
        assert kv.key_info(1) == (name, (4, 3))
        kv.push(1, [value.T, value.T])
        kv.pull(1, out=out)
        assert torch.equal(out, value.T + value.T)
        assert torch.equal(value, torch.arange(12).reshape(3, 4).to(dtype))

    def test_parameters_that_require_a_gradient(self, kv, torch):
        layer = torch.nn.Linear(3, 2)
        kv.init("w", layer.weight)
        before = layer.weight.detach().clone()
        layer(torch.ones(1, 3)).sum().backward()
        kv.set_updater(lambda key, merged, stored: stored.__isub__(0.5 * merged))
        kv.push("w", layer.weight.grad)
        address = layer.weight.data_ptr()
        kv.pull("w", out=layer.weight)
        assert layer.weight.data_ptr() == address
        assert layer.weight.requires_grad
        assert torch.equal(layer.weight.detach(), before - 0.5)

    def test_tensors_and_numpy_arrays_mix(self, kv, torch):
        kv.init(1, torch.zeros(3))
        kv.push(1, [np.ones(3, np.float32), torch.ones(3), torch.ones(3, dtype=torch.float64)])
        out = torch.zeros(3)
        kv.pull(1, out=[out])
        assert out.tolist() == [3, 3, 3]

    def test_tensors_live_as_long_as_the_operation(self, kv, torch):
        gate = Gate()
        kv.init(1, torch.zeros(1000))
        kv.set_updater(gate)
        tickets = [kv.push_async(1, torch.full((1000,), float(i))) for i in range(50)]
        noise = [torch.full((1000,), -1.0) for _ in range(100)]
        gate.open()
        for ticket in tickets:
            ticket.wait(WAIT_SECONDS)
        out = torch.zeros(1000)
        kv.pull(1, out=out)
        assert out.tolist() == [sum(range(50))] * 1000
        assert len(noise) == 100

    def test_what_dlpack_cannot_carry(self, kv, torch):
        with pytest.raises((BufferError, TypeError, ValueError)):
            kv.init(1, torch.ones(2, 2).to_sparse())


class TestJax:
    @pytest.fixture
    def jax(self):
        return pytest.importorskip("jax")

    def test_arrays_are_values_only(self, kv, jax):
        value = jax.numpy.arange(6.0, dtype="float32").reshape(2, 3)
        kv.init(1, value)
        kv.push(1, [value, value])
        out = filled(0)
        kv.pull(1, out=out)
        assert np.array_equal(out, np.asarray(value) * 2)
        with pytest.raises(kvstore.InvalidArgumentError, match="read-only"):
            kv.pull(1, out=value)
        with pytest.raises(kvstore.InvalidArgumentError, match="read-only"):
            kv.pushpull(1, value)
