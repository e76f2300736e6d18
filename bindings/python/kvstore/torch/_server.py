"""An optimizer whose rule runs on the servers: gradients go out, weights come back."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

import kvstore
from kvstore._agreement import agree, describe

from . import _collectives
from ._job import job
from ._staging import refuse_without_memory
from ._stored import Named, StoredOptimizer, loss_of, trained


class ServerOptimizer(StoredOptimizer):
    """Sends gradients to the servers, which make the step by a rule of the library.

    >>> optimizer = kvstore.torch.ServerOptimizer("adamw", model, lr=1e-3, wd=0.01)

    States such as momentum are on the servers only, each for a part of the model, so a worker needs
    no memory for them. All ranks begin with the parameters and buffers of rank 0. Gradients are
    averaged over the ranks; a parameter without one counts as zeros. Buffers, such as the counters
    of BatchNorm, stay with each rank, out of the rule; broadcast_parameters() makes them equal.

    `rule` and `params` are those of KVStore.set_optimizer(); "lr" and "weight_decay" are other
    names of "learning_rate" and "wd". Schedulers of PyTorch change the rate through `param_groups`.
    save() and load() are calls of all ranks.
    """

    def __init__(self, rule: str, model: Named, **params: Any) -> None:
        of, named = job(), trained(model)
        if "rescale_grad" in params:
            raise kvstore.OptionError("ServerOptimizer: it sets rescale_grad itself, for the mean")
        refuse_without_memory("ServerOptimizer", named)
        lines = [describe(name, each) for name, each in named]
        agree(of.store, "ServerOptimizer", lines)
        super().__init__(of.another_store(), named, rule, {"rescale_grad": 1 / of.size, **params})
        if isinstance(model, torch.nn.Module):
            _collectives.broadcast_parameters(model)
        self._pull()

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Sends the gradients of all parameters, and takes the new weights."""
        loss = loss_of(closure)
        self._set_rate()
        gradients = [
            torch.zeros_like(each) if each.grad is None else each.grad for each in self._parameters
        ]
        self._pushpull(self._all, gradients)
        return loss
