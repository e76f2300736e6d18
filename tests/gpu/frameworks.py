"""Arrays of a framework in GPU memory through the C interface: no copies, streams, reuse of memory,
graphs, forks, data loaders.

Usage: frameworks.py driver|torch|cupy|jax LIBRARY

`driver` is no framework: memory and streams of the CUDA driver by ctypes, also of the stand-in
(KV_CUDA). Prints `ok NAME`, `FAILED NAME: why` or `SKIPPED NAME: why` for each check.
"""

import array
import contextlib
import ctypes
import json
import os
import sys
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

OK, UNSUPPORTED, DEVICE = 0, 2, 64
CPU, CUDA = 1, 2
COUNT = 3000


class Tensor(ctypes.Structure):
    """`kv_tensor` of float32."""

    _fields_ = [
        ("data", c_uint64),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("dtype", c_uint32),
        ("shape", POINTER(c_int64)),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    ]


class Device(ctypes.Structure):
    """`kv_device`."""

    _fields_ = [("type", c_int32), ("id", c_int32)]


class KVError(Exception):
    """A status and its text."""

    def __init__(self, status, text):
        super().__init__(f"status {status}: {text}")
        self.status = status


class Library:
    """The C interface."""

    def __init__(self, path):
        self.calls = ctypes.CDLL(path)
        self.calls.kv_last_error.restype = c_char_p

    def call(self, name, *arguments):
        status = getattr(self.calls, name)(*arguments)
        if status != OK:
            raise KVError(status, self.calls.kv_last_error().decode())

    def set_stream(self, handle):
        self.call("kv_set_stream", Device(CUDA, 0), c_void_p(handle))


class Store:
    """A store with keys of COUNT elements."""

    def __init__(self, library, kind):
        self.library, self.handle = library, c_void_p()
        library.call("kv_create", kind.encode(), None, byref(self.handle))
        self.shape = (c_int64 * 1)(COUNT)

    def tensor(self, pointer, kind=CUDA):
        return Tensor(pointer, kind, 0, 1, 2 | 32 << 8 | 1 << 16, self.shape, None, 0)

    def init(self, key, tensor):
        self.library.call("kv_init", self.handle, byref(c_uint64(key)), byref(tensor), c_size_t(1))

    def push(self, key, tensor):
        self._move("kv_push", key, tensor)

    def pull(self, key, tensor):
        self._move("kv_pull", key, tensor)

    def _move(self, name, key, tensor):
        keys = (c_uint64 * 1)(key)
        self.library.call(name, self.handle, keys, byref(tensor), c_size_t(1), c_int32(0), None)

    def set_optimizer(self, name, params=""):
        self.library.call("kv_set_optimizer", self.handle, name.encode(), params.encode())

    def count(self, name):
        text = ctypes.create_string_buffer(1 << 16)
        self.library.call("kv_stats", self.handle, text, c_size_t(len(text)), None)
        return sum(device[name] for device in json.loads(text.value)["devices"])

    def host_values(self, key):
        """The value of a key, pulled into host memory."""
        host = array.array("f", [0.0] * COUNT)
        self.pull(key, self.tensor(host.buffer_info()[0], CPU))
        return host.tolist()

    def free(self):
        self.library.calls.kv_free(self.handle)


class Driver:
    """The CUDA driver itself, in place of a framework. Memory is freed and reused in stream order."""

    def __init__(self):
        name = os.environ.get("KV_CUDA", "auto")
        try:
            self.calls = ctypes.CDLL("libcuda.so.1" if name == "auto" else name)
        except OSError as error:
            raise ImportError(str(error)) from error
        self.call("cuInit", c_uint32(0))
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), c_int32(0))
        self.call("cuCtxPushCurrent_v2", context)
        self.named = 1

    def call(self, name, *arguments):
        status = getattr(self.calls, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} gives {status}")

    def full(self, number):
        class Memory:
            def __init__(self, driver):
                self.driver, self.address, self.stream = driver, c_uint64(), driver.named
                size = c_size_t(4 * COUNT)
                driver.call("cuMemAllocAsync", byref(self.address), size, c_void_p(self.stream))

            def __del__(self):
                self.driver.calls.cuMemFreeAsync(self.address, c_void_p(self.stream))

        memory = Memory(self)
        self.fill(memory, number)
        return memory

    def fill(self, memory, number):
        host = array.array("f", [number] * COUNT)
        address, size = c_void_p(host.buffer_info()[0]), c_size_t(4 * COUNT)
        self.call("cuMemcpyHtoDAsync_v2", memory.address, address, size, c_void_p(self.named))

    def values(self, memory):
        host = array.array("f", [0.0] * COUNT)
        address, size = c_void_p(host.buffer_info()[0]), c_size_t(4 * COUNT)
        self.call("cuMemcpyDtoHAsync_v2", address, memory.address, size, c_void_p(self.named))
        self.call("cuStreamSynchronize", c_void_p(self.named))
        return host.tolist()

    def pointer(self, memory):
        return memory.address.value

    def stream(self):
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), c_uint32(1))
        return stream.value

    def handle(self, stream):
        return stream

    @contextlib.contextmanager
    def using(self, stream):
        before, self.named = self.named, stream
        yield
        self.named = before

    def capture(self, stream, work):
        graph = c_void_p()
        self.call("cuStreamBeginCapture_v2", c_void_p(stream), c_uint32(2))
        try:
            work()
        finally:
            self.call("cuStreamEndCapture", c_void_p(stream), byref(graph))


class Torch:
    """PyTorch, with its caching allocator."""

    def __init__(self):
        import torch

        if not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")
        self.torch = torch

    def full(self, number):
        return self.torch.full((COUNT,), number, dtype=self.torch.float32, device="cuda")

    def fill(self, tensor, number):
        tensor.fill_(number)

    def values(self, tensor):
        return tensor.tolist()

    def pointer(self, tensor):
        return tensor.data_ptr()

    def stream(self):
        return self.torch.cuda.Stream()

    def handle(self, stream):
        return stream.cuda_stream

    def using(self, stream):
        return self.torch.cuda.stream(stream)

    def capture(self, stream, work):
        with self.torch.cuda.graph(self.torch.cuda.CUDAGraph(), stream=stream):
            work()


class CuPy:
    """CuPy, with its memory pool."""

    def __init__(self):
        import cupy

        if cupy.cuda.runtime.getDeviceCount() == 0:
            raise ImportError("cupy sees no GPU")
        self.cupy = cupy

    def full(self, number):
        return self.cupy.full((COUNT,), number, dtype=self.cupy.float32)

    def fill(self, tensor, number):
        tensor.fill(number)

    def values(self, tensor):
        return tensor.tolist()

    def pointer(self, tensor):
        return tensor.data.ptr

    def stream(self):
        return self.cupy.cuda.Stream(non_blocking=True)

    def handle(self, stream):
        return stream.ptr

    def using(self, stream):
        return stream

    def capture(self, stream, work):
        with stream:
            stream.begin_capture()
            try:
                work()
            finally:
                stream.end_capture()


class Jax:
    """JAX, whose arrays are values only, and whose streams are its own."""

    def __init__(self):
        import jax

        if jax.default_backend() != "gpu":
            raise ImportError("jax sees no GPU")
        self.jax = jax

    def full(self, number):
        full = self.jax.numpy.full((COUNT,), number, dtype=self.jax.numpy.float32)
        return full.block_until_ready()

    def pointer(self, tensor):
        return tensor.unsafe_buffer_pointer()


def expect(got, wanted, what):
    if got != wanted:
        at = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), None)
        raise AssertionError(f"{what}: element {at} is {got[at]} instead of {wanted[at]}")


def check_values_are_used_where_they_are(library, framework):
    """No copy through the host and no wait; the bits arrive."""
    store = Store(library, "device")
    first, second = framework.full(1.5), framework.full(2.25)
    store.init(1, store.tensor(framework.pointer(first)))
    waits, copies = store.count("waits"), store.count("copies_to_host")
    store.push(1, store.tensor(framework.pointer(second)))
    if hasattr(framework, "values"):
        out = framework.full(0.0)
        pointer = framework.pointer(out)
        store.pull(1, store.tensor(pointer))
        expect(framework.values(out), [2.25] * COUNT, "out")
        assert framework.pointer(out) == pointer, "the out has moved"
    assert store.count("waits") == waits, "the host has waited"
    assert store.count("copies_to_host") == copies, "the values went through the host"
    expect(store.host_values(1), [2.25] * COUNT, "host")
    store.free()


def check_work_is_in_order_on_a_side_stream(library, framework):
    store = Store(library, "device")
    stream = framework.stream()
    library.set_stream(framework.handle(stream))
    with framework.using(stream):
        value, out = framework.full(0.0), framework.full(0.0)
        store.init(1, store.tensor(framework.pointer(value)))
        for number in range(1, 20):
            framework.fill(value, float(number))
            store.push(1, store.tensor(framework.pointer(value)))
            framework.fill(value, -1.0)
            store.pull(1, store.tensor(framework.pointer(out)))
            expect(framework.values(out), [float(number)] * COUNT, f"round {number}")
    library.set_stream(0)
    store.free()


def check_memory_that_is_freed_behind_a_call_may_be_used_again(library, framework):
    """Values are freed at once, and their memory is given out again and overwritten."""
    store = Store(library, "device")
    stream = framework.stream()
    library.set_stream(framework.handle(stream))
    with framework.using(stream):
        first = framework.full(0.0)
        store.init(1, store.tensor(framework.pointer(first)))
        store.set_optimizer("test")
        for number in range(50):
            value = framework.full(float(number))
            store.push(1, store.tensor(framework.pointer(value)))
            del value
            garbage = framework.full(1e9)
            del garbage
        out = framework.full(0.0)
        store.pull(1, store.tensor(framework.pointer(out)))
        expect(framework.values(out), [float(sum(range(50)))] * COUNT, "sum")
    library.set_stream(0)
    store.free()


def check_two_streams_are_ordered_by_the_store(library, framework):
    store = Store(library, "device")
    streams = [framework.stream() for _ in range(2)]
    first = framework.full(0.0)
    store.init(1, store.tensor(framework.pointer(first)))
    store.set_optimizer("test")
    kept = []
    for number in range(40):
        stream = streams[number % 2]
        library.set_stream(framework.handle(stream))
        with framework.using(stream):
            kept.append(framework.full(1.0))
            store.push(1, store.tensor(framework.pointer(kept[-1])))
    library.set_stream(framework.handle(streams[0]))
    with framework.using(streams[0]):
        out = framework.full(0.0)
        store.pull(1, store.tensor(framework.pointer(out)))
        expect(framework.values(out), [40.0] * COUNT, "sum")
    library.set_stream(0)
    store.free()


def check_a_captured_stream_is_refused(library, framework):
    store = Store(library, "device")
    value = framework.full(3.0)
    store.init(1, store.tensor(framework.pointer(value)))
    expect(store.host_values(1), [3.0] * COUNT, "before")
    stream = framework.stream()
    library.set_stream(framework.handle(stream))
    statuses = []

    def work():
        try:
            store.push(1, store.tensor(framework.pointer(value)))
            statuses.append(OK)
        except KVError as error:
            statuses.append(error.status)

    framework.capture(stream, work)
    library.set_stream(0)
    assert statuses == [UNSUPPORTED], f"statuses {statuses}"
    store.push(1, store.tensor(framework.pointer(value)))
    expect(store.host_values(1), [3.0] * COUNT, "after")
    store.free()


def check_a_forked_child_has_host_memory_alone(library, framework):
    store = Store(library, "device")
    value = framework.full(1.0)
    store.init(1, store.tensor(framework.pointer(value)))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own = Store(library, "device")
            host = array.array("f", [4.0] * COUNT)
            own.init(2, own.tensor(host.buffer_info()[0], CPU))
            expect(own.host_values(2), [4.0] * COUNT, "child")
            try:
                own.init(3, own.tensor(framework.pointer(value)))
            except KVError as error:
                status = 0 if error.status == DEVICE and "spawn" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0, "the child has failed"
    expect(store.host_values(1), [1.0] * COUNT, "parent")
    store.free()


def check_data_loaders_work_beside_a_store(library, framework):
    """Workers are forked before and after the first tensor in GPU memory."""
    torch = framework.torch
    data = torch.utils.data.TensorDataset(torch.arange(64.0))
    for _ in range(2):
        store = Store(library, "device")
        total = torch.zeros(1)
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2):
            value = framework.full(float(batch.sum()))
            if total.item() == 0:
                store.init(1, store.tensor(framework.pointer(value)))
                store.set_optimizer("test")
            else:
                store.push(1, store.tensor(framework.pointer(value)))
            total += batch.sum()
            torch.cuda.synchronize()
        assert total.item() == sum(range(64)), total
        expect(store.host_values(1), [float(sum(range(64)))] * COUNT, "sum")
        store.free()


def check_the_package_takes_arrays(_, framework):
    """The Python package beside this file, if it takes arrays in GPU memory."""
    os.environ["KVSTORE_LIBRARY"] = sys.argv[2]
    import kvstore

    store = kvstore.create("device")
    value, out = framework.full(6.0), framework.full(0.0)
    try:
        store.init(1, value)
    except (kvstore.KVStoreError, BufferError, TypeError, ValueError) as error:
        raise ImportError(f"the package does not take this array: {error}") from error
    store.push(1, value)
    store.pull(1, out=out)
    expect(framework.values(out), [6.0] * COUNT, "out")


EVERY = [
    check_values_are_used_where_they_are,
    check_work_is_in_order_on_a_side_stream,
    check_memory_that_is_freed_behind_a_call_may_be_used_again,
    check_two_streams_are_ordered_by_the_store,
    check_a_captured_stream_is_refused,
    check_a_forked_child_has_host_memory_alone,
]
# Frameworks begin in the process that forked first: the loaders of PyTorch are their first check.
CHECKS = {
    "driver": (Driver, EVERY),
    "torch": (
        Torch,
        [check_data_loaders_work_beside_a_store, *EVERY, check_the_package_takes_arrays],
    ),
    "cupy": (CuPy, [*EVERY, check_the_package_takes_arrays]),
    "jax": (Jax, EVERY[:1]),
}


def main():
    name, path = sys.argv[1:]
    make, checks = CHECKS[name]
    try:
        framework = make()
    except Exception as error:
        print(f"SKIPPED {name}: {type(error).__name__}: {error}")
        return 0 if isinstance(error, ImportError) else 1
    library = Library(path)
    failed = 0
    for check in checks:
        what = f"{name}: {check.__name__.removeprefix('check_')}"
        try:
            check(library, framework)
            print(f"ok {what}", flush=True)
        except ImportError as error:
            print(f"SKIPPED {what}: {error}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED {what}: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
