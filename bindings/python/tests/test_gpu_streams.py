"""Streams of arrays in GPU memory, and tickets: who waits for whom, under seeds of the stand-in.

Each test has a process of its own, see `pytest_pyfunc_call` of conftest.py.
"""

import gc
import threading

import numpy as np
import pytest
import stand_in
from producer import type_with_table
from stand_in import F32, LEGACY, NO_WAIT, SEEDS, GpuArray, InterfaceArray, driver, filled, pulled
from support import WAIT_SECONDS, Gate

import kvstore

pytestmark = pytest.mark.gpu


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
