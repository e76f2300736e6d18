"""Files of save(), read and written in Python; docs/use/checkpoints.md describes them."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable
from typing import Any, BinaryIO, NamedTuple

from ._native import crc32c

_PIECE_BYTES = 4 << 20
_HEAD = 8
_SIZES = {"F64": 8, "I64": 8, "F32": 4, "F16": 2, "BF16": 2, "U8": 1}


class FileTensor(NamedTuple):
    """A tensor of a file: its dtype by the name of the format, and its bytes."""

    dtype: str
    shape: list[int]
    data: memoryview


def read(path: str) -> tuple[dict[str, str], dict[str, FileTensor]]:
    """Texts and tensors of a file that a store has just saved.

    The bytes are mapped, also while the file is removed; writing to them does not change it.
    """
    with open(path, "rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    end = _HEAD + int.from_bytes(mapped[:_HEAD], "little")
    header: dict[str, Any] = json.loads(bytes(mapped[_HEAD:end]))
    texts = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        data = mapped[end + first : end + last]
        tensors[name] = FileTensor(entry["dtype"], entry["shape"], data)
    return texts, tensors


def write(path: str, texts: dict[str, str], tensors: Iterable[tuple[str, FileTensor]]) -> None:
    """Writes a file that a store can load. Keys and their parts come in the order of the format."""
    laid_out: list[tuple[str, FileTensor]] = []
    end = 0
    for name, tensor in tensors:
        odd = -end % _SIZES[tensor.dtype]
        if odd:
            pad = FileTensor("U8", [odd], memoryview(bytes(odd)))
            laid_out.append((f"#pad.{len(laid_out)}", pad))
        laid_out.append((name, tensor))
        end += odd + tensor.data.nbytes
    header: dict[str, Any] = {"__metadata__": texts}
    end = 0
    for name, tensor in laid_out:
        begin, end = end, end + tensor.data.nbytes
        header[name] = _entry(tensor.dtype, tensor.shape, begin, end)
    sums = 4 * (1 + len(laid_out))
    header["#checksum"] = _entry("U8", [sums], end, end + sums)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        checksums = [_put(file, memoryview(len(text).to_bytes(_HEAD, "little") + text))]
        checksums += [_put(file, tensor.data) for _, tensor in laid_out]
        file.write(b"".join(each.to_bytes(4, "little") for each in checksums))


def _entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def _put(file: BinaryIO, data: memoryview) -> int:
    """Writes bytes, and gives their checksum."""
    checksum = 0
    for at in range(0, data.nbytes, _PIECE_BYTES):
        piece = bytes(data[at : at + _PIECE_BYTES])
        checksum = crc32c(checksum, piece)
        file.write(piece)
    return checksum


def key_of(name: str) -> str:
    """The name of a key's value in a file."""
    if name == "__metadata__":
        return "#name:__metadata__"
    return f"#{name}" if name.startswith("#") else name
