"""Which gradients travel under one key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch

# Below it a call for a key takes longer than its bytes.
SMALL_BYTES = 16384


class Unit:
    """A gradient under its parameter's name, or small ones of a dtype and device in one array."""

    def __init__(self, key: str, places: list[int], parameters: list[torch.nn.Parameter]) -> None:
        self.key = key
        self.places = places
        self._flat: Optional[torch.Tensor] = None
        self._views: list[torch.Tensor] = []
        if len(places) > 1:
            lengths = [each.numel() for each in parameters]
            first = parameters[0]
            self._flat = torch.zeros(sum(lengths), dtype=first.dtype, device=first.device)
            pieces = zip(self._flat.split(lengths), parameters)
            self._views = [piece.view(each.shape) for piece, each in pieces]

    @property
    def is_fused(self) -> bool:
        return self._flat is not None

    def gather(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The value of the key, from the tensors of all places."""
        if self._flat is not None:
            torch._foreach_copy_(self._views, [tensors[place] for place in self.places])
        return self.value(tensors)

    def value(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The flat array, or the tensor of the only place."""
        return tensors[self.places[0]] if self._flat is None else self._flat

    def scatter(self, tensors: list[torch.Tensor]) -> None:
        """Copies the value of the key into the tensors of its places."""
        if self._flat is not None:
            torch._foreach_copy_([tensors[place] for place in self.places], self._views)


def units_of(
    names: list[str], parameters: list[torch.nn.Parameter], suffix: str, fuse: bool
) -> list[Unit]:
    """The keys of gradients, in the order of their first parameters."""
    small: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for place, each in enumerate(parameters):
        if fuse and each.numel() * each.element_size() <= SMALL_BYTES:
            small.setdefault((each.dtype, each.device), []).append(place)
    fused = {places[0]: places for places in small.values() if len(places) > 1}
    inside = {place for places in fused.values() for place in places}
    units = []
    for place, name in enumerate(names):
        if place in fused:
            places = fused[place]
            key = f"{len(places)} gradients from `{name}` to `{names[places[-1]]}`{suffix}"
            units.append(Unit(key, places, [parameters[each] for each in places]))
        elif place not in inside:
            units.append(Unit(name + suffix, [place], [parameters[place]]))
    return units
