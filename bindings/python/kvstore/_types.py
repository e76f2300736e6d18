"""What the methods take, for type checkers: they refuse what a call would refuse for its type."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, SupportsFloat, TypeVar, Union

import numpy as np

from ._lent import DeviceArray

_Item = TypeVar("_Item", covariant=True)


class ListOf(Protocol[_Item]):
    """A list, a tuple or a range. Not a str or bytes: these are asked for parts of themselves."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[_Item]: ...
    def __getitem__(self, index: int, /) -> _Item: ...
    def __contains__(self, item: object, /) -> bool: ...
    @property
    def index(self) -> object: ...


class HasDLPack(Protocol):
    """An array of numpy, PyTorch, JAX and others."""

    @property
    def __dlpack__(self) -> Callable[..., Any]: ...


class HasArray(Protocol):
    """What numpy reads."""

    @property
    def __array__(self) -> Callable[..., Any]: ...


class MXNetArray(Protocol):
    """An array of MXNet."""

    @property
    def to_dlpack_for_read(self) -> Callable[..., Any]: ...
    @property
    def to_dlpack_for_write(self) -> Callable[..., Any]: ...


class CudaArray(Protocol):
    """An array in the memory of a GPU, such as Numba's."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...


Key = Union[str, int, np.integer[Any]]
Keys = Union[Key, ListOf[Key]]

# A value is an array, a number, or an array written out as numbers; a list has one for each device,
# or what each key of a list gets.
_Value = Union[HasDLPack, HasArray, MXNetArray, CudaArray, "array[Any]", memoryview, float]
_Values1 = Union[_Value, ListOf[_Value]]
_Values2 = Union[_Value, ListOf[_Values1]]
_Values3 = Union[_Value, ListOf[_Values2]]
_Values4 = Union[_Value, ListOf[_Values3]]
Values = Union[_Value, ListOf[_Values4]]

_Out = Union[HasDLPack, MXNetArray, CudaArray]
_Outs1 = Union[_Out, ListOf[_Out]]
Outs = Union[_Out, ListOf[_Outs1]]

_RowIds = Union[HasDLPack, HasArray, MXNetArray, int, np.integer[Any]]
_RowIds1 = Union[_RowIds, ListOf[_RowIds]]
_RowIds2 = Union[_RowIds, ListOf[_RowIds1]]
_RowIds3 = Union[_RowIds, ListOf[_RowIds2]]
RowIds = Union[_RowIds, ListOf[_RowIds3]]

# The key is what init() was given.
Update = Union[
    Callable[[Any, np.ndarray[Any, Any], np.ndarray[Any, Any]], object],
    Callable[[Any, DeviceArray, DeviceArray], object],
]

# An option of an optimizer or a codec.
Param = Union[str, SupportsFloat, None]
Params = Mapping[str, Param]
# The names of keys for the tensors of a file; None leaves a tensor out.
Names = Union[Callable[[str], Union[str, None]], Mapping[str, str]]
# An option of create().
Setting = Union[str, SupportsFloat, os.PathLike[str]]
Path = Union[str, bytes, os.PathLike[str], os.PathLike[bytes]]
