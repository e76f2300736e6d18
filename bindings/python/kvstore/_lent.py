"""Arrays in GPU memory that the library lends to an updater."""

from __future__ import annotations

from ctypes import c_int64
from typing import TYPE_CHECKING, Any, Optional

from . import _native
from ._dtypes import dtype_of, is_extension, name_of
from ._errors import InvalidArgumentError
from ._streams import stream

if TYPE_CHECKING:
    import numpy as np

    from ._library import Tensor

CUDA = 2
# Handles of the legacy default stream: the library's, and that of DLPack and Numba's interface.
_LEGACY = 0
_LEGACY_OF_CONSUMERS = 1
_NO_WAIT = -1


class DeviceArray:
    """An array in GPU memory that an updater gets with the option updater_memory=device.

    `torch.from_dlpack()` and `cupy.asarray()` take it without a copy. It is row-major, and valid
    during the call of the updater only; afterwards it refuses its memory, which what was made of it
    must not use any more either. Queue the updater's work on `stream`, which the library orders
    before everything that uses the key later. In a call without a ticket that is the current stream
    of the package whose arrays are pushed:

    >>> def update(key, input, stored):
    ...     torch.from_dlpack(stored).add_(torch.from_dlpack(input), alpha=2)
    """

    __slots__ = ("_device", "_is_read_only", "_is_valid", "_number", "_place", "_shape", "_stream")

    def __init__(self, tensor: Tensor, writable: bool) -> None:
        extents = (c_int64 * tensor.ndim).from_address(tensor.shape) if tensor.ndim else ()
        self._shape = tuple(extents)
        self._place: int = tensor.data + tensor.byte_offset
        self._device: int = tensor.device_id
        self._number: int = tensor.dtype
        self._stream = stream(tensor.device_id)
        self._is_read_only, self._is_valid = not writable, True

    def end(self) -> None:
        """Ends the loan."""
        self._is_valid = False

    def __repr__(self) -> str:
        state = "" if self._is_valid else ", not valid any more"
        return f"<kvstore.DeviceArray {self._shape} {self.dtype} on {self.device}{state}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """The key's shape."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The key's dtype; one of ml_dtypes is without that package an unsigned integer."""
        return dtype_of(self._number)

    @property
    def device(self) -> str:
        """Where it is, as `key_device()` names it: "cuda:0"."""
        return f"cuda:{self._device}"

    @property
    def stream(self) -> int:
        """The handle of the stream that the updater's work belongs on; 0 is the legacy one."""
        return self._stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Numba's interface, version 3, which names the stream."""
        if is_extension(self._number):
            name = name_of(self._number)
            raise AttributeError(f"__cuda_array_interface__ has no {name}: use __dlpack__")
        return {
            "version": 3,
            "shape": self._shape,
            "typestr": self.dtype.str,
            "data": (self._address(), self._is_read_only),
            "strides": None,
            "stream": self._stream_of_consumers(),
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """The type and the number of the device."""
        return (CUDA, self._device)

    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> object:
        """A capsule of DLPack 1 if `max_version` allows it: only this form has a read-only flag.

        `stream` is that of the consumer, in DLPack's numbers: it must be this array's, or -1 for a
        consumer that orders its work behind and before this array's stream by itself.
        """
        address = self._address()
        if dl_device not in (None, self.__dlpack_device__()) or copy:
            raise BufferError(f"an array of an updater on {self.device} is exported as it is")
        wanted = self._stream_of_consumers()
        given = _LEGACY_OF_CONSUMERS if stream is None else stream
        if given not in (wanted, _NO_WAIT):
            raise InvalidArgumentError(
                f"the consumer's current stream on {self.device} is {given:#x}, and the work of an "
                f"updater belongs on the stream {wanted:#x}: make that current first, such as by "
                f"torch.cuda.stream(torch.cuda.{self._name_in_torch()})"
            )
        is_versioned = max_version is not None and max_version[0] >= 1
        place = (address, CUDA, self._device, self._number)
        return _native.export(place, self._shape, self._is_read_only, is_versioned)

    def _name_in_torch(self) -> str:
        # ExternalStream(0) would be a new stream.
        if self._stream == _LEGACY:
            return f"default_stream({self._device})"
        return f"ExternalStream({self._stream:#x})"

    def _stream_of_consumers(self) -> int:
        return _LEGACY_OF_CONSUMERS if self._stream == _LEGACY else self._stream

    def _address(self) -> int:
        if not self._is_valid:
            raise InvalidArgumentError(
                "an array of an updater is used after the updater has returned: copy what is needed"
            )
        return self._place
