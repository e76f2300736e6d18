"""Element types: numpy's, and the numbers that DLPack and the library give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    import numpy as np

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


def _number(code: int, bits: int) -> int:
    return code | bits << 8 | 1 << 16


# Of the package ml_dtypes; numpy itself has no such types.
_EXTENSIONS = {
    _number(4, 16): "bfloat16",
    _number(10, 8): "float8_e4m3fn",
    _number(11, 8): "float8_e4m3fnuz",
    _number(12, 8): "float8_e5m2",
    _number(13, 8): "float8_e5m2fnuz",
    _number(14, 8): "float8_e8m0fnu",
}
_NUMBERS_OF_EXTENSIONS = {name: number for number, name in _EXTENSIONS.items()}
_NAMES = {
    _number(0, 8): "int8",
    _number(0, 16): "int16",
    _number(0, 32): "int32",
    _number(0, 64): "int64",
    _number(1, 8): "uint8",
    _number(1, 16): "uint16",
    _number(1, 32): "uint32",
    _number(1, 64): "uint64",
    _number(2, 16): "float16",
    _number(2, 32): "float32",
    _number(2, 64): "float64",
    _number(5, 64): "complex64",
    _number(5, 128): "complex128",
    _number(6, 8): "bool",
    **_EXTENSIONS,
}
# Code and bits of those of one byte, by name.
_OF_BYTES = {name: (number & 0xFF, 8) for number, name in _NAMES.items() if number >> 8 & 0xFF == 8}
# Dtypes of numpy that have been met.
_numbers: dict[np.dtype[Any], int] = {}


def number_of(dtype: np.dtype[Any]) -> int:
    """The library's number of a numpy dtype. Whether it serves that type, the library says."""
    number = _numbers.get(dtype)
    if number is None:
        number = _numbers[dtype] = _find_number(dtype)
    return number


def _find_number(dtype: np.dtype[Any]) -> int:
    extension = _NUMBERS_OF_EXTENSIONS.get(dtype.name)
    if extension is not None:
        return extension
    if dtype.kind not in _CODES or dtype.itemsize > 16:
        raise TypeError(f"arrays of dtype {dtype} cannot be stored")
    if not dtype.isnative:
        raise TypeError(f"dtype {dtype.str} has the other byte order: convert it with astype")
    return _number(_CODES[dtype.kind], 8 * dtype.itemsize)


def name_of(number: int) -> str:
    """The name of a dtype that the library stores."""
    return _NAMES[number]


def of_a_byte(name: str) -> Optional[tuple[int, int]]:
    """DLPack's code and bits of a dtype that has one byte; none for other names."""
    return _OF_BYTES.get(name)


def is_extension(number: int) -> bool:
    """Whether a dtype is one of the package ml_dtypes."""
    return number in _EXTENSIONS


def _extension(name: str) -> Optional[np.dtype[Any]]:
    """A dtype of ml_dtypes, which exists if the package, of a version that has it, does."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    import numpy as np

    kind = getattr(ml_dtypes, name, None)
    return None if kind is None else np.dtype(kind)


def dtype_of(number: int) -> np.dtype[Any]:
    """A numpy dtype for a dtype that the library stores.

    One of ml_dtypes is without that package an unsigned integer of its size.
    """
    import numpy as np

    if number in _EXTENSIONS:
        return _extension(_EXTENSIONS[number]) or np.dtype(f"u{(number >> 8 & 0xFF) // 8}")
    return np.dtype(_NAMES[number])
