"""What is refused of arrays in GPU memory, and failures of the driver: type, key and GPU.

Each test has a process of its own, see `pytest_pyfunc_call` of conftest.py.
"""

import os
import re

import numpy as np
import pytest
import stand_in
from stand_in import LEGACY, GpuArray, driver, filled, pulled

import kvstore

pytestmark = pytest.mark.gpu


class Claimed(stand_in.VersionedProducer):
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


def test_arrays_on_a_gpu_are_not_bound():
    kv, array = kvstore.create("device"), GpuArray(filled(5))
    kv.init(1, array)
    for arguments in ((1, array), (1, None, array), (1, filled(1), array)):
        with pytest.raises(kvstore.UnsupportedError, match=r"bind: .* call push\(\), pull\(\) or"):
            kv.bind(*arguments)
    with kv.bind(1, filled(7), filled(0)) as bound:
        bound.pushpull()
    assert np.array_equal(pulled(kv, 1, filled(0)), filled(7))


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
