"""Arrays in the memory of a GPU that the stand-in driver of tests/cuda plays, and their packages.

Only a process whose KV_CUDA names the stand-in may use them: the mark `gpu` of conftest.py.
"""

import ctypes
import os
import sys
import threading
import types
from contextlib import contextmanager
from typing import Any

import numpy as np
from conftest import INSIDE
from producer import BFLOAT16_NUMBER, CUDA, VersionedProducer
from support import BFLOAT16

LEGACY, NO_WAIT = 1, -1
F32 = np.dtype(np.float32)
# How many orders of streams a test draws.
SEEDS = int(os.environ.get("KV_TEST_SEEDS", "40"))
_NON_BLOCKING = 1


LAYOUTS = {
    "row-major": lambda array: array,
    "transposed": lambda array: np.asfortranarray(array),
    "every second": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "reversed": lambda array: np.ascontiguousarray(array[::-1])[::-1],
}


def filled(number, shape=(2, 3)):
    return np.full(shape, number, np.float32)


def pulled(kv, key, like):
    out = np.zeros(like.shape, like.dtype)
    kv.pull(key, out=out)
    return out


class Driver:
    """Functions of the driver; each failure is an AssertionError with the stand-in's words."""

    def __init__(self):
        self._library = ctypes.CDLL(os.environ["KV_CUDA"])
        self("cuInit", 0)
        self._contexts = {}

    def __call__(self, name, *arguments):
        status = getattr(self._library, name)(*arguments)
        assert status == 0, f"{name}: {status}: {self.message()}"

    def _made(self, name, *arguments):
        handle = ctypes.c_uint64()
        self(name, ctypes.byref(handle), *arguments)
        return handle.value

    @contextmanager
    def on(self, device):
        """Makes the primary context of a device current."""
        if device not in self._contexts:
            self._contexts[device] = self._made("cuDevicePrimaryCtxRetain", ctypes.c_int(device))
        self("cuCtxPushCurrent_v2", ctypes.c_uint64(self._contexts[device]))
        try:
            yield
        finally:
            self("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_uint64()))

    def allocate(self, count, device=0):
        with self.on(device):
            return self._made("cuMemAlloc_v2", ctypes.c_size_t(max(count, 1)))

    def free(self, address, device=0):
        with self.on(device):
            self("cuMemFree_v2", ctypes.c_uint64(address))

    def stream(self, device=0):
        with self.on(device):
            return self._made("cuStreamCreate", ctypes.c_uint32(_NON_BLOCKING))

    def destroy(self, stream):
        with self.on(0):
            self("cuStreamDestroy_v2", ctypes.c_uint64(stream))

    def synchronize(self, stream, device=0):
        with self.on(device):
            self("cuStreamSynchronize", ctypes.c_uint64(stream))

    def write(self, address, content, stream, device=0):
        """Queues a copy of bytes to the device, which are read at the call."""
        if content:
            with self.on(device):
                to, handle = ctypes.c_uint64(address), ctypes.c_uint64(stream)
                self("cuMemcpyHtoDAsync_v2", to, content, ctypes.c_size_t(len(content)), handle)

    def read(self, address, count, stream, device=0):
        content = ctypes.create_string_buffer(max(count, 1))
        if count:
            with self.on(device):
                source, handle = ctypes.c_uint64(address), ctypes.c_uint64(stream)
                self("cuMemcpyDtoHAsync_v2", content, source, ctypes.c_size_t(count), handle)
            self.synchronize(stream, device)
        return content.raw[:count]

    def copy(self, to, source, count, stream, device=0):
        """Queues a copy of bytes within the device."""
        with self.on(device):
            arguments = (ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(count))
            self("cuMemcpyDtoDAsync_v2", *arguments, ctypes.c_uint64(stream))

    def order(self, later, earlier, device=0):
        """Has one stream wait for what is queued on another."""
        with self.on(device):
            event = self._made("cuEventCreate", ctypes.c_uint32(2))
            self("cuEventRecord", ctypes.c_uint64(event), ctypes.c_uint64(earlier))
            self("cuStreamWaitEvent", ctypes.c_uint64(later), ctypes.c_uint64(event), 0)

    @contextmanager
    def capture(self, stream):
        with self.on(0):
            self("cuStreamBeginCapture_v2", ctypes.c_uint64(stream), ctypes.c_int(0))
        yield
        with self.on(0):
            self._made_by_capture = ctypes.c_uint64()
            graph = ctypes.byref(self._made_by_capture)
            self("cuStreamEndCapture", ctypes.c_uint64(stream), graph)

    def seed(self, number):
        """Drops what is queued and draws another order of streams."""
        self._library.kv_cuda_stand_in_seed(ctypes.c_uint64(number))

    def fail(self, plan):
        self._library.kv_cuda_stand_in_fail(plan.encode())

    def calls(self, name):
        count = self._library.kv_cuda_stand_in_calls
        count.restype = ctypes.c_uint64
        return count(name.encode())

    def message(self):
        text = ctypes.create_string_buffer(400)
        self._library.kv_cuda_stand_in_message(text, ctypes.c_size_t(len(text)))
        return text.value.decode()


# None in a process that has another driver, or none.
driver: Any = Driver() if INSIDE in os.environ else None
# A capsule calls its producer when it goes, and may go together with it.
_arrays = []


class GpuArray(VersionedProducer):
    """A copy of a numpy array, strides included, in the memory of a GPU, with `__dlpack__`.

    Its package queues its work on `stream`, which consumers do not know. It notes for which
    streams it was exported.
    """

    def __init__(self, array, device=0, stream=LEGACY, flags=0):
        array = np.asanyarray(array)
        is_bfloat16 = BFLOAT16 is not None and array.dtype == BFLOAT16
        super().__init__(
            array,
            flags=flags,
            device=CUDA,
            strides=[stride // array.itemsize for stride in array.strides],
            dtype=BFLOAT16_NUMBER if is_bfloat16 else None,
        )
        _arrays.append(self)
        self._stream, self.streams = stream, []
        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)
        self._count, self._offset = high - low, array.ctypes.data - low if array.size else 0
        self.address = driver.allocate(self._count, device)
        self.tensor.device_id, self.tensor.data = device, self.address + self._offset
        content = ctypes.string_at(low, self._count) if array.size else b""
        driver.write(self.address, content, self.stream, device)

    @property
    def stream(self):
        """Where its package queues the work of this thread."""
        return self._stream

    @property
    def device_id(self):
        return self.tensor.device_id

    def fill(self, number):
        """Queues a change of all elements."""
        self.array = np.full(self.array.shape, number, self.array.dtype)
        driver.write(self.address, self.array.tobytes(), self.stream, self.device_id)

    def get(self):
        """What is in it once its stream has done what is queued."""
        content = driver.read(self.address, self._count, self.stream, self.device_id)
        if not self.array.size:
            return self.array
        strides = self.array.strides
        return np.ndarray(self.array.shape, self.array.dtype, content, self._offset, strides)

    def free(self):
        driver.free(self.address, self.device_id)

    def __dlpack__(self, *, stream=None, max_version=None):
        self.streams.append(stream)
        if stream not in (NO_WAIT, self.stream):
            driver.order(stream, self.stream, self.device_id)
        return super().__dlpack__(stream=stream, max_version=max_version)

    def __dlpack_device__(self):
        return (CUDA, self.device_id)


class InterfaceArray:
    """The same with `__cuda_array_interface__` alone."""

    def __init__(self, array, device=0, stream=LEGACY, named=True, read_only=False, **others):
        self.inner = GpuArray(array, device, stream)
        array = self.inner.array
        self.device = types.SimpleNamespace(id=device)
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (self.inner.tensor.data, read_only),
            "strides": None if array.flags.c_contiguous else array.strides,
            "stream": stream if named else None,
            "version": 3,
            **others,
        }

    def get(self):
        return self.inner.get()


class Current(threading.local):
    """The current streams of a package on this thread."""

    def __init__(self):
        self.streams = {}

    def of(self, device):
        return self.streams.get(device, 0)


def cupy():
    """A package with CuPy's names, as if it had been imported."""
    module, current = types.ModuleType("cupy"), Current()

    class ndarray(GpuArray):  # noqa: N801  The name in CuPy.
        def __init__(self, array, device=0):
            super().__init__(array, device)

        @property
        def stream(self):
            return current.of(self.device_id) or LEGACY

    ndarray.__module__ = "cupy"
    module.ndarray, module.current = ndarray, current
    module.cuda = types.SimpleNamespace(
        get_current_stream=lambda device=-1: types.SimpleNamespace(ptr=current.of(device))
    )
    sys.modules["cupy"] = module
    return module


def torch():
    """A package with PyTorch's names, as if it had been imported."""
    module, current = types.ModuleType("torch"), Current()
    module.changes = []

    class Tensor(GpuArray):
        is_cuda, requires_grad = True, False

        def __init__(self, array, device=0):
            super().__init__(array, device)

        @property
        def stream(self):
            return current.of(self.device_id) or LEGACY

        def detach(self):
            return self

    Tensor.__module__ = "torch"
    module.Tensor, module.current = Tensor, current
    module._C = types.SimpleNamespace(_increment_version=module.changes.extend)
    module.cuda = types.SimpleNamespace(
        current_stream=lambda device: types.SimpleNamespace(cuda_stream=current.of(device))
    )
    sys.modules["torch"] = module
    return module
