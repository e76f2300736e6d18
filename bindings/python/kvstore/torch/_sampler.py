"""The part of a dataset that a rank trains with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DistributedSampler

from ._job import rank, size


class _Sampler(DistributedSampler[Any]):
    def __iter__(self) -> Iterator[Any]:
        indices = super().__iter__()
        # Another order in the next epoch, without a call of set_epoch().
        self.epoch += 1
        return indices


def sampler(dataset: Any, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> Any:
    """A sampler for a DataLoader, of which each rank gets an equal part of the dataset.

    It is PyTorch's DistributedSampler, with another order in each epoch by itself. Ranks get
    equally many samples: some come twice, or with `drop_last` some are left out. A DataLoader gets
    it in the place of `shuffle=True`.

    >>> loader = DataLoader(dataset, batch_size=64, sampler=kvstore.torch.sampler(dataset))
    """
    return _Sampler(dataset, size(), rank(), shuffle=shuffle, seed=seed, drop_last=drop_last)
