"""Element types: numpy's, and the numbers that DLPack and the library give them."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
BFLOAT16 = 4 | 16 << 8 | 1 << 16
_NAMES = {BFLOAT16: "bfloat16"}

_known: dict[np.dtype[Any], int] = {}


def _number(code: int, bits: int) -> int:
    return code | bits << 8 | 1 << 16


for _name in ("int8", "int32", "int64", "uint8", "float16", "float32", "float64"):
    _dtype = np.dtype(_name)
    _known[_dtype] = _number(_CODES[_dtype.kind], 8 * _dtype.itemsize)
    _NAMES[_known[_dtype]] = _name
_BY_NUMBER = {number: dtype for dtype, number in _known.items()}


def number_of(dtype: np.dtype[Any]) -> int:
    """The library's number of a numpy dtype. Whether it serves that type, the library says."""
    number = _known.get(dtype)
    if number is not None:
        return number
    if dtype.name == "bfloat16":
        return BFLOAT16
    if dtype.kind not in _CODES:
        raise TypeError(f"arrays of dtype {dtype} cannot be stored")
    if not dtype.isnative:
        raise TypeError(f"dtype {dtype.str} has the other byte order: convert it with astype")
    return _number(_CODES[dtype.kind], 8 * dtype.itemsize)


def name_of(number: int) -> str:
    """The name of a dtype that the library stores."""
    return _NAMES[number]


def bfloat16() -> Optional[np.dtype[Any]]:
    """numpy's bfloat16, which exists if the package ml_dtypes does."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def dtype_of(number: int) -> np.dtype[Any]:
    """A numpy dtype for a dtype that the library stores; bfloat16 without ml_dtypes is uint16."""
    if number == BFLOAT16:
        return bfloat16() or np.dtype(np.uint16)
    return _BY_NUMBER[number]
