"""A DLPack producer made by hand, to see exactly what a consumer does with a capsule."""

import ctypes

import numpy as np

from kvstore._library import Tensor

_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, _FREE)
CPU, CUDA, CUDA_HOST = 1, 2, 3
BFLOAT16_NUMBER = 4 | 16 << 8 | 1 << 16


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


class Producer:
    """Offers a numpy array through DLPack, and counts the capsules that are alive."""

    def __init__(self, array, device=CPU, byte_offset=0, strides=None, dtype=None):
        self.array, self.alive, self.made, self.exported = array, 0, 0, []
        self._shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self._strides = strides and (ctypes.c_int64 * array.ndim)(*strides)
        self._free = _FREE(self._count_down)
        self.tensor = Tensor(
            data=array.ctypes.data - byte_offset,
            device_type=device,
            ndim=array.ndim,
            dtype=dtype or kvstore_number(array.dtype),
            shape=ctypes.addressof(self._shape),
            strides=ctypes.addressof(self._strides) if strides else None,
            byte_offset=byte_offset,
        )

    def _count_down(self, capsule):
        self.alive -= 1

    def _capsule(self, managed, name):
        self._managed = managed
        self.alive += 1
        self.made += 1
        return _new(ctypes.addressof(managed), name, self._free)

    def __dlpack__(self, *, stream=None):
        return self._capsule(Managed(tensor=self.tensor), b"dltensor")

    def __dlpack_device__(self):
        return (self.tensor.device_type, 0)


class Table(ctypes.Structure):
    """A DLPackExchangeAPI: a version, an older table, and functions."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("object_from_managed", ctypes.c_void_p),
        ("tensor_from_object", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    ]


_EXPORT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
_CURRENT_STREAM = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)
)
_tables = []


def type_with_table(majors=(1,), current_stream=None, borrows=False):
    """A type of producers that offers tables of these versions, from new to old.

    `current_stream(device_type, device, out)` is the table's function of that name. With `borrows`
    it has the function that describes an array without an export, too.
    """

    class TableProducer(VersionedProducer):
        def __dlpack__(self, **others):
            raise AssertionError("the type has a table")

    def export(array, out):
        array.alive += 1
        array.made += 1
        deleter = ctypes.cast(array._free, ctypes.c_void_p).value
        managed = ManagedVersioned(major=1, flags=array.flags, tensor=array.tensor, deleter=deleter)
        array.exported.append(managed)
        out[0] = ctypes.addressof(managed)
        return 0

    def borrow(array, out):
        array.borrowed += 1
        ctypes.memmove(out, ctypes.addressof(array.tensor), ctypes.sizeof(Tensor))
        return 0

    TableProducer.borrowed = 0
    function, borrowing = _EXPORT(export), _EXPORT(borrow)
    stream = current_stream and _CURRENT_STREAM(current_stream)
    older = None
    for major in reversed(majors):
        address = ctypes.cast(function, ctypes.c_void_p).value if major == 1 else None
        table = Table(major=major, older=older, managed_from_object=address)
        table.current_stream = ctypes.cast(stream, ctypes.c_void_p).value if stream else None
        if borrows:
            table.tensor_from_object = ctypes.cast(borrowing, ctypes.c_void_p).value
        _tables.append((table, function, borrowing, stream))
        older = ctypes.addressof(table)
    name = ctypes.c_char_p(b"dlpack_exchange_api")
    _tables.append(name)
    capsule = _new(older, name, _FREE())
    TableProducer.__dlpack_c_exchange_api__ = capsule
    return TableProducer


class VersionedProducer(Producer):
    """One that knows DLPack 1.0."""

    def __init__(self, array, flags=0, major=1, **others):
        super().__init__(array, **others)
        self.flags, self.major, self.asked = flags, major, None

    def __dlpack__(self, *, stream=None, max_version=None):
        self.asked = max_version
        managed = ManagedVersioned(major=self.major, flags=self.flags, tensor=self.tensor)
        return self._capsule(managed, b"dltensor_versioned")


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_pointer, _rename = _api.PyCapsule_GetPointer, _api.PyCapsule_SetName
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
_USED, _USED_VERSIONED = b"used_dltensor", b"used_dltensor_versioned"


def consumed(capsule, is_versioned):
    """What a capsule says, as a consumer reads it that takes the tensor and deletes it.

    A dict with the flags (None without a version), the address, the device, the number of the
    dtype, the shape and the strides.
    """
    kind, name, used = (
        (ManagedVersioned, b"dltensor_versioned", _USED_VERSIONED)
        if is_versioned
        else (Managed, b"dltensor", _USED)
    )
    address = _pointer(capsule, name)
    _rename(capsule, used)
    managed = kind.from_address(address)
    tensor = managed.tensor
    extents = ctypes.c_int64 * tensor.ndim
    said = {
        "flags": managed.flags if is_versioned else None,
        "address": tensor.data + tensor.byte_offset,
        "device": (tensor.device_type, tensor.device_id),
        "dtype": tensor.dtype,
        "shape": tuple(extents.from_address(tensor.shape)) if tensor.ndim else (),
        "strides": tuple(extents.from_address(tensor.strides)) if tensor.ndim else (),
    }
    _DELETER(managed.deleter)(address)
    return said


def kvstore_number(dtype):
    codes = {"i": 0, "u": 1, "f": 2}
    return codes[np.dtype(dtype).kind] | 8 * np.dtype(dtype).itemsize << 8 | 1 << 16
