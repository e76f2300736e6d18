"""What optimizers share whose rule and states are in a store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch

import kvstore
from kvstore import KVStore, Ticket

from ._groups import SCALES, ParameterGroup
from ._staging import HostCopies


class StoredParameters:
    """Parameters as keys of a store, each under its name; a place is that in the list."""

    def __init__(self, store: KVStore, names: list[str], parameters: list[torch.nn.Parameter]):
        self.store = store
        self.names = names
        self.parameters = parameters
        self.copies = HostCopies(parameters)
        self._all = range(len(names))
        store.init(names, self.to_host())

    def to_host(self) -> list[torch.Tensor]:
        """The parameters as they are now, in host memory."""
        return self.copies.to_host(self._all, [each.detach() for each in self.parameters])

    def pull(self, places: Optional[Sequence[int]] = None) -> None:
        """Takes the weights of the store, of some parameters or of all."""
        places = self._all if places is None else places
        parameters = [self.parameters[place] for place in places]
        names = [self.names[place] for place in places]
        self.store.pull(names, out=self.copies.outs(places, parameters))
        self.copies.to_device(places, parameters)

    def step(self, places: Sequence[int], gradients: list[torch.Tensor]) -> None:
        """Steps some parameters."""
        parameters = [self.parameters[place] for place in places]
        self.store.pushpull(
            [self.names[place] for place in places],
            self.copies.to_host(places, gradients),
            out=self.copies.hosts(places, parameters),
        )
        self.copies.to_device(places, parameters)

    def hosts(self) -> list[torch.Tensor]:
        """For each parameter what stands for it in calls: itself, or its copy in host memory."""
        return self.copies.hosts(self._all, self.parameters)

    def begin_step(
        self,
        places: Sequence[int],
        gradients: list[torch.Tensor],
        outs: Optional[list[torch.Tensor]] = None,
    ) -> Ticket:
        """Begins to step some, whose gradients are in host memory; take_step() has the weights.

        They are written to `outs`, or to what stands for the parameters.
        """
        names = [self.names[place] for place in places]
        if outs is None:
            outs = self.copies.hosts(places, [self.parameters[place] for place in places])
        return self.store.pushpull_async(names, gradients, outs)

    def take_step(self, place: int, out: Optional[torch.Tensor] = None) -> None:
        """The step of a parameter has ended, which has written `out`."""
        parameter = self.parameters[place]
        if out is not None and out.device == parameter.device:
            parameter.copy_(out)
        self.copies.to_device([place], [parameter])


class StoredOptimizer(torch.optim.Optimizer):
    """Parameters in a store, with one rule for all groups that differ by rates and decays alone.

    The rule has the largest of these, and each key of a group its part of it, so that a scheduler
    that scales all groups changes one number. Other groups have rules of their own.
    """

    def __init__(self, store: KVStore, groups: list[ParameterGroup], rule: str) -> None:
        self._groups = groups
        names = [name for group in groups for name in group.names]
        self._keys = StoredParameters(
            store, names, [each for group in groups for each in group.parameters]
        )
        self._store = store
        base = next((group for group in groups if group.rule == rule), groups[0])
        self._is_scaled = [group.differs_by_scale_from(base) for group in groups]
        # The largest rate of the rule, what it is multiplied by, and rates of other rules.
        self._rate = self._set_rules(base)
        self._factors = [1.0] * len(groups)
        self._rates = [group.rate for group in groups]
        self._is_complete = False
        # Without a rate of the program a scheduler has nothing to begin with, and says so.
        super().__init__([group.of_pytorch() for group in groups], {})
        self._is_complete = True
        self._set_rates()

    def _set_rules(self, base: ParameterGroup) -> Optional[float]:
        """Sets the rule of most groups, whose learning rate it gives, and those of the others."""
        scaled = [group for group, it in zip(self._groups, self._is_scaled) if it]
        largest = {
            name: max(group.options[name] for group in scaled)
            for name in SCALES
            if name in base.options
        }
        self._store.set_optimizer(base.rule, **{**base.options, **largest})
        for number, group in enumerate(self._groups):
            decay = group.options.get("wd")
            if not self._is_scaled[number]:
                self._store.set_optimizer_for(group.names, group.rule, **group.options)
            elif decay is not None and decay != largest["wd"]:
                self._set_for(number, "wd_mult", decay / largest["wd"])
        return largest.get("learning_rate")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the optimizer is made: its keys are made with it."""
        if self._is_complete:
            raise kvstore.UnsupportedError(
                f"add_param_group: {type(self).__name__} takes all groups when it is made"
            )
        super().add_param_group(param_group)

    def _set_rates(self) -> None:
        """Tells the store when a scheduler has changed them; all ranks must do so alike."""
        rates = [group.get("lr") for group in self.param_groups]
        largest = max(
            (rate for rate, it in zip(rates, self._is_scaled) if it and rate is not None),
            default=None,
        )
        if largest is not None and largest != self._rate:
            self._store.set_hyperparameter("learning_rate", largest)
            self._rate = largest
        for number, rate in enumerate(rates):
            if rate is None or (self._is_scaled[number] and not largest):
                continue
            if self._is_scaled[number]:
                factor = rate / largest
                # Rates that are scaled alike keep their ratio but for its last bits.
                if not math.isclose(factor, self._factors[number], rel_tol=1e-12):
                    self._set_for(number, "lr_mult", factor)
                    self._factors[number] = factor
            elif rate != self._rates[number]:
                self._set_for(number, "learning_rate", rate)
                self._rates[number] = rate

    def _set_for(self, number: int, name: str, value: float) -> None:
        for key in self._groups[number].names:
            self._store.set_hyperparameter(name, value, key)

    def set_hyperparameter(self, name: str, value: float, key: Optional[str] = None) -> None:
        """KVStore.set_hyperparameter(), with the name of a parameter as `key`.

        >>> optimizer.set_hyperparameter("wd_mult", 0, key="layer3.0.bn1.weight")
        """
        self._store.set_hyperparameter(name, value, key)

    def wait_for_weights(self) -> None:
        """Takes weights of the last step that have not come; by default all have."""

    def save(self, path: Any) -> None:
        """Saves weights and states as KVStore.save() does."""
        self.wait_for_weights()
        self._store.save(path)

    def load(self, path: Any) -> None:
        """Loads a file of save() into the store and the model."""
        self.wait_for_weights()
        self._store.load(path)
        self._keys.pull()

    def state_dict(self) -> dict[str, Any]:
        """Refused: the states are in the store; save() writes them."""
        raise kvstore.UnsupportedError("the states of this optimizer are in its store; use save()")

    def load_state_dict(self, state_dict: Any) -> None:
        """Refused: the states are in the store; load() reads them."""
        raise kvstore.UnsupportedError("the states of this optimizer are in its store; use load()")


def loss_of(closure: Optional[Callable[[], Any]]) -> Any:
    """What the closure of a step() gives, which may run backward; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
