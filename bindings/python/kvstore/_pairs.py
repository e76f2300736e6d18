"""The forms of the tutorials (a key or a list, an array or a list, lists of lists) as pairs."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from ._arrays import first_leaf, is_readable
from ._errors import InvalidArgumentError

_KEY_LIMIT = 1 << 63


def keys_of(keys: Any) -> list[Any]:
    """The keys of a call that takes one key or a list of them."""
    return list(keys) if isinstance(keys, (list, tuple, range)) else [keys]


def integer_key(key: Any) -> int:
    """Checks a key that is no name."""
    if isinstance(key, (bool, np.bool_)):
        raise TypeError(f"a key is an integer or a str, not {key!r}")
    try:
        number = operator.index(key)
    except TypeError:
        raise TypeError(f"a key is an integer or a str, not {type(key).__name__}") from None
    if not 0 <= number < _KEY_LIMIT:
        raise InvalidArgumentError(f"key {number} is out of range: integers go from 0 to 2**63-1")
    return number


def pairs_of(call: str, keys: Any, values: Any) -> Iterator[tuple[Any, Any]]:
    """Gives (key, array) for one key with its values, or for a list of keys with theirs."""
    if not isinstance(keys, (list, tuple, range)):
        keys, values = [keys], [values]
    elif not isinstance(values, (list, tuple)):
        kind = type(values).__name__
        raise TypeError(f"{call}: a list of keys needs a list of arrays, not {kind}")
    elif len(keys) != len(values):
        raise InvalidArgumentError(f"{call}: {len(keys)} keys, but {len(values)} arrays or lists")
    for key, value in zip(keys, values):
        if isinstance(value, (list, tuple)) and not is_written_out(value):
            if not is_readable(value):
                kind = type(first_leaf(value)).__name__
                raise TypeError(f"{call}: key {key!r}: a list of {kind} is no list of arrays")
            yield from ((key, each) for each in value)
        else:
            yield key, value


def row_ids_of(row_ids: Any) -> Any:
    """Row ids with empty lists as arrays of integers: numpy would make them arrays of floats."""
    if not isinstance(row_ids, (list, tuple)):
        return row_ids
    return [row_ids_of(each) for each in row_ids] or np.empty(0, np.int64)


def is_written_out(value: Any) -> bool:
    """Whether a value is one array written out: a number of Python, or lists of such numbers.

    Numbers of numpy, which numpy's sums are, count as arrays without dimensions.
    """
    if isinstance(value, (list, tuple)):
        return len(value) > 0 and all(is_written_out(each) for each in value)
    return isinstance(value, (int, float, complex)) and not isinstance(value, np.generic)
