"""Arrays in GPU memory, on the stand-in driver of tests/cuda, beside numpy and stores of the host.

Each test has a process of its own, see `pytest_pyfunc_call` of conftest.py.
"""

import itertools

import numpy as np
import pytest
import stand_in
from stand_in import F32, LAYOUTS, SEEDS, GpuArray, InterfaceArray, driver, filled, pulled
from support import BFLOAT16, DTYPES, FLOATS, random_array, same_numbers, sum_of

import kvstore

pytestmark = pytest.mark.gpu


@pytest.mark.gpu(RACES="no")
@pytest.mark.parametrize("kind", ["local", "device"])
def test_every_call_with_every_dtype_and_layout_gives_the_sums_of_numpy(kind):
    random = np.random.default_rng(7)
    kv = kvstore.create(kind)
    for key, (dtype, (name, layout)) in enumerate(itertools.product(DTYPES, LAYOUTS.items())):
        at = f"{dtype} {name}"
        first, a, b = (layout(random_array(random, dtype, (3, 5))) for _ in range(3))
        value, other, out = GpuArray(a), GpuArray(b), GpuArray(layout(np.zeros_like(first)))
        kv.init(key, GpuArray(first))
        assert kv.key_device(key) == ("cuda:0" if kind == "device" else "cpu"), at
        assert same_numbers(pulled(kv, key, first), np.ascontiguousarray(first)), at
        kv.push(key, [value, b, other])
        kv.pull(key, out=[out, host := np.zeros_like(first)])
        wanted = sum_of([a, b, b], dtype)
        assert same_numbers(out.get(), wanted), at
        assert same_numbers(host, wanted), at
        kv.pushpull(key, [value, other], out=out)
        assert same_numbers(out.get(), sum_of([a, b], dtype)), at
        kv.pushpull(key, [value, other])
        assert same_numbers(other.get(), sum_of([a, b], dtype)), at
        copy = GpuArray(layout(np.zeros_like(first)))
        kv.broadcast(f"copy {key}", GpuArray(first), out=copy)
        assert same_numbers(copy.get(), np.ascontiguousarray(first)), at
        assert (value.alive, other.alive, out.alive, copy.alive) == (0, 0, 0, 0), at


def test_floats_are_converted_between_the_array_and_the_key():
    kv, random = kvstore.create("device"), np.random.default_rng(8)
    for of_key, of_array in itertools.product(FLOATS, FLOATS):
        name, value = f"{of_key} {of_array}", random_array(random, of_array, (7,))
        kv.init(name, GpuArray(np.zeros(7, of_key)))
        kv.push(name, GpuArray(value))
        out = GpuArray(np.zeros(7, of_array))
        kv.pull(name, out=out)
        assert same_numbers(out.get(), value.astype(of_key).astype(of_array)), name


def test_lists_of_keys_and_arrays_of_both_memories_in_one_call():
    kv = kvstore.create("device")
    kv.init(["w", 3], [GpuArray(filled(0)), filled(0)])
    assert (kv.key_device("w"), kv.key_device(3)) == ("cuda:0", "cpu")
    a, b = GpuArray(filled(2)), filled(5)
    kv.push(["w", 3], [[a, b, a], [b, a]])
    outs = [GpuArray(filled(0)), filled(0)]
    kv.pull([3, "w"], out=outs)
    assert (outs[0].get() == 7).all()
    assert (outs[1] == 9).all()
    kv.pushpull(["w", 3], [a, b], out=[[outs[1]], [outs[0]]])
    assert (outs[1] == 2).all()
    assert (outs[0].get() == 5).all()


def test_numbers_without_dimensions_and_empty_arrays():
    kv = kvstore.create("device")
    for shape in ((), (0, 3)):
        kv.init(str(shape), GpuArray(filled(2, shape)))
        kv.push(str(shape), [GpuArray(filled(3, shape))] * 2)
        out = GpuArray(filled(0, shape))
        kv.pull(str(shape), out=out)
        assert np.array_equal(out.get(), filled(6, shape))


@pytest.mark.parametrize("kind", ["local", "device"])
def test_optimizers_give_the_bits_of_arrays_in_host_memory(kind):
    random = np.random.default_rng(9)
    for rule in ("sgd", "adam", "rmsprop", "lamb", "lars", "groupadagrad"):
        options = {"momentum": 0.9} if rule in ("sgd", "lars") else {}
        gpu, host = kvstore.create(kind), kvstore.create(kind)
        weight = random_array(random, F32, (40,))
        gpu.init(1, GpuArray(weight))
        host.init(1, weight)
        for kv in (gpu, host):
            kv.set_optimizer(rule, learning_rate=0.05, **options)
        out, wanted = GpuArray(weight), weight.copy()
        for _ in range(3):
            a, b = (random_array(random, F32, (40,)) for _ in range(2))
            gpu.pushpull(1, [GpuArray(a), GpuArray(b)], out=out)
            host.pushpull(1, [a, b], out=wanted)
        assert out.get().tobytes() == wanted.tobytes(), rule


@pytest.mark.gpu(DEVICES=2)
def test_each_gpu_of_a_call_has_its_own_current_stream_under_every_seed():
    cupy = stand_in.cupy()
    streams = [driver.stream(device) for device in range(2)]
    for device, stream in enumerate(streams):
        cupy.current.streams[device] = stream
    for seed in range(SEEDS):
        driver.seed(seed)
        kv = kvstore.create("device")
        kv.init(1, cupy.ndarray(filled(0), device=1))
        values = [cupy.ndarray(filled(1 + device), device) for device in range(2)]
        outs = [cupy.ndarray(filled(0), device) for device in range(2)]
        kv.pushpull(1, values, out=outs)
        for value in values:
            value.fill(1000)
        assert [float(out.get()[0, 0]) for out in outs] == [3, 3], seed
        assert [kvstore.stream(device) for device in range(2)] == [0, 0]
        for device, stream in enumerate(streams):
            driver.synchronize(stream, device)


@pytest.mark.gpu(DEVICES=4)
def test_four_gpus_in_one_call():
    kv = kvstore.create("device")
    kv.init("w", GpuArray(filled(0), device=2))
    assert kv.key_device("w") == "cuda:2"
    values = [GpuArray(filled(10**device), device) for device in range(4)]
    outs = [GpuArray(filled(0), device) for device in range(4)]
    kv.pushpull("w", values, out=outs)
    assert all((out.get() == 1111).all() for out in outs)
    # Strided arrays, and those of another dtype, of other GPUs than the key's.
    rows = np.arange(6, dtype=np.float64).reshape(2, 3)
    value = GpuArray(np.asfortranarray(rows), device=1)
    out = GpuArray(np.asfortranarray(filled(0)), device=3)
    kv.pushpull("w", [value, values[0]], out=out)
    assert np.array_equal(out.get(), np.float32(rows + 1))


@pytest.mark.gpu(POOLS="no")
def test_a_gpu_without_memory_pools():
    kv, out = kvstore.create("device"), GpuArray(filled(0))
    kv.init(1, GpuArray(filled(1)))
    kv.set_optimizer("adam")
    host = kvstore.create("device")
    host.init(1, filled(1))
    host.set_optimizer("adam")
    for number in range(3):
        kv.pushpull(1, [GpuArray(filled(number)), GpuArray(filled(2))], out=out)
        host.push(1, [filled(number), filled(2)])
    assert kv.key_device(1) == "cuda:0"
    assert out.get().tobytes() == pulled(host, 1, filled(0)).tobytes()


def test_arrays_with_the_interface_of_numba_are_used_on_their_stream():
    for dtype, (name, layout) in itertools.product(DTYPES, LAYOUTS.items()):
        if dtype == BFLOAT16:
            continue  # The interface has no name for it.
        kv, stream = kvstore.create("device"), driver.stream()
        array = layout(random_array(np.random.default_rng(3), dtype, (3, 5)))
        value = InterfaceArray(array, stream=stream)
        out = InterfaceArray(layout(np.zeros_like(array)), stream=stream)
        kv.init(1, value)
        kv.pushpull(1, [value, value], out=out)
        assert same_numbers(out.get(), sum_of([array, array], dtype)), (dtype, name)
        assert kvstore.stream(0) == 0


@pytest.mark.gpu(DEVICES=2)
def test_what_the_interface_of_numba_may_say():
    kv = kvstore.create("device")
    kv.init(1, InterfaceArray(filled(3), named=False))
    kv.push(1, InterfaceArray(filled(4), read_only=True))
    assert (pulled(kv, 1, filled(0)) == 4).all()
    with pytest.raises(kvstore.InvalidArgumentError, match="pull: key 1: an out is a read-only"):
        kv.pull(1, out=InterfaceArray(filled(0), read_only=True))
    with pytest.raises(TypeError, match=r"push: key 1: .*mask"):
        kv.push(1, InterfaceArray(filled(4), mask=object()))
    of_stream_0 = InterfaceArray(filled(4))
    of_stream_0.__cuda_array_interface__["stream"] = 0
    with pytest.raises(kvstore.InvalidArgumentError, match=r"push: key 1: .*the stream 0"):
        kv.push(1, of_stream_0)
    with pytest.raises(kvstore.InvalidArgumentError, match=r"push: key 1: strides of .* bytes"):
        kv.push(1, InterfaceArray(filled(4), strides=(13, 4)))
    with pytest.raises(TypeError, match=r"push: key 1: .*dtype"):
        kv.push(1, InterfaceArray(filled(4), typestr="<U4"))
    kv.init(2, InterfaceArray(filled(5), device=1))
    assert kv.key_device(2) == "cuda:1"


@pytest.mark.parametrize("kind", ["local", "device"])
def test_an_updater_gets_arrays_in_host_memory(kind):
    kv, out, seen = kvstore.create(kind), GpuArray(filled(0)), []

    def update(key, merged, stored):
        seen.append((key, merged.tolist(), stored.tolist(), merged.flags.writeable))
        stored += 2 * merged

    kv.init("w", GpuArray(filled(1)))
    kv._set_updater(update)
    kv.push("w", [GpuArray(filled(3)), GpuArray(filled(4))])
    kv.pull("w", out=out)
    assert seen == [("w", [[7] * 3] * 2, [[1] * 3] * 2, False)]
    assert (out.get() == 15).all()

    def fails(key, merged, stored):
        stored[...] = 77
        raise ValueError("no")

    kv.set_updater(fails)
    with pytest.raises(kvstore.CallbackError, match=r'push: key "w".*no'):
        kv.push("w", GpuArray(filled(1)))


def test_checkpoints_do_not_tell_where_values_were(tmp_path):
    path = tmp_path / "model.safetensors"
    kv, other = kvstore.create("device"), kvstore.create("device")
    gradient = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    kv.init(["a", "b"], [GpuArray(filled(1)), filled(2)])
    kv.set_optimizer("adam")
    kv.push(["a", "b"], [GpuArray(gradient)] * 2)
    kv.save(path)
    other.init("a", GpuArray(filled(0)))
    other.load(path)
    assert (other.key_device("a"), other.key_device("b")) == ("cuda:0", "cpu")
    for store in (kv, other):
        store.push(["a", "b"], [GpuArray(gradient)] * 2)
    for key in ("a", "b"):
        assert pulled(other, key, gradient).tobytes() == pulled(kv, key, gradient).tobytes()
