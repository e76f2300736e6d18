"""An optimizer whose rule runs on the servers: gradients go out, weights come back."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

import kvstore
from kvstore._agreement import agree, describe

from . import _collectives
from ._groups import Named, groups_of, modules_of
from ._job import job
from ._staging import refuse_without_memory
from ._steps import StepsInBackward
from ._stored import StoredOptimizer, loss_of
from ._units import SMALL_BYTES


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

    `model` is a module, pairs of names and parameters, or groups: dicts with one of these as
    "params", and options in place of `params`. A group may name a "rule" of its own, and then has
    no other options than its own.

    >>> optimizer = kvstore.torch.ServerOptimizer("adamw", [
    ...     {"params": model.body.named_parameters(prefix="body")},
    ...     {"params": model.head.named_parameters(prefix="head"), "lr": 1e-2},
    ...     {"params": model.words.named_parameters(prefix="words"), "rule": "adagrad", "lr": 0.1},
    ... ], lr=1e-3)

    With `overlap` each gradient of more than 16 KiB leaves as soon as backward has it, at the n-th
    pass if `backward_passes_per_step` is n; and step() does not wait for weights: each module of
    the model waits for its own when it is called. A program that reads weights in another way calls
    wait_for_weights() first. step() waits for the weights of groups that are no modules.
    """

    def __init__(
        self,
        rule: str,
        model: Named,
        *,
        overlap: bool = False,
        backward_passes_per_step: int = 1,
        **params: Any,
    ) -> None:
        of, model = job(), model if isinstance(model, torch.nn.Module) else list(model)
        modules, groups = modules_of(model), groups_of("ServerOptimizer", rule, model, params)
        for group in groups:
            refuse_without_memory("ServerOptimizer", group.named)
            if "rescale_grad" in group.options:
                raise kvstore.OptionError(
                    "ServerOptimizer: it sets rescale_grad itself, for the mean"
                )
            group.options["rescale_grad"] = 1 / of.size
        lines = [describe(name, each) for group in groups for name, each in group.named]
        agree(of.store, "ServerOptimizer", lines)
        super().__init__(of.another_store(), groups, rule)
        for module in modules:
            _collectives.broadcast_parameters(module)
        self._keys.pull()
        self._steps: Optional[StepsInBackward] = None
        if overlap:
            self._steps = StepsInBackward(
                self._keys, backward_passes_per_step, SMALL_BYTES, prepare=self._set_rates
            )
            of_modules = {id(each) for module in modules for each in module.parameters()}
            self._of_no_module = self._steps.places_of(
                each for each in self._keys.parameters if id(each) not in of_modules
            )
            for module in modules:
                self._take_in(module, self._steps)

    def _take_in(self, root: torch.nn.Module, steps: StepsInBackward) -> None:
        """Has each module take its weights when it is called, and all be taken for a state_dict."""

        def take(module: torch.nn.Module, *_: Any) -> None:
            steps.finish(steps.places_of(module.parameters(recurse=False)))

        for module in root.modules():
            module.register_forward_pre_hook(take)
        root.register_state_dict_pre_hook(lambda *_: self.wait_for_weights())

    def wait_for_weights(self) -> None:
        """Waits for the weights of the last step; without `overlap` they are there."""
        if self._steps is not None:
            self._steps.finish()

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Sends the gradients of all parameters, and takes the new weights."""
        loss = loss_of(closure)
        if self._steps is not None:
            self._steps.begin(_gradient_of)
            self._steps.finish(self._of_no_module)
            return loss
        self._set_rates()
        parameters = self._keys.parameters
        self._keys.step(range(len(parameters)), [_gradient_of(each) for each in parameters])
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients; those that are under way are not changed."""
        if not set_to_none:
            self.wait_for_weights()
        super().zero_grad(set_to_none)


def _gradient_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The gradient; zeros, if there is none."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
