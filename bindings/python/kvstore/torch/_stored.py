"""What optimizers share whose rule and states are in a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional, Union

import torch

import kvstore
from kvstore import KVStore

from ._staging import HostCopies

# A module, or pairs of names and parameters.
Named = Union[torch.nn.Module, Iterable[tuple[str, torch.nn.Parameter]]]
# Names of PyTorch for options of the rules.
_ALIASES = {"lr": "learning_rate", "weight_decay": "wd"}


class StoredOptimizer(torch.optim.Optimizer):
    """Parameters as keys of a store with a rule of its own, which holds for all of its keys."""

    def __init__(
        self,
        store: KVStore,
        named: list[tuple[str, torch.nn.Parameter]],
        rule: str,
        params: dict[str, Any],
    ) -> None:
        options = {_ALIASES.get(name, name): value for name, value in params.items()}
        self._names = [name for name, _ in named]
        self._parameters = [each for _, each in named]
        self._store = store
        self._copies = HostCopies(self._parameters)
        self._all = range(len(self._parameters))
        values = [each.detach() for each in self._parameters]
        store.init(self._names, self._copies.to_host(self._all, values))
        store.set_optimizer(rule, **options)
        self._rate: Optional[float] = options.get("learning_rate")
        # Without a rate of the program a scheduler has nothing to begin with, and says so.
        super().__init__(self._parameters, {} if self._rate is None else {"lr": self._rate})

    def _pull(self) -> None:
        """Takes the weights of the store."""
        self._store.pull(self._names, out=self._copies.outs(self._all, self._parameters))
        self._copies.to_device(self._all, self._parameters)

    def _pushpull(self, places: Sequence[int], gradients: list[torch.Tensor]) -> None:
        """Steps some parameters."""
        parameters = [self._parameters[place] for place in places]
        self._store.pushpull(
            [self._names[place] for place in places],
            self._copies.to_host(places, gradients),
            out=self._copies.hosts(places, parameters),
        )
        self._copies.to_device(places, parameters)

    def _set_rate(self) -> None:
        """Tells the store when a scheduler has changed it; all ranks must do so alike."""
        rate = self.param_groups[0].get("lr")
        if rate is not None and rate != self._rate:
            self._store.set_hyperparameter("learning_rate", rate)
            self._rate = rate

    def set_hyperparameter(self, name: str, value: float, key: Optional[str] = None) -> None:
        """KVStore.set_hyperparameter(), with the name of a parameter as `key`.

        >>> optimizer.set_hyperparameter("wd_mult", 0, key="layer3.0.bn1.weight")
        """
        self._store.set_hyperparameter(name, value, key)

    def save(self, path: Any) -> None:
        """Saves weights and states as KVStore.save() does."""
        self._store.save(path)

    def load(self, path: Any) -> None:
        """Loads a file of save() into the store and the model."""
        self._store.load(path)
        self._pull()

    def state_dict(self) -> dict[str, Any]:
        """Refused: the states are in the store; save() writes them."""
        raise kvstore.UnsupportedError("the states of this optimizer are in its store; use save()")

    def load_state_dict(self, state_dict: Any) -> None:
        """Refused: the states are in the store; load() reads them."""
        raise kvstore.UnsupportedError("the states of this optimizer are in its store; use load()")


def trained(model: Named) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that require gradients, by name."""
    pairs = model.named_parameters() if isinstance(model, torch.nn.Module) else model
    return [(name, each) for name, each in pairs if each.requires_grad]


def loss_of(closure: Optional[Callable[[], Any]]) -> Any:
    """What the closure of a step() gives, which may run backward; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
