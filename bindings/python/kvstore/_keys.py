"""Keys as the tutorials write them: integers and names, one or a list."""

from __future__ import annotations

import operator
from typing import Any

from ._errors import InvalidArgumentError

_KEY_LIMIT = 1 << 63


def keys_of(keys: Any) -> list[Any]:
    """The keys of a call that takes one key or a list of them."""
    return list(keys) if isinstance(keys, (list, tuple, range)) else [keys]


def integer_key(key: Any) -> int:
    """Checks a key that is no name."""
    # Truth values of Python and numpy; older versions of numpy let them be an index.
    if type(key).__name__ in ("bool", "bool_"):
        raise TypeError(f"a key is an integer or a str, not {key!r}")
    try:
        number = operator.index(key)
    except TypeError:
        raise TypeError(f"a key is an integer or a str, not {type(key).__name__}") from None
    if not 0 <= number < _KEY_LIMIT:
        raise InvalidArgumentError(f"key {number} is out of range: integers go from 0 to 2**63-1")
    return number
