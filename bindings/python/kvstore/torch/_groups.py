"""Groups of parameters with a rule each, as optimizers of PyTorch take them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union

import torch

import kvstore

# A module, pairs of names and parameters, or groups of these.
Named = Union[
    torch.nn.Module,
    Iterable[tuple[str, torch.nn.Parameter]],
    Iterable[Mapping[str, Any]],
]
# Names of PyTorch for options of the rules.
_ALIASES = {"lr": "learning_rate", "weight_decay": "wd"}
# Options that each key of a store multiplies by a number of its own.
SCALES = ("learning_rate", "wd")


class ParameterGroup:
    """Parameters that require gradients, and their rule with its options."""

    def __init__(
        self, named: list[tuple[str, torch.nn.Parameter]], rule: str, options: dict[str, Any]
    ) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.rule = rule
        self.options = options

    @property
    def named(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Names and parameters in pairs."""
        return list(zip(self.names, self.parameters))

    @property
    def rate(self) -> Any:
        """The learning rate, or None for that of the rule."""
        return self.options.get("learning_rate")

    def differs_by_scale_from(self, other: ParameterGroup) -> bool:
        """Whether all is equal but the values of `SCALES`."""
        mine, others = (
            {name: None if name in SCALES else value for name, value in each.options.items()}
            for each in (self, other)
        )
        return (self.rule, mine) == (other.rule, others)

    def of_pytorch(self) -> dict[str, Any]:
        """The group of an optimizer of PyTorch."""
        rate = {} if self.rate is None else {"lr": self.rate}
        return {"params": self.parameters, **rate}


def groups_of(call: str, rule: str, model: Named, params: dict[str, Any]) -> list[ParameterGroup]:
    """The groups of a model: with `rule` and `params`, where a group names nothing else.

    A group with a rule of its own has none of `params`.
    """
    groups = []
    for given in _listed(call, model):
        own = {"rule": rule, **given}
        named, of = _trained(call, own.pop("params")), own.pop("rule")
        # A group may repeat an option of `params` under its other name.
        inherited = _by_their_names(params) if of == rule else {}
        groups.append(ParameterGroup(named, of, {**inherited, **_by_their_names(own)}))
    names = [name for group in groups for name in group.names]
    if not names:
        raise kvstore.InvalidArgumentError(f"{call}: no parameter requires gradients")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise kvstore.InvalidArgumentError(
            f"{call}: two parameters are named `{twice}`; give names with "
            'module.named_parameters(prefix="...")'
        )
    return groups


def modules_of(model: Union[torch.nn.Module, Sequence[Any]]) -> list[torch.nn.Module]:
    """The model, or the modules of its groups."""
    if isinstance(model, torch.nn.Module):
        return [model]
    given = [each.get("params") for each in model if isinstance(each, Mapping)]
    return [each for each in given if isinstance(each, torch.nn.Module)]


def _listed(call: str, model: Named) -> list[Mapping[str, Any]]:
    if isinstance(model, torch.nn.Module):
        return [{"params": model}]
    items: list[Any] = list(model)
    if not any(isinstance(each, Mapping) for each in items):
        return [{"params": items}]
    for number, each in enumerate(items):
        if not isinstance(each, Mapping) or "params" not in each:
            raise kvstore.InvalidArgumentError(
                f"{call}: group {number} is no dict with a module, or pairs of names and "
                'parameters, as "params"'
            )
    return items


def _by_their_names(options: Mapping[str, Any]) -> dict[str, Any]:
    return {_ALIASES.get(name, name): value for name, value in options.items()}


def _trained(call: str, model: Any) -> list[tuple[str, torch.nn.Parameter]]:
    pairs = model.named_parameters() if isinstance(model, torch.nn.Module) else list(model)
    named = []
    for pair in pairs:
        if not isinstance(pair, tuple) or not isinstance(pair[0], str):
            raise kvstore.InvalidArgumentError(
                f"{call}: parameters come with their names: model.named_parameters()"
            )
        name, parameter = pair
        if parameter.requires_grad:
            named.append((name, parameter))
    return named
