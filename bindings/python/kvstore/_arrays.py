"""Rare cases of the native half: values that are no arrays, refusals, and PyTorch's counters.

`_native` describes arrays, and calls the functions of this module for what it does not know. It
also shows memory of the library as numpy arrays. numpy is imported at the first use: a program with
arrays of another package alone does not wait for it.
"""

from __future__ import annotations

import sys
from ctypes import addressof, c_int64
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._dtypes import dtype_of, is_extension, number_of, of_a_byte
from ._errors import InvalidArgumentError, KVStoreError, error_for

if TYPE_CHECKING:
    import numpy as np

    from ._library import Tensor

__all__ = [
    "as_array",
    "bytes_of",
    "counter_of_changes",
    "cuda_interface_of",
    "current_stream",
    "is_list_of_arrays",
    "labelled",
    "located",
    "number_of",
    "placed",
    "refuse_out",
    "refuse_sparse",
    "row_ids_of",
    "view",
    "wait_for_mxnet",
]

# A device type of DLPack.
_CUDA = 2
# PyTorch's names of devices whose memory the library takes.
_TORCH_DEVICES = ("cpu", "cuda")
# What numpy asks an array of another package for.
_EXPORTS = (
    "__array__",
    "__array_interface__",
    "__array_struct__",
    "__dlpack__",
    "to_dlpack_for_read",
)


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """The array that numpy makes of a value."""
    import numpy as np

    refuse_sparse(value)
    # numpy would walk a sequence that it does not know, element by element.
    if not _is_readable(value):
        raise TypeError(
            f"arrays of type {type(value).__name__} cannot be stored: a value is a numpy array, an "
            f"object with __dlpack__, or numbers"
        )
    return np.asarray(value)


def refuse_out(out: Any, is_value: bool) -> None:
    """Refuses what is no array; `is_value` says that a pushpull() without outs would fill it."""
    if is_value and _is_written_out(out):
        raise InvalidArgumentError("numbers cannot be written to: pass out=")
    refuse_sparse(out)
    raise TypeError(
        f"an out must be a numpy array or an object with __dlpack__, not {type(out).__name__}"
    )


def refuse_sparse(array: Any) -> None:
    """Sparse arrays of PyTorch, MXNet, scipy and others have no memory of their shape."""
    words = (
        str(getattr(array, "layout", "")),
        str(getattr(array, "stype", "")),
        f"{type(array).__module__}.{type(array).__name__}".lower(),
    )
    if any("sparse" in word or word == "csr" for word in words):
        raise TypeError(
            f"a sparse {type(array).__name__} is no plain array: push its rows with "
            f"push_rows(key, row_ids, rows), or pass it as a dense one"
        )


def bytes_of(tensor: Any, error: BaseException) -> tuple[Any, tuple[int, int]]:
    """A tensor of PyTorch as one of bytes, with DLPack's code and bits of its dtype.

    Older releases export neither bool nor the types of float8. A tensor that cannot be exported for
    another reason is a TypeError with that of PyTorch's `error`, without the trace behind it.
    """
    number = of_a_byte(str(tensor.dtype).rpartition(".")[2])
    if number and tensor.device.type in _TORCH_DEVICES:
        return tensor.detach().view(sys.modules["torch"].uint8), number
    reason = str(error).partition("\n")[0]
    raise TypeError(
        f"a tensor of {tensor.dtype} on {tensor.device} cannot be taken: {reason}"
    ) from error


def wait_for_mxnet(array: Any) -> bool:
    """Waits for all operations of MXNet, if the array is one of its own."""
    if not type(array).__module__.startswith("mxnet."):
        return False
    sys.modules["mxnet"].nd.waitall()
    return True


def located(call: str, key: Any, error: BaseException) -> BaseException:
    """The same refusal of an array with its key in the text; other errors are left as they are."""
    return placed(f"{call}: key {key!r}", error)


def placed(label: str, error: BaseException) -> BaseException:
    """The same refusal with the call and the place of the array in front of its text."""
    if not isinstance(error, (InvalidArgumentError, TypeError)):
        return error
    kind = InvalidArgumentError if isinstance(error, ValueError) else TypeError
    refusal = kind(f"{label}: {error}")
    refusal.__cause__ = error
    return refusal


def labelled(label: str, error: KVStoreError) -> KVStoreError:
    """The same failure with the call and the key in front of its text."""
    return error_for(error.status, f"{label}: {error}")


def current_stream(package: str, device: int) -> int:
    """The stream on which a package queues this thread's work on a CUDA device."""
    if package == "torch":
        torch: Any = sys.modules["torch"]
        return int(torch.cuda.current_stream(device).cuda_stream)
    cupy: Any = sys.modules["cupy"]
    try:
        return int(cupy.cuda.get_current_stream(device).ptr)
    except TypeError:  # Older versions tell that of the current device alone.
        with cupy.cuda.Device(device):
            return int(cupy.cuda.get_current_stream().ptr)


def cuda_interface_of(array: Any) -> tuple[int, object, bool, Optional[int]]:
    """The address of a tensor that describes an array with `__cuda_array_interface__`.

    Also what keeps that tensor, whether it is read-only, and the array's stream if it names one.
    """
    import numpy as np

    from ._library import Tensor

    interface = array.__cuda_array_interface__
    stream = interface.get("stream")
    if interface.get("mask") is not None:
        raise TypeError(f"a {type(array).__name__} with a mask is no plain array: pass a copy")
    if stream is not None and stream <= 0:
        raise InvalidArgumentError(f"__cuda_array_interface__ names the stream {stream}")
    dtype = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    address, is_read_only = interface["data"]
    extents = (c_int64 * len(shape))(*shape)
    steps = _steps_of(interface.get("strides"), dtype.itemsize)
    tensor = Tensor(
        data=address,
        device_type=_CUDA,
        device_id=_number_of_device(array),
        ndim=len(shape),
        dtype=number_of(dtype),
        shape=addressof(extents),
        strides=None if steps is None else addressof(steps),
    )
    return addressof(tensor), (tensor, extents, steps), bool(is_read_only), stream


def _steps_of(strides: Optional[tuple[int, ...]], itemsize: int) -> Any:
    """Strides of bytes as an array of C with strides of elements."""
    if strides is None:
        return None
    if any(stride % itemsize for stride in strides):
        raise InvalidArgumentError(
            f"strides of {tuple(strides)} bytes are not multiples of the {itemsize}-byte element: "
            f"pass a copy"
        )
    return (c_int64 * len(strides))(*(stride // itemsize for stride in strides))


def _number_of_device(array: Any) -> int:
    """The GPU of an array by its attribute `device`, as the interface does not tell it; else 0."""
    device = getattr(array, "device", None)
    for number in (device, getattr(device, "id", None), getattr(device, "index", None)):
        if isinstance(number, int):
            return number
    return 0


def is_list_of_arrays(call: str, key: Any, value: Any) -> bool:
    """Whether a list is one of arrays, and not an array written out as numbers."""
    if _is_written_out(value):
        return False
    if not _is_readable(value):
        kind = type(_first_leaf(value)).__name__
        raise TypeError(f"{call}: key {key!r}: a list of {kind} is no list of arrays")
    return True


def row_ids_of(row_ids: Any) -> Any:
    """Row ids with empty lists as arrays of integers: numpy would make them arrays of floats."""
    if not isinstance(row_ids, (list, tuple)):
        return row_ids
    if row_ids:
        return [row_ids_of(each) for each in row_ids]
    import numpy as np

    return np.empty(0, np.int64)


def _is_written_out(value: Any) -> bool:
    """Whether a value is one array written out: a number of Python, or lists of such numbers.

    Numbers of numpy, which numpy's sums are, count as arrays without dimensions.
    """
    if isinstance(value, (list, tuple)):
        return len(value) > 0 and all(_is_written_out(each) for each in value)
    return isinstance(value, (int, float, complex)) and not hasattr(value, "__array__")


def _first_leaf(value: Any) -> Any:
    """The first element of lists of lists that is no list."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value


def _is_readable(value: Any) -> bool:
    """Whether numpy reads a value as a whole, or its first element is a number of Python."""
    value = _first_leaf(value)
    if isinstance(value, (int, float, complex, str, bytes, range, list, tuple)):
        return True
    if any(hasattr(value, name) for name in _EXPORTS):
        return True
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def counter_of_changes() -> Callable[[list[Any]], object]:
    """A function that tells PyTorch that tensors have changed.

    backward() then refuses what it saved of them.
    """
    torch: Any = sys.modules["torch"]
    increment: Callable[[list[Any]], object]
    try:
        # What torch.autograd.graph.increment_version() calls; that takes twice as long.
        increment = torch._C._increment_version
        increment([])
    # Older versions take one tensor, or have none.
    except (AttributeError, TypeError, RuntimeError):
        return _count_changes
    return increment


def _count_changes(tensors: list[Any]) -> None:
    for tensor in tensors:
        # Tensors of inference have no counter.
        if not tensor.is_inference():
            # Detached it is no part of a gradient, and has the same version counter. A change in
            # place counts, also of a view without elements. Older releases cannot fill float8.
            changed = tensor.detach()
            if tensor.element_size() == 1:
                changed = changed.view(sys.modules["torch"].uint8)
            changed.unsqueeze(0)[:0].zero_()


class _Memory:
    """Memory of the library, in the words that numpy understands."""

    __slots__ = ("__array_interface__",)

    def __init__(self, **interface: Any) -> None:
        self.__array_interface__ = {"version": 3, **interface}


def view(tensor: Tensor, writable: bool) -> np.ndarray[Any, Any]:
    """A numpy array over a row-major tensor of the library, valid as long as the tensor is."""
    import numpy as np

    shape = tuple((c_int64 * tensor.ndim).from_address(tensor.shape)) if tensor.ndim else ()
    dtype = dtype_of(tensor.dtype)
    if 0 in shape:
        array = np.empty(shape, dtype)
        array.flags.writeable = writable
        return array
    # numpy's own names of the dtypes of ml_dtypes are those of untyped bytes.
    type_name = f"<u{dtype.itemsize}" if is_extension(tensor.dtype) else dtype.str
    data = (tensor.data + tensor.byte_offset, not writable)
    memory = _Memory(data=data, shape=shape, typestr=type_name)
    return np.asarray(memory).view(dtype)
