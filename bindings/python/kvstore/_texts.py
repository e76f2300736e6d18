"""Strings and options on their way into the library."""

from __future__ import annotations

import os
from typing import Any

from ._errors import InvalidArgumentError


def c_text(what: str, text: Any) -> bytes:
    """A string for C, where a NUL character would end it unnoticed."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is a str, not {type(text).__name__}")
    if "\0" in text:
        raise InvalidArgumentError(f"{what} {text!r} contains a NUL character")
    return text.encode()


def c_path(path: Any) -> bytes:
    """The path of a file: a str, bytes, or what has `__fspath__`."""
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise InvalidArgumentError(f"the path {path!r} contains a NUL character")
    return encoded


def as_number(name: str, value: Any) -> float:
    """The value of an option: any number, of Python, numpy or PyTorch."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is a {type(value).__name__}, not a number") from None


def params_text(params: dict[str, Any]) -> str:
    """Options as `name=value,...`, without those that are None. Numbers are read back unchanged."""
    given = {name: value for name, value in params.items() if value is not None}
    return ",".join(f"{name}={_value_text(name, value)}" for name, value in given.items())


def _value_text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(as_number(name, value))
