"""Arrays in GPU memory, on the stand-in driver of tests/cuda, beside a store in host memory.

Each test has a process of its own, see `pytest_pyfunc_call` of conftest.py.
"""

import gc
import itertools
import os
import re
import threading

import numpy as np
import pytest
from producer import type_with_table
from support import BFLOAT16, DTYPES, FLOATS, WAIT_SECONDS, Gate, random_array, same_numbers, sum_of

import kvstore

if "KV_GPU_TEST" in os.environ:
    import stand_in
    from stand_in import LEGACY, NO_WAIT, GpuArray, InterfaceArray, driver

pytestmark = pytest.mark.gpu
F32 = np.dtype(np.float32)
SEEDS = int(os.environ.get("KV_TEST_SEEDS", "40"))


def filled(number, shape=(2, 3)):
    return np.full(shape, number, np.float32)


def pulled(kv, key, like):
    out = np.zeros(like.shape, like.dtype)
    kv.pull(key, out=out)
    return out


LAYOUTS = {
    "row-major": lambda array: array,
    "transposed": lambda array: np.asfortranarray(array),
    "every second": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "reversed": lambda array: np.ascontiguousarray(array[::-1])[::-1],
}


# Calls, types, layouts.


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
    for rule, options in (("sgd", {"momentum": 0.9}), ("adam", {}), ("rmsprop", {})):
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
    strided = GpuArray(np.asfortranarray(filled(1)), device=1)
    with pytest.raises(kvstore.UnsupportedError, match=r'push: key "w": .*GPU 1.*contiguous'):
        kv.push("w", strided)


# Streams.


def test_the_current_stream_of_a_package_is_found_and_named_for_the_call():
    for make in (stand_in.cupy, stand_in.torch):
        package = make()
        kind = package.ndarray if make is stand_in.cupy else package.Tensor
        kv, stream, other = kvstore.create("device"), driver.stream(), driver.stream()
        kvstore.set_stream(0, other)
        package.current.streams[0] = stream
        value, out = kind(filled(4)), kind(filled(0))
        kv.init(1, value)
        kv.pushpull(1, [value, value], out=out)
        assert (out.get() == 8).all()
        assert value.streams == [NO_WAIT] * 3
        assert out.streams == [NO_WAIT]
        assert kvstore.stream(0) == other
        if make is stand_in.torch:
            assert package.changes == [out]
        # Destroyed while no call uses it, the handle is not used any more.
        driver.synchronize(stream)
        driver.synchronize(other)
        kvstore.set_stream(0, None)
        driver.destroy(other)
        driver.destroy(stream)
        package.current.streams[0] = 0
        assert (pulled(kv, 1, filled(0)) == 8).all()


def test_a_table_of_the_type_tells_the_stream():
    stream = driver.stream()
    asked = []

    def current(device_type, device, out):
        asked.append((device_type, device))
        out[0] = stream
        return 0

    kind = type_with_table(current_stream=current)
    kv = kvstore.create("device")
    inner = GpuArray(filled(6), stream=stream)
    value = kind(inner.array)
    value.tensor = inner.tensor
    kv.init(1, value)
    assert kvstore.stream(0) == 0
    assert (pulled(kv, 1, filled(0)) == 6).all()
    assert set(asked) == {(2, 0)}
    assert (value.made, value.alive) == (1, 0)


def test_a_tensor_of_pytorch_is_borrowed_by_its_table_on_its_stream():
    torch, stream = stand_in.torch(), driver.stream()

    def current(device_type, device, out):
        out[0] = stream
        return 0

    kind = type_with_table(current_stream=current, borrows=True)
    torch.Tensor = kind
    kind.detach = lambda self: self

    def tensor(number):
        inner = GpuArray(filled(number), stream=stream)
        made = kind(inner.array)
        made.tensor, made.inner = inner.tensor, inner
        return made

    kv, value, out = kvstore.create("device"), tensor(6), tensor(0)
    kv.init(1, value)
    kv.pushpull(1, [value, value], out=out)
    assert (out.inner.get() == 12).all()
    kv.pushpull_async(1, value, out=out).wait(WAIT_SECONDS)
    assert (out.inner.get() == 6).all()
    assert (value.borrowed, out.borrowed, value.made, out.made) == (4, 2, 0, 0)
    assert torch.changes == [out, out, out]
    assert kvstore.stream(0) == 0


def test_a_table_without_streams_leaves_the_order_to_dlpack():
    kind, inner = type_with_table(), GpuArray(filled(6), stream=driver.stream())
    kind.__dlpack__ = lambda self, **others: inner.__dlpack__(**others)
    kind.__dlpack_device__ = lambda self: (2, 0)
    value = kind(inner.array)
    value.tensor = inner.tensor
    kv = kvstore.create("device")
    kv.init(1, value)
    assert inner.streams == [LEGACY]
    assert (value.alive, inner.alive) == (0, 0)
    assert (pulled(kv, 1, filled(0)) == 6).all()


def run_on_side_streams(make_array, current, streams):
    """Steps that go wrong if a call is not behind, or not before, what its package queues."""
    kv = kvstore.create("device")
    current[0] = streams[0]
    weight = make_array(filled(1))
    kv.init(1, weight)
    kv.set_optimizer("test")
    gradient, out = make_array(filled(0)), make_array(filled(0))
    for step in range(4):
        current[0] = streams[step % 2]
        gradient.fill(step)
        kv.pushpull(1, [gradient, gradient], out=out)
        # Before the library has read it, unless this is ordered behind the call.
        gradient.fill(1000)
        results = out.get()
    return float(results[0, 0])


def test_calls_on_side_streams_are_ordered_under_every_seed():
    cupy, streams = stand_in.cupy(), [driver.stream(), driver.stream()]
    for seed in range(SEEDS):
        driver.seed(seed)
        assert run_on_side_streams(cupy.ndarray, cupy.current.streams, streams) == 13, seed


def test_a_stream_that_is_not_named_is_seen_under_some_seed():
    """The control of the test above: the package tells the legacy stream, and uses another one."""
    cupy, streams = stand_in.cupy(), [driver.stream(), driver.stream()]
    cupy.cuda.get_current_stream = lambda device: stand_in.types.SimpleNamespace(ptr=0)
    wrong = 0
    for seed in range(SEEDS):
        driver.seed(seed)
        try:
            wrong += run_on_side_streams(cupy.ndarray, cupy.current.streams, streams) != 13
        except (AssertionError, kvstore.KVStoreError):
            wrong += 1
            break
    assert wrong


class Program:
    """Random calls with arrays of every memory and package, beside numpy."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.cupy = stand_in.cupy()
        self.streams = [0, driver.stream(), driver.stream()]
        self.kv = kvstore.create(self.random.choice(["local", "device"]))
        self.model, self.pending = {}, []
        # Arrays whose stream is not known are in a call with others only if that stream is named.
        self.names = self.random.random() < 0.5
        kvstore.set_stream(0, None)

    def array(self, numbers):
        make = self.random.choice(4)
        if make == 0:
            return numbers.copy()
        if make == 1 and self.names:
            return GpuArray(numbers, stream=self.random.choice([1, *self.streams[1:]]).item())
        if make == 2:
            return InterfaceArray(numbers, stream=self.current() or 1)
        return self.cupy.ndarray(numbers)

    def current(self):
        return self.cupy.current.streams.get(0, 0)

    def numbers(self):
        return self.random.integers(-8, 8, (3, 4)).astype(np.float32)

    def check(self, out, wanted):
        assert np.array_equal(out if isinstance(out, np.ndarray) else out.get(), wanted)

    def step(self):
        if self.random.random() < 0.3:
            driver.synchronize(self.current() or 1)
            self.cupy.current.streams[0] = self.random.choice(self.streams).item()
            if self.names:
                kvstore.set_stream(0, self.current() or None)
        key = int(self.random.integers(5))
        if key not in self.model:
            self.model[key] = self.numbers()
            self.kv.init(key, self.array(self.model[key]))
            return
        call = self.random.choice(["push", "pull", "pushpull", "remove"], p=[0.4, 0.25, 0.3, 0.05])
        values = [self.numbers() for _ in range(self.random.integers(1, 4))]
        arrays, out = [self.array(each) for each in values], self.array(np.zeros((3, 4), F32))
        if call == "remove":
            self.kv.remove(key)
            del self.model[key]
            return
        if call != "pull":
            self.model[key] = sum(values)
        arguments = {"push": (arrays,), "pull": (out,), "pushpull": (arrays, out)}[call]
        if self.random.random() < 0.3:
            ticket = getattr(self.kv, f"{call}_async")(key, *arguments)
            self.pending.append((ticket, out if call != "push" else None, self.model[key]))
            return
        getattr(self.kv, call)(key, *arguments)
        if call != "push" and self.random.random() < 0.5:
            self.check(out, self.model[key])
        for value in arrays:
            # Free for its package at once.
            if isinstance(value, GpuArray):
                value.fill(1000)

    def settle(self):
        for ticket, out, wanted in self.pending:
            ticket.wait(WAIT_SECONDS)
            if out is not None:
                self.check(out, wanted)
        for key, wanted in self.model.items():
            self.check(pulled(self.kv, key, wanted), wanted)
        for stream in self.streams:
            driver.synchronize(stream)


@pytest.mark.gpu(RACES="no")
def test_random_programs_give_the_values_of_numpy_under_every_seed():
    for seed in range(SEEDS):
        driver.seed(seed)
        program = Program(seed)
        try:
            for _ in range(30):
                program.step()
            program.settle()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {driver.message()}") from error


def test_an_older_cupy_tells_the_stream_of_its_current_device():
    cupy, stream, entered = stand_in.cupy(), driver.stream(), []

    class Device:
        def __init__(self, number):
            self.number = number

        def __enter__(self):
            entered.append(self.number)

        def __exit__(self, *error):
            pass

    cupy.cuda.Device = Device
    cupy.cuda.get_current_stream = lambda: stand_in.types.SimpleNamespace(ptr=stream)
    cupy.current.streams[0] = stream
    kv = kvstore.create("device")
    kv.init(1, cupy.ndarray(filled(3)))
    assert entered == [0]
    assert (pulled(kv, 1, filled(0)) == 3).all()


def test_each_thread_has_its_stream_and_each_gpu_too():
    cupy, kv = stand_in.cupy(), kvstore.create("device")
    kv.init(1, cupy.ndarray(filled(0)))
    kv.set_optimizer("test")
    failures = []

    def work():
        try:
            cupy.current.streams[0] = driver.stream()
            for _ in range(20):
                kv.push(1, cupy.ndarray(filled(1)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert not failures
    assert (pulled(kv, 1, filled(0)) == 60).all()


def test_a_package_with_an_unknown_stream_is_asked_for_the_named_one():
    kv, stream, named = kvstore.create("device"), driver.stream(), driver.stream()
    value = GpuArray(filled(4), stream=stream)
    kv.init(1, value)
    kv.push(1, value)
    kvstore.set_stream(0, named)
    kv.push(1, value)
    assert value.streams == [LEGACY, LEGACY, named]
    assert kvstore.stream(0) == named


@pytest.mark.parametrize("kind", ["local", "device"])
def test_an_array_with_an_unknown_stream_is_free_when_the_call_returns(kind):
    kv, stream = kvstore.create(kind), driver.stream()
    for seed in range(SEEDS):
        driver.seed(seed)
        value, out = GpuArray(filled(4), stream=stream), GpuArray(filled(0), stream=stream)
        kv.init(seed, value)
        # Nothing orders this behind the call but the call's return.
        value.fill(3)
        assert (pulled(kv, seed, filled(0)) == 4).all(), seed
        kv.push(seed, [value, value])
        value.fill(1000)
        assert (pulled(kv, seed, filled(0)) == 6).all(), seed
        value.fill(5)
        kv.pushpull(seed, value, out=out)
        assert (out.get() == 5).all(), seed
        driver.synchronize(stream)
        value.free()
        out.free()


def test_packages_with_different_streams_in_one_call_are_refused():
    cupy, torch = stand_in.cupy(), stand_in.torch()
    kv, stream = kvstore.create("device"), driver.stream()
    cupy.current.streams[0] = stream
    a, b = cupy.ndarray(filled(1)), torch.Tensor(filled(2))
    kv.init(1, b)
    with pytest.raises(kvstore.InvalidArgumentError, match="push: key 1: its stream on GPU 0 is"):
        kv.push(1, [a, b])
    assert (a.alive, b.alive) == (0, 0)
    torch.current.streams[0] = stream
    driver.order(stream, LEGACY)
    kv.push(1, [a, b])
    assert (pulled(kv, 1, filled(0)) == 3).all()


def test_streams_that_a_program_names():
    stream = driver.stream()

    class WithProtocol:
        def __cuda_stream__(self):
            return (0, stream)

    holders = (stream, WithProtocol(), stand_in.types.SimpleNamespace(ptr=stream))
    for holder in (*holders, stand_in.types.SimpleNamespace(cuda_stream=stream)):
        kvstore.set_stream(0, holder)
        assert kvstore.stream(0) == stream
        kvstore.set_stream(0, None)
        assert kvstore.stream(0) == 0
    for wrong in ("0", 1.0, None, True):
        with pytest.raises(TypeError, match="number of a GPU"):
            kvstore.set_stream(wrong, stream)
    for wrong in ("0", 1.5, True):
        with pytest.raises(TypeError, match="a stream is a handle"):
            kvstore.set_stream(0, wrong)
    for device in (-1, 1, 2**40):
        with pytest.raises(kvstore.InvalidArgumentError, match="device"):
            kvstore.set_stream(device, None)
        with pytest.raises(kvstore.InvalidArgumentError, match="device"):
            kvstore.stream(device)
    with pytest.raises(kvstore.InvalidArgumentError, match="no stream of GPU 0"):
        kvstore.set_stream(0, 0xABCD)


# __cuda_array_interface__


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


# Tickets, and what they keep.


@pytest.mark.parametrize("kind", ["local", "device"])
def test_a_ticket_keeps_what_it_was_given_until_the_gpu_is_done(kind):
    kv = kvstore.create(kind)
    value, out = GpuArray(filled(1)), GpuArray(filled(0))
    kv.init(1, filled(0) if kind == "local" else value)
    gate = Gate()
    kv.set_updater(gate)
    ticket = kv.push_async(1, value)
    gc.collect()
    assert (value.alive, ticket.done()) == (1, False)
    gate.open()
    ticket.wait(WAIT_SECONDS)
    assert value.alive == 0
    kv.set_updater(None)
    kv.pushpull_async(1, [value, value], out=out).wait(WAIT_SECONDS)
    assert (out.get() == 2).all()
    kv.pull_async(1, out=[out, filled(0)]).wait(WAIT_SECONDS)
    kv.broadcast_async(2, value, out=out).wait(WAIT_SECONDS)
    assert (out.get() == 1).all()
    assert (value.alive, out.alive) == (0, 0)


def test_a_ticket_is_done_only_when_the_gpu_is():
    cupy, kv = stand_in.cupy(), kvstore.create("device")
    kv.init(1, cupy.ndarray(filled(0)))
    assert (pulled(kv, 1, filled(0)) == 0).all()
    for seed in range(SEEDS):
        driver.seed(seed)
        stream = cupy.current.streams[0] = driver.stream()
        value, out = cupy.ndarray(filled(3)), cupy.ndarray(filled(0))
        ticket = kv.pushpull_async(1, [value, value], out=out)
        assert kvstore.stream(0) == 0
        ticket.wait(WAIT_SECONDS)
        assert ticket.done()
        # On another stream, which nothing orders behind the operation.
        cupy.current.streams[0] = 0
        assert (out.get() == 6).all(), seed
        driver.synchronize(stream)


def test_later_calls_see_tickets_and_a_dropped_one_is_cancelled():
    kv = kvstore.create("device")
    value, out = GpuArray(filled(1)), GpuArray(filled(0))
    kv.init(1, value)
    kv.set_optimizer("test")
    tickets = [kv.push_async(1, value) for _ in range(5)]
    kv.pull(1, out=out)
    assert (out.get() == 6).all()
    for ticket in tickets:
        ticket.wait(WAIT_SECONDS)
        ticket.cancel()
    gate = Gate()
    kv.set_updater(gate)
    ticket = kv.push_async(1, value)
    gate.entered.wait(WAIT_SECONDS)
    waiting = kv.push_async(1, value)
    waiting.cancel()
    with pytest.raises(kvstore.CancelledError, match="push of key 1"):
        waiting.wait(WAIT_SECONDS)
    gate.open()
    ticket.wait(WAIT_SECONDS)
    assert value.alive == 0


def test_a_fault_behind_a_ticket_is_its_failure():
    kv, value = kvstore.create("device"), GpuArray(filled(1))
    kv.init(1, value)
    driver.fail("cuLaunchKernel:1=late719")
    with pytest.raises(kvstore.DeviceError, match=r"^push: GPU 0.*LAUNCH_FAILED"):
        kv.push_async(1, value).wait(WAIT_SECONDS)


# Updaters and checkpoints.


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


# What is refused, and failures of the driver: type, key and GPU.


class Claimed(stand_in.VersionedProducer if "KV_GPU_TEST" in os.environ else object):
    """An array whose description is changed by hand."""

    def __init__(self, **changes):
        super().__init__(filled(1))
        self.tensor.device_type = stand_in.CUDA
        self.tensor.data = driver.allocate(24)
        driver.write(self.tensor.data, bytes(24), LEGACY)
        for name, value in changes.items():
            setattr(self.tensor, name, value)

    def __dlpack_device__(self):
        return (self.tensor.device_type, self.tensor.device_id)


@pytest.mark.gpu(DEVICES=2)
def test_wrong_arrays_are_refused_before_anything_changes():
    kv, host = kvstore.create("device"), filled(1)
    good = GpuArray(filled(5))
    kv.init([1, 2], [good, good])
    freed = driver.allocate(24)
    driver.free(freed)
    address = good.address
    invalid, unsupported = kvstore.InvalidArgumentError, kvstore.UnsupportedError
    for changes, kind, text in (
        ({"data": host.ctypes.data}, invalid, "GPU 0, and 0x.* is not"),
        ({"data": driver.allocate(24, 1)}, invalid, "GPU 0, and 0x.* is in that of GPU 1"),
        ({"device_id": 1}, invalid, "GPU 1, and 0x.* is in that of GPU 0"),
        ({"data": freed}, invalid, "GPU 0, and 0x.* is not"),
        ({"data": driver.allocate(20)}, invalid, "4 bytes beyond its allocation on GPU 0"),
        ({"data": None}, invalid, "NULL"),
        ({"data": address + 2}, invalid, "misaligned"),
        ({"device_id": -1}, invalid, "device -1"),
        ({"device_id": 2}, invalid, "device 2, and this process sees 2"),
        ({"device_id": 70_000}, invalid, "70000"),
        ({"device_type": 13}, unsupported, "managed"),
        ({"device_type": 10}, unsupported, "type 10"),
    ):
        array = Claimed(**changes)
        with pytest.raises(kind, match=f"^push: key 2: .*{text}"):
            kv.push([1, 2], [good, array])
        with pytest.raises(kind, match=f"^pull: key 2: .*{text}"):
            kv.pull([1, 2], out=[good, array])
        assert array.alive == 0, changes
    long = GpuArray(filled(0, (12,)))
    outs = [Claimed(data=long.address + offset) for offset in (0, 4)]
    with pytest.raises(kvstore.OverlapError, match="key 1"):
        kv.pull(1, out=outs)
    zero = Claimed(strides=stand_in.ctypes.addressof((stand_in.ctypes.c_int64 * 2)(0, 1)))
    with pytest.raises(kvstore.OverlapError, match="key 1"):
        kv.pull(1, out=zero)
    with pytest.raises(kvstore.ShapeMismatchError, match="push: key 1"):
        kv.push(1, GpuArray(filled(1, (3, 2))))
    with pytest.raises(kvstore.DtypeMismatchError, match="push: key 1"):
        kv.push(1, GpuArray(np.ones((2, 3), np.int32)))
    assert (pulled(kv, 1, host) == 5).all()


def test_what_is_not_served_names_the_way_around(tmp_path):
    kv, value, row = kvstore.create("device"), GpuArray(filled(1)), GpuArray(filled(1, (1, 3)))
    kv.init([1, 2], [value, filled(1)])
    calls = (
        lambda: kv.push_rows(1, [0], filled(1, (1, 3))),
        lambda: kv.push_rows(2, [0], row),
        lambda: kv.pull_rows(1, [0], out=filled(1, (1, 3))),
        lambda: kv.pull_rows(2, [0], out=row),
        lambda: kv.row_sparse_pull(2, out=row, row_ids=[0]),
    )
    for call in calls:
        with pytest.raises(kvstore.UnsupportedError, match=r"rows: key [12].*tensor\.cpu\(\)"):
            call()
    for rule in ("lamb", "lars", "groupadagrad"):
        kv.set_optimizer(rule)
        with pytest.raises(kvstore.UnsupportedError, match=f"push: key 1: .*{rule}.*local"):
            kv.push(1, value)
    kv.set_compression("2bit")
    with pytest.raises(kvstore.UnsupportedError, match=r"push: key 2: compression .*GPU"):
        kv.push(2, value)


def test_cuda_no_refuses_arrays_and_touches_no_driver():
    before = driver.calls("cuDeviceGetCount")
    for option in ("no", False):
        kv = kvstore.create("device", cuda=option)
        with pytest.raises(kvstore.UnsupportedError, match=r"init: key 1: .*cuda is no"):
            kv.init(1, GpuArray(filled(1)))
        kv.init(1, filled(1))
    with pytest.raises(kvstore.OutOfMemoryError, match=r"init: key 3: .*device_bytes"):
        kvstore.create("device", device_bytes=4096).init(3, GpuArray(filled(1, (2000,))))
    assert driver.calls("cuDeviceGetCount") <= before + 1


def test_cuda_no_in_the_environment_refuses_streams_too(run, monkeypatch):
    monkeypatch.setenv("KV_CUDA", "no")
    program = """
import numpy as np, kvstore
from producer import CUDA, VersionedProducer
kv = kvstore.create("device")
for call in (lambda: kv.init(1, VersionedProducer(np.ones(3, np.float32), device=CUDA)),
             lambda: kvstore.set_stream(0, None), lambda: kvstore.stream(0)):
    try:
        call()
    except kvstore.UnsupportedError as error:
        print(error)
"""
    result = run("-c", program)
    first, *others = result.stdout.splitlines()
    assert re.search(r"^init: key 1: .*cuda is no", first), result.stderr
    assert len(others) == 2
    assert all("cuda is no" in text for text in others)


@pytest.mark.gpu(MEMORY=4 << 20)
def test_a_full_gpu_is_named_and_nothing_changes():
    kv = kvstore.create("device")
    small, large = GpuArray(filled(1)), GpuArray(filled(1, (600_000,)))
    kv.init(1, small)
    with pytest.raises(kvstore.OutOfMemoryError, match=r"init: key 3: .*GPU 0 has .* are needed"):
        kv.init([2, 3], [small, large])
    with pytest.raises(kvstore.KeyNotFoundError, match="key 2"):
        kv.key_device(2)
    assert issubclass(kvstore.OutOfMemoryError, MemoryError)


@pytest.mark.gpu(DEVICES=2)
def test_a_lost_gpu_fails_by_name_and_other_keys_live():
    # Without a stream of theirs the push itself would wait for the GPU.
    cupy, kv = stand_in.cupy(), kvstore.create("device")
    value, other = cupy.ndarray(filled(1)), cupy.ndarray(filled(2), device=1)
    kv.init([1, 2, 3], [value, filled(3), other])
    driver.fail("cuLaunchKernel:1=late700")
    kv.push(1, value)
    name = "CUDA_ERROR_ILLEGAL_ADDRESS"
    for call in (
        lambda: kv.pull(1, out=filled(0)),
        lambda: kv.push(1, value),
        lambda: kv.init(4, value),
    ):
        with pytest.raises(kvstore.DeviceError, match=f"key [14]: .*GPU 0.*{name}"):
            call()
    kv.push(2, filled(6))
    assert (pulled(kv, 2, filled(0)) == 6).all()
    kv.push(3, [other, other])
    assert (pulled(kv, 3, filled(0)) == 4).all()
    kv.remove(1)
    kv.init(1, filled(8))
    assert (pulled(kv, 1, filled(0)) == 8).all()


def test_a_side_stream_of_a_lost_gpu_is_refused_with_the_key():
    cupy, kv = stand_in.cupy(), kvstore.create("device")
    value = cupy.ndarray(filled(1))
    kv.init(1, value)
    stream = driver.stream()
    driver.fail("cuLaunchKernel:1=late700")
    kv.push(1, value)
    with pytest.raises(kvstore.DeviceError):
        kv.pull(1, out=filled(0))
    cupy.current.streams[0] = stream
    with pytest.raises(kvstore.DeviceError, match=r"^push: key 1: .*GPU 0.*ILLEGAL_ADDRESS"):
        kv.push(1, value)


@pytest.mark.gpu(DEVICES=2)
def test_a_stream_of_another_gpu_is_refused_with_the_key():
    cupy, kv = stand_in.cupy(), kvstore.create("device")
    value = cupy.ndarray(filled(1))
    cupy.current.streams[0] = driver.stream(device=1)
    with pytest.raises(kvstore.InvalidArgumentError, match=r"init: key 1: .*no stream of GPU 0"):
        kv.init(1, value)
    assert (value.alive, kv.keys()) == (0, [])


def test_a_captured_stream_is_refused_and_nothing_changes():
    cupy, kv = stand_in.cupy(), kvstore.create("device")
    stream = cupy.current.streams[0] = driver.stream()
    value, out = cupy.ndarray(filled(1)), cupy.ndarray(filled(0))
    kv.init(1, value)
    driver.synchronize(stream)
    with driver.capture(stream):
        for call in (lambda: kv.push(1, value), lambda: kv.pull(1, out=out)):
            with pytest.raises(kvstore.UnsupportedError, match=r"key 1: .*GPU 0.*captured"):
                call()
    kv.pull(1, out=out)
    assert (out.get() == 1).all()


def test_a_wait_ends_at_its_deadline_and_names_the_key_and_the_gpu():
    cupy, kv = stand_in.cupy(), kvstore.create("device", timeout_ms=100)
    kv.init(7, cupy.ndarray(filled(1)))
    assert (pulled(kv, 7, filled(0)) == 1).all()
    stream = cupy.current.streams[0] = driver.stream()
    driver.fail("cuMemcpyHtoDAsync_v2:1=hang")
    value = cupy.ndarray(filled(1))
    with pytest.raises(kvstore.TimeoutError, match=r"pushpull: key 7: GPU 0 .*your stream"):
        kv.pushpull(7, value, out=filled(0))
    assert kvstore.stream(0) == 0
    assert stream
    driver.seed(1)


def test_ctrl_c_ends_a_call_that_waits_for_a_gpu(run):
    program = """
import os, signal, threading, time, numpy as np, kvstore
from stand_in import GpuArray, driver
for made in ({}, {"stream": driver.stream()}):
    kv = kvstore.create("device")
    value = GpuArray(np.ones(3, np.float32), **made)
    kv.init(1, value)
    driver.fail("cuLaunchKernel:1=hang")
    sent = []
    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    timer = threading.Timer(0.3, send)
    timer.start()
    try:
        kv.pushpull(1, [value, value], out=value)
    except KeyboardInterrupt:
        print("late" if time.monotonic() - sent[0] > 2 else "interrupted", value.alive, flush=True)
    driver.seed(1)
os._exit(0)
"""
    result = run("-c", program)
    assert result.stdout == "interrupted 3\n" * 2, result.stderr


def test_immutable_packages_are_values_only():
    class Array(GpuArray):
        pass

    Array.__module__ = "jaxlib"
    kv, value = kvstore.create("device"), Array(filled(3))
    kv.init(1, value)
    with pytest.raises(kvstore.InvalidArgumentError, match="pull: key 1: an out is a read-only"):
        kv.pull(1, out=value)
    with pytest.raises(kvstore.InvalidArgumentError, match="read-only"):
        kv.pull(1, out=GpuArray(filled(0), flags=1))
    assert (pulled(kv, 1, filled(0)) == 3).all()
    assert value.alive == 0


# fork


def in_child(work):
    """Runs work in a forked child; gives what it returned."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = work()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_of_a_process_that_used_cuda_is_told_to_spawn():
    kv, value = kvstore.create("device"), GpuArray(filled(1))
    kv.init(1, value)

    def work():
        with pytest.raises(kvstore.ForkedError):
            kv.push(1, value)
        own = kvstore.create("device")
        own.init(1, filled(2))
        own.push(1, [filled(2)] * 2)
        assert (pulled(own, 1, filled(0)) == 4).all()
        own.init(2, value)
        return "it worked"

    text = in_child(work)
    assert text.startswith("DeviceError: init: key 2: ")
    assert "CUDA was in use before fork()" in text
    assert "spawn" in text
    assert (pulled(kv, 1, filled(0)) == 1).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_process_may_fork_before_its_first_array_on_a_gpu(run):
    """As data loaders do: the child and the parent both use a GPU afterwards."""
    program = """
import os, numpy as np, kvstore
kv = kvstore.create("device")
kv.init(1, np.ones(3, np.float32))

def use_a_gpu():
    from stand_in import GpuArray
    own = kvstore.create("device")
    own.init(1, GpuArray(np.full(3, 2, np.float32)))
    out = np.zeros(3, np.float32)
    own.pull(1, out=out)
    print(own.key_device(1), out.tolist(), flush=True)

child = os.fork()
if child == 0:
    use_a_gpu()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
use_a_gpu()
"""
    result = run("-c", program)
    assert result.stdout == "cuda:0 [2.0, 2.0, 2.0]\n" * 2, result.stderr


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"KV_CUDA": "/no/such/driver.so"}, "/no/such/driver.so.*install"),
        ({"KV_CUDA_STAND_IN_VERSION": "11000"}, "CUDA 11.0.*11.2"),
        ({"KV_CUDA_STAND_IN_DEVICES": "0"}, "CUDA_ERROR_NO_DEVICE.*nvidia-smi"),
        ({"KV_CUDA_STAND_IN_POOLS": "no"}, "GPU 0 has no memory pools"),
    ],
)
def test_a_driver_that_cannot_be_used_is_named(run, monkeypatch, variables, text):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    program = """
import numpy as np, kvstore
from producer import CUDA, VersionedProducer
kv = kvstore.create("device")
for _ in range(2):
    try:
        kv.init(1, VersionedProducer(np.ones(3, np.float32), device=CUDA))
    except kvstore.DeviceError as error:
        print(error)
try:
    kvstore.set_stream(0, None)
except kvstore.DeviceError as error:
    print("set_stream", error)
kv.init(1, np.ones(3, np.float32))
kv.push(1, np.ones(3, np.float32))
"""
    result = run("-c", program)
    assert (result.returncode, result.stderr) == (0, "")
    first, second, named = result.stdout.splitlines()
    assert first == second
    assert re.search(f"^init: key 1: .*{text}", first)
    assert re.search(text, named)
