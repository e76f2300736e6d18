"""Streams of CUDA devices, as far as a program names them itself."""

from __future__ import annotations

from ctypes import byref, c_void_p
from typing import Any, Optional

from ._call import check, library
from ._library import Device

_CUDA, _LEGACY = 2, 1


def set_stream(device: int, stream: Any) -> None:
    """Names the stream on which this thread's calls use the memory of a CUDA device.

    Calls find the current stream of PyTorch and CuPy by themselves, and use it whatever is named
    here. The named one counts for arrays of packages whose stream is not known, and for calls
    whose arrays are all in host memory. A call begins behind what has been queued on it; what is
    queued there after the call comes behind the call. The stream must not be destroyed while it is
    named.

    `device` is the number of the GPU. `stream` is a handle (`CUstream` or `cudaStream_t`) as an
    integer, an object that has one (`torch.cuda.Stream`, `cupy.cuda.Stream`, or any with
    `__cuda_stream__`), or None for the legacy default stream, which is named in the beginning.

    >>> kvstore.set_stream(0, stream)
    """
    check(library.kv_set_stream(_device(device), _handle_of(stream) or None))


def stream(device: int) -> int:
    """The handle of the stream that set_stream() has named for this thread; 0 is the legacy one."""
    handle = c_void_p()
    check(library.kv_stream(_device(device), byref(handle)))
    # 1 is another name of the legacy one.
    return 0 if handle.value in (None, _LEGACY) else handle.value


def _device(number: int) -> Device:
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"a device is the number of a GPU, not {type(number).__name__}")
    # A number beyond the type is none of a GPU either.
    return Device(_CUDA, number if -(2**31) <= number < 2**31 else -1)


def _handle_of(stream: Any) -> int:
    protocol: Optional[Any] = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        stream = (protocol() if callable(protocol) else protocol)[1]
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    if stream is None:
        return 0
    if isinstance(stream, bool) or not isinstance(stream, int):
        raise TypeError(
            f"a stream is a handle, an object with __cuda_stream__, or None, not "
            f"{type(stream).__name__}"
        )
    return stream
