"""Arrays of other packages described to the library, and its memory shown as numpy arrays.

Nothing here copies elements, except where a value is no array at all (numbers, lists of numbers).
"""

from __future__ import annotations

import ctypes
from ctypes import c_int64
from typing import Any, Callable, Optional

import numpy as np

from ._dtypes import dtype_of, number_of
from ._errors import InvalidArgumentError
from ._library import Tensor
from ._unique import Unique

_CPU = 1
# Arrays of these packages never change, but their DLPack capsules do not say so.
_IMMUTABLE_PACKAGES = {"jax", "jaxlib", "pyarrow", "tensorflow"}
# DLManagedTensorVersioned: version (two uint32), manager_ctx, deleter, flags, dl_tensor.
_FLAGS_OFFSET = 24
_VERSIONED_TENSOR_OFFSET = 32
_FLAG_READ_ONLY = 1
_DLPACK_MAJOR = 1

# What numpy asks an array of another package for.
_EXPORTS = (
    "__array__",
    "__array_interface__",
    "__array_struct__",
    "__dlpack__",
    "to_dlpack_for_read",
)

_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype, _capsule_is.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


class Loan(Unique):
    """The pairs of one call as the library wants them, and the arrays kept alive for it."""

    __slots__ = ("_kept", "count", "keys", "tensors", "tracked")

    def __init__(self, call: str, pairs: list[tuple[Any, int, Any]], as_outs: bool) -> None:
        """`pairs` has the user's key, the library's number of it, and the array."""
        self.count = len(pairs)
        self.keys = (ctypes.c_uint64 * self.count)()
        self.tensors = (Tensor * self.count)()
        self._kept = []
        # Outs whose changes PyTorch counts.
        self.tracked: Optional[list[Any]] = None
        describe = _describe_out if as_outs else _describe_value
        for index, (key, number, array) in enumerate(pairs):
            self.keys[index] = number
            try:
                self._kept.append(describe(self.tensors, index, array))
                if as_outs and not isinstance(array, np.ndarray) and _is_tracked(array):
                    self.tracked = [*(self.tracked or ()), array]
            except (InvalidArgumentError, TypeError) as error:
                kind = InvalidArgumentError if isinstance(error, ValueError) else TypeError
                raise kind(f"{call}: key {key!r}: {error}") from error

    def arguments(self) -> tuple[Any, ...]:
        """What a function of the library takes."""
        return self.keys, self.tensors, self.count

    def note_written(self) -> None:
        """Tells PyTorch that outs have changed: backward() then refuses what it saved of them."""
        for tensor in self.tracked or ():
            # Detached it is no part of a gradient, and has the same version counter. A change in
            # place counts, also of a view without elements.
            tensor.detach().unsqueeze(0)[:0].zero_()


class RowLoan(Unique):
    """Tensors of rows, and which rows they are."""

    __slots__ = ("_ids", "_rows")

    def __init__(self, call: str, ids: Loan, rows: Loan) -> None:
        if ids.count != rows.count:
            raise InvalidArgumentError(
                f"{call}: {rows.count} arrays of rows, but {ids.count} of row ids"
            )
        self._ids, self._rows = ids, rows

    def arguments(self) -> tuple[Any, ...]:
        """What a function of the library takes."""
        return self._rows.keys, self._ids.tensors, self._rows.tensors, self._rows.count

    @property
    def tracked(self) -> Optional[list[Any]]:
        """As Loan.tracked."""
        return self._rows.tracked

    def note_written(self) -> None:
        """As Loan.note_written()."""
        self._rows.note_written()


def _describe_value(tensors: Any, index: int, value: Any) -> object:
    if isinstance(value, np.ndarray):
        return _describe_numpy(tensors, index, value)
    if hasattr(value, "__dlpack__"):
        return _describe_dlpack(tensors, index, value, as_out=False)
    if hasattr(value, "to_dlpack_for_read"):
        return _describe_mxnet(tensors, index, value, value.to_dlpack_for_read)
    _refuse_sparse(value)
    # numpy would walk a sequence that it does not know, element by element.
    if not is_readable(value):
        raise TypeError(
            f"arrays of type {type(value).__name__} cannot be stored: a value is a numpy array, an "
            f"object with __dlpack__, or numbers"
        )
    return _describe_numpy(tensors, index, np.asarray(value))


def _describe_out(tensors: Any, index: int, out: Any) -> object:
    if isinstance(out, np.ndarray):
        if not out.flags.writeable:
            raise InvalidArgumentError("an out is a read-only numpy array")
        return _describe_numpy(tensors, index, out)
    if hasattr(out, "__dlpack__"):
        return _describe_dlpack(tensors, index, out, as_out=True)
    if hasattr(out, "to_dlpack_for_write"):
        return _describe_mxnet(tensors, index, out, out.to_dlpack_for_write)
    _refuse_sparse(out)
    raise TypeError(
        f"an out must be a numpy array or an object with __dlpack__, not {type(out).__name__}"
    )


def _describe_numpy(tensors: Any, index: int, array: np.ndarray[Any, Any]) -> object:
    tensor = tensors[index]
    ndim = array.ndim
    tensor.data = array.ctypes.data
    tensor.device_type = _CPU
    tensor.ndim = ndim
    tensor.dtype = number_of(array.dtype)
    dims = (c_int64 * (2 * ndim))(*array.shape)
    tensor.shape = ctypes.addressof(dims)
    if not array.flags.c_contiguous:
        for axis, stride in enumerate(_strides_in_elements(array), ndim):
            dims[axis] = stride
        tensor.strides = tensor.shape + ctypes.sizeof(c_int64) * ndim
    return array, dims


def _strides_in_elements(array: np.ndarray[Any, Any]) -> list[int]:
    size = array.itemsize
    if any(stride % size for stride in array.strides):
        raise InvalidArgumentError(
            f"strides of {array.strides} bytes are not multiples of the {size}-byte element: "
            f"pass a copy"
        )
    return [stride // size for stride in array.strides]


def _describe_dlpack(tensors: Any, index: int, array: Any, as_out: bool) -> object:
    """Uses a capsule's DLTensor as it is. A capsule that nobody consumes frees itself."""
    if getattr(array, "requires_grad", False):
        array = array.detach()  # PyTorch exports no tensor that takes part in a gradient.
    try:
        try:
            capsule = array.__dlpack__(max_version=(_DLPACK_MAJOR, 0))
        except TypeError:  # A producer older than DLPack 1.0.
            capsule = array.__dlpack__()
    except Exception:
        _refuse_sparse(array)
        raise
    return _describe_capsule(tensors, index, array, capsule, as_out)


def _describe_mxnet(tensors: Any, index: int, array: Any, export: Callable[[], Any]) -> object:
    """MXNet has no `__dlpack__`; its own functions wait for what is computed in the background."""
    _refuse_sparse(array)
    return _describe_capsule(tensors, index, array, export(), as_out=False)


def _describe_capsule(tensors: Any, index: int, array: Any, capsule: Any, as_out: bool) -> object:
    immutable = type(array).__module__.partition(".")[0] in _IMMUTABLE_PACKAGES
    if _capsule_is(capsule, b"dltensor"):
        address = _capsule_pointer(capsule, b"dltensor")
    elif _capsule_is(capsule, b"dltensor_versioned"):
        address = _capsule_pointer(capsule, b"dltensor_versioned")
        major = ctypes.c_uint32.from_address(address).value
        if major != _DLPACK_MAJOR:
            raise InvalidArgumentError(f"DLPack {major} is not known: this package reads DLPack 1")
        flags = ctypes.c_uint64.from_address(address + _FLAGS_OFFSET).value
        immutable = immutable or bool(flags & _FLAG_READ_ONLY)
        address += _VERSIONED_TENSOR_OFFSET
    else:
        raise TypeError(f"__dlpack__ of {type(array).__name__} returned no DLPack capsule")
    if as_out and immutable:
        raise InvalidArgumentError(f"an out is a read-only {type(array).__name__}")
    tensors[index] = Tensor.from_address(address)
    return array, capsule


def _is_tracked(array: Any) -> bool:
    """Whether it is a tensor of PyTorch with a version counter, which those of inference lack."""
    is_inference = getattr(array, "is_inference", None)
    return is_inference is not None and not is_inference()


def first_leaf(value: Any) -> Any:
    """The first element of lists of lists that is no list."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value


def is_readable(value: Any) -> bool:
    """Whether numpy reads a value as a whole, or its first element is a number of Python."""
    value = first_leaf(value)
    if isinstance(value, (int, float, complex, str, bytes, range, list, tuple, np.generic)):
        return True
    if any(hasattr(value, name) for name in _EXPORTS):
        return True
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def _refuse_sparse(array: Any) -> None:
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


class _Memory:
    """Memory of the library, in the words that numpy understands."""

    __slots__ = ("__array_interface__",)

    def __init__(self, **interface: Any) -> None:
        self.__array_interface__ = {"version": 3, **interface}


def view(tensor: Tensor, writable: bool) -> np.ndarray[Any, Any]:
    """A numpy array over a row-major tensor of the library, valid as long as the tensor is."""
    shape = tuple((c_int64 * tensor.ndim).from_address(tensor.shape)) if tensor.ndim else ()
    dtype = dtype_of(tensor.dtype)
    if 0 in shape:
        array = np.empty(shape, dtype)
        array.flags.writeable = writable
        return array
    # numpy's own name of bfloat16 is that of two untyped bytes.
    type_name = "<u2" if dtype.kind == "V" else dtype.str
    data = (tensor.data + tensor.byte_offset, not writable)
    memory = _Memory(data=data, shape=shape, typestr=type_name)
    return np.asarray(memory).view(dtype)
