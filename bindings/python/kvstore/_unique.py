"""Objects that hold pointers of the library: neither copied nor sent to another process."""

from __future__ import annotations

from typing import Any


class Unique:
    """Refuses `copy`, `deepcopy` and `pickle`: a copied pointer would be freed twice."""

    __slots__ = ()
    # What a program does instead.
    _instead = "it describes memory that is lent to one call of this process"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: {self._instead}")
