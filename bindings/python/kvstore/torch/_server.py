"""An optimizer whose rule runs on the servers: gradients go out, weights come back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable, Optional, Union

import torch

import kvstore

from . import _collectives
from ._job import job

# Names of PyTorch for options of the rules.
_ALIASES = {"lr": "learning_rate", "weight_decay": "wd"}


class ServerOptimizer(torch.optim.Optimizer):
    """Sends gradients to the servers, which make the step by a rule of the library.

    >>> optimizer = kvstore.torch.ServerOptimizer("adamw", model, lr=1e-3, wd=0.01)

    States such as momentum are on the servers only, each for a part of the model, so a worker needs
    no memory for them. All ranks begin with the parameters and buffers of rank 0. Gradients are
    averaged over the ranks; a parameter without one counts as zeros. Buffers, such as the counters
    of BatchNorm, stay with each rank, out of the rule; broadcast_parameters() makes them equal.

    `rule` and `params` are those of KVStore.set_optimizer(); "lr" and "weight_decay" are other
    names of "learning_rate" and "wd". Schedulers of PyTorch change the rate through `param_groups`.
    """

    def __init__(
        self,
        rule: str,
        model: Union[torch.nn.Module, Iterable[tuple[str, torch.nn.Parameter]]],
        **params: Any,
    ) -> None:
        of = job()
        pairs = model.named_parameters() if isinstance(model, torch.nn.Module) else model
        named = [(name, each) for name, each in pairs if each.requires_grad]
        _collectives.refuse_devices("ServerOptimizer", named)
        _collectives.agree(
            of, "ServerOptimizer", [_collectives.describe(name, each) for name, each in named]
        )
        options = {_ALIASES.get(name, name): value for name, value in params.items()}
        if "rescale_grad" in options:
            raise kvstore.OptionError("ServerOptimizer: it sets rescale_grad itself, for the mean")
        self._names = [name for name, _ in named]
        self._parameters = [each for _, each in named]
        # With a rule of its own, which holds for all keys of a store.
        self._store = of.another_store()
        self._store.init(self._names, [each.detach() for each in self._parameters])
        self._store.set_optimizer(rule, rescale_grad=1 / of.size, **options)
        self._rate: Optional[float] = options.get("learning_rate")
        # Without a rate of the program a scheduler has nothing to begin with, and says so.
        super().__init__(self._parameters, {} if self._rate is None else {"lr": self._rate})
        if isinstance(model, torch.nn.Module):
            _collectives.broadcast_parameters(model)
        self._store.pull(self._names, out=self._parameters)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Sends the gradients of all parameters, and takes the new weights."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._set_rate()
        gradients = [
            torch.zeros_like(each) if each.grad is None else each.grad for each in self._parameters
        ]
        self._store.pushpull(self._names, gradients, out=self._parameters)
        return loss

    def _set_rate(self) -> None:
        """Tells the servers when a scheduler has changed it; all ranks must do so alike."""
        rate = self.param_groups[0].get("lr")
        if rate != self._rate:
            self._store.set_hyperparameter("learning_rate", rate)
            self._rate = rate

    def save(self, path: Any) -> None:
        """Saves weights and states as KVStore.save(), by a call of all ranks; rank 0 writes."""
        self._store.save(path)

    def load(self, path: Any) -> None:
        """Loads a file of save() on all ranks, into the servers and the model."""
        self._store.load(path)
        self._store.pull(self._names, out=self._parameters)

    def state_dict(self) -> dict[str, Any]:
        """Refused: the states are on the servers; save() writes them."""
        raise kvstore.UnsupportedError(
            "ServerOptimizer: its states are on the servers; use save() and load()"
        )

    load_state_dict = state_dict
