"""Updaters that get arrays in GPU memory, by the option updater_memory=device.

Each test has a process of its own, see `pytest_pyfunc_call` of conftest.py.
"""

import gc

import numpy as np
import pytest
import stand_in
from producer import BFLOAT16_NUMBER, CUDA, consumed, kvstore_number
from stand_in import LEGACY, NO_WAIT, SEEDS, GpuArray, driver, filled, pulled
from support import BFLOAT16, DTYPES, WAIT_SECONDS, random_array, same_bits, sum_of

import kvstore

pytestmark = pytest.mark.gpu

COUNT = 70
HALF = 4 * COUNT // 2
VERSION = (1, 0)


def store_on(**options):
    return kvstore.create("device", updater_memory="device", **options)


def halve(key, merged, stored):
    """Makes the first half of the sum that of the value."""
    to, source = (each.__cuda_array_interface__["data"][0] for each in (stored, merged))
    driver.copy(to, source, HALF, stored.stream)


def halves(first, rest):
    return np.repeat(np.float32([first, rest]), COUNT // 2)


def number_of(dtype):
    return BFLOAT16_NUMBER if dtype == BFLOAT16 else kvstore_number(dtype)


def test_an_updater_may_get_the_arrays_on_the_gpu():
    cupy, kv = stand_in.cupy(), store_on()
    one = filled(1, (COUNT,))
    kv.init("w", cupy.ndarray(one))
    assert (pulled(kv, "w", one) == 1).all()
    kv.set_updater(halve)
    for seed in range(SEEDS):
        driver.seed(seed)
        stream = cupy.current.streams[0] = driver.stream()
        values = [cupy.ndarray(filled(seed + number, (COUNT,))) for number in (2, 3, 4)]
        out = cupy.ndarray(one)
        kv.push("w", values)
        for value in values:
            value.fill(1000)
        kv.pull("w", out=out)
        assert np.array_equal(out.get(), halves(3 * seed + 9, 1)), seed
        # The updater of a ticket has a stream of the library.
        value = cupy.ndarray(filled(seed + 50, (COUNT,)))
        kv.pushpull_async("w", value, out=out).wait(WAIT_SECONDS)
        assert np.array_equal(out.get(), halves(seed + 50, 1)), seed
        assert kvstore.stream(0) == 0
        driver.synchronize(stream)


def test_the_stream_is_the_one_of_the_push():
    cupy, kv, seen = stand_in.cupy(), store_on(), []

    def update(key, merged, stored):
        seen.append((merged.stream, stored.stream, kvstore.stream(0)))

    kv.init(1, cupy.ndarray(filled(0)))
    kv.set_updater(update)
    kv.push(1, cupy.ndarray(filled(1)))
    stream = cupy.current.streams[0] = driver.stream()
    kv.push(1, cupy.ndarray(filled(1)))
    kv.push_async(1, cupy.ndarray(filled(1))).wait(WAIT_SECONDS)
    assert seen[:2] == [(0, 0, 0), (stream, stream, stream)]
    assert len(set(seen[2])) == 1
    assert seen[2][0] not in (0, stream)


@pytest.mark.gpu(DEVICES=2)
@pytest.mark.parametrize("shape", [(), (2, 3), (4, 1, 5)], ids=str)
def test_both_protocols_describe_the_arrays(shape):
    random, kv, cupy = np.random.default_rng(5), store_on(), stand_in.cupy()
    strides = tuple(step // 8 for step in np.zeros(shape).strides)
    seen = []

    def update(key, *arrays):
        dtype = np.dtype(key)
        for array, is_read_only in zip(arrays, (True, False)):
            assert isinstance(array, kvstore.DeviceArray)
            assert (array.shape, array.dtype, array.device) == (shape, dtype, "cuda:1")
            assert array.__dlpack_device__() == (CUDA, 1)
            told = consumed(array.__dlpack__(stream=LEGACY, max_version=VERSION), True)
            old = consumed(array.__dlpack__(stream=LEGACY), False)
            assert (told.pop("flags"), old.pop("flags")) == (int(is_read_only), None)
            address = told.pop("address")
            assert old.pop("address") == address
            wanted = {"device": (CUDA, 1), "dtype": number_of(dtype), "shape": shape}
            assert told == old == {**wanted, "strides": strides}
            if dtype == BFLOAT16:
                assert not hasattr(array, "__cuda_array_interface__")
            else:
                interface = array.__cuda_array_interface__
                wanted = {"version": 3, "shape": shape, "typestr": dtype.str, "strides": None}
                data = (address, is_read_only)
                assert interface == {**wanted, "data": data, "stream": LEGACY}
            content = driver.read(address, dtype.itemsize * int(np.prod(shape)), LEGACY, 1)
            seen.append(np.frombuffer(content, dtype).reshape(shape))

    kv.set_updater(update)
    for dtype in DTYPES:
        stored, a, b = (random_array(random, dtype, shape) for _ in range(3))
        kv.init(dtype.name, cupy.ndarray(stored, device=1))
        kv.push(dtype.name, [cupy.ndarray(a, device=1), cupy.ndarray(b, device=1)])
        merged, before = seen[-2:]
        assert same_bits(merged, sum_of([a, b], dtype)), dtype
        assert same_bits(before, stored), dtype
    assert len(seen) == 2 * len(DTYPES)


def test_an_array_refuses_its_memory_after_the_call():
    kv, kept = store_on(), []

    def update(key, *arrays):
        kept.extend(arrays)
        if key == 2:
            raise ValueError("no")

    kv.init([1, 2], [GpuArray(filled(1)), GpuArray(filled(1))])
    kv.set_updater(update)
    with pytest.raises(kvstore.CallbackError, match=r"push: key 2.*ValueError: no"):
        kv.push([1, 2], [GpuArray(filled(1)), GpuArray(filled(1))])
    assert len(kept) == 4
    for array in kept:
        assert "not valid any more" in repr(array)
        with pytest.raises(kvstore.InvalidArgumentError, match="after the updater has returned"):
            array.__dlpack__(stream=LEGACY, max_version=VERSION)
        with pytest.raises(kvstore.InvalidArgumentError, match="after the updater has returned"):
            _ = array.__cuda_array_interface__
        with pytest.raises(kvstore.InvalidArgumentError, match="after the updater has returned"):
            kv.push(3, array)


def test_an_export_is_of_the_stream_of_the_updater():
    cupy, kv, done = stand_in.cupy(), store_on(), []

    def update(key, merged, stored):
        stream = stored.stream
        assert stored.__cuda_array_interface__["stream"] == stream
        for good in (stream, NO_WAIT):
            consumed(stored.__dlpack__(stream=good, max_version=VERSION), True)
        for other in (None, LEGACY, stream + 16):
            with pytest.raises(kvstore.InvalidArgumentError, match=f"stream {stream:#x}: make"):
                stored.__dlpack__(stream=other, max_version=VERSION)
        for refused in ({"dl_device": (1, 0)}, {"copy": True}):
            with pytest.raises(BufferError, match="cuda:0"):
                stored.__dlpack__(stream=stream, **refused)
        consumed(stored.__dlpack__(stream=stream, dl_device=(CUDA, 0), copy=False), False)
        # A capsule that is not consumed frees its description.
        for _ in range(1000):
            stored.__dlpack__(stream=stream, max_version=VERSION)
            stored.__dlpack__(stream=stream)
        gc.collect()
        done.append(key)

    cupy.current.streams[0] = driver.stream()
    kv.init(1, cupy.ndarray(filled(0)))
    kv.set_updater(update)
    kv.push(1, cupy.ndarray(filled(1)))
    # Without a stream a consumer works on the legacy one.
    cupy.current.streams[0] = 0
    kv.set_updater(lambda key, merged, stored: done.append(stored.__dlpack__()))
    kv.push(1, cupy.ndarray(filled(1)))
    assert done[0] == 1
    assert len(done) == 2


def test_another_store_takes_the_arrays_of_an_updater():
    cupy, kv, other = stand_in.cupy(), store_on(), kvstore.create("device")

    def update(key, merged, stored):
        other.push("copy", [merged, stored])
        other.pull("copy", out=stored)
        with pytest.raises(kvstore.InvalidArgumentError, match="read-only"):
            other.pull("copy", out=merged)

    cupy.current.streams[0] = driver.stream()
    kv.init(1, cupy.ndarray(filled(2)))
    other.init("copy", cupy.ndarray(filled(0)))
    kv.set_updater(update)
    kv.push(1, [cupy.ndarray(filled(3)), cupy.ndarray(filled(4))])
    assert (pulled(kv, 1, filled(0)) == 9).all()
    assert (pulled(other, "copy", filled(0)) == 9).all()


@pytest.mark.parametrize("undo", [False, True])
def test_an_updater_that_fails_behind_a_change(undo):
    cupy, kv = stand_in.cupy(), store_on(updater_undo=undo)

    def update(key, merged, stored):
        halve(key, merged, stored)
        raise ValueError("no")

    kv.init("w", cupy.ndarray(filled(1, (COUNT,))))
    kv.set_updater(update)
    with pytest.raises(kvstore.CallbackError, match=r'push: key "w".*no') as caught:
        kv.push("w", cupy.ndarray(filled(5, (COUNT,))))
    assert isinstance(caught.value.__cause__, ValueError)
    out = pulled(kv, "w", filled(0, (COUNT,)))
    assert np.array_equal(out, halves(1 if undo else 5, 1))


def test_a_key_in_host_memory_arrives_as_arrays_of_numpy():
    seen = []
    for kv in (store_on(), kvstore.create("local", updater_memory="device")):
        kv.init(1, filled(1))

        def update(key, merged, stored):
            seen.append(type(stored))
            stored += 2 * merged

        kv.set_updater(update)
        kv.push(1, [GpuArray(filled(3)), filled(4)])
        assert (pulled(kv, 1, filled(0)) == 15).all()
    assert seen == [np.ndarray] * 2
