"""Element types: numpy's, and the numbers that DLPack and the library give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    import numpy as np

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


def _number(code: int, bits: int) -> int:
    return code | bits << 8 | 1 << 16


BFLOAT16 = _number(4, 16)
_NAMES = {
    _number(0, 8): "int8",
    _number(0, 32): "int32",
    _number(0, 64): "int64",
    _number(1, 8): "uint8",
    _number(2, 16): "float16",
    _number(2, 32): "float32",
    _number(2, 64): "float64",
    BFLOAT16: "bfloat16",
}
# Dtypes of numpy that have been met.
_numbers: dict[np.dtype[Any], int] = {}


def number_of(dtype: np.dtype[Any]) -> int:
    """The library's number of a numpy dtype. Whether it serves that type, the library says."""
    number = _numbers.get(dtype)
    if number is None:
        number = _numbers[dtype] = _find_number(dtype)
    return number


def _find_number(dtype: np.dtype[Any]) -> int:
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
    import numpy as np

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def dtype_of(number: int) -> np.dtype[Any]:
    """A numpy dtype for a dtype that the library stores; bfloat16 without ml_dtypes is uint16."""
    import numpy as np

    if number == BFLOAT16:
        return bfloat16() or np.dtype(np.uint16)
    return np.dtype(_NAMES[number])
