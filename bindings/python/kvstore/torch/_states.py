"""States of a rule in the form of PyTorch's optimizers, both ways."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Optional

import torch

import kvstore
from kvstore import KVStore
from kvstore._checkpoint import FileTensor, key_of, read, write

from ._groups import ParameterGroup

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
}
_OF_CODES = {code: dtype for dtype, code in _DTYPES.items()}
_MOMENTS = ("exp_avg", "exp_avg_sq")
_BETAS = {"learning_rate": 0.001, "wd": 0.0, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}


class _Form(NamedTuple):
    """A rule in PyTorch: names of its states in the order of files, and options of a group."""

    states: tuple[str, ...]
    defaults: dict[str, Any]
    group: Callable[[dict[str, Any]], dict[str, Any]]
    has_steps: bool = True
    # A product of which the file has the distance from 1.
    product: Optional[str] = None
    # The state is what a step adds, and PyTorch's the sum of gradients that a rate multiplies.
    is_velocity: bool = False


def _adam(options: dict[str, Any]) -> dict[str, Any]:
    return {"betas": (options["beta1"], options["beta2"]), "eps": options["epsilon"]}


def _sgd(nesterov: bool) -> _Form:
    def group(options: dict[str, Any]) -> dict[str, Any]:
        return {"momentum": options["momentum"], "dampening": 0, "nesterov": nesterov}

    defaults = {"learning_rate": 0.01, "wd": 0.0, "momentum": 0.0}
    return _Form(("momentum_buffer",), defaults, group, has_steps=False, is_velocity=True)


_FORMS = {
    "sgd": _sgd(nesterov=False),
    "nag": _sgd(nesterov=True),
    "adam": _Form(_MOMENTS, _BETAS, lambda it: {**_adam(it), "amsgrad": False}),
    "adamw": _Form(
        _MOMENTS,
        {**_BETAS, "wd": 0.01},
        lambda it: {**_adam(it), "amsgrad": False},
    ),
    "adamax": _Form(
        ("exp_avg", "exp_inf"), {**_BETAS, "learning_rate": 0.002, "epsilon": 0.0}, _adam
    ),
    "nadam": _Form(
        _MOMENTS,
        {**_BETAS, "schedule_decay": 0.004},
        lambda it: {**_adam(it), "momentum_decay": it["schedule_decay"]},
        product="mu_product",
    ),
    "adagrad": _Form(
        ("sum",),
        {"learning_rate": 0.01, "wd": 0.0, "eps": 1e-7},
        lambda it: {"eps": it["eps"], "lr_decay": 0, "initial_accumulator_value": 0},
    ),
    "rmsprop": _Form(
        ("square_avg",),
        {"learning_rate": 0.001, "wd": 0.0, "gamma1": 0.9, "epsilon": 1e-8},
        lambda it: {
            "alpha": it["gamma1"],
            "eps": it["epsilon"],
            "momentum": 0,
            "centered": False,
        },
    ),
    "adadelta": _Form(
        ("square_avg", "acc_delta"),
        {"learning_rate": 1.0, "wd": 0.0, "rho": 0.9, "epsilon": 1e-5},
        # The library's has no rate.
        lambda it: {"lr": 1.0, "rho": it["rho"], "eps": it["epsilon"]},
    ),
}


def _form_of(call: str, group: ParameterGroup) -> _Form:
    form = _FORMS.get(group.rule.lower())
    if form is None or group.options.get("centered"):
        raise kvstore.UnsupportedError(
            f"{call}: PyTorch's form has no states of {group.rule}; use save() and load()"
        )
    return form


def states_of(
    store: KVStore, groups: list[ParameterGroup], of_pytorch: list[dict[str, Any]]
) -> dict[str, Any]:
    """What state_dict() of PyTorch's optimizer of this rule would give.

    States have the precision of the store. The master of a narrow parameter is a state, too.
    """
    forms = [_form_of("state_dict", group) for group in groups]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "states")
        store.save(path)
        _, tensors = read(path)
    updates = _tensor(tensors["#updates"]).tolist()
    carried = _tensor(tensors["#carried"]).tolist()
    state: dict[int, dict[str, Any]] = {}
    packed, place = [], 0
    for form, group, theirs in zip(forms, groups, of_pytorch):
        options = {**form.defaults, **group.options}
        rate = theirs.get("lr", options["learning_rate"])
        for name in group.names:
            if updates[place] > 0:
                state[place] = _state_of(form, tensors, name, updates[place], carried[place], rate)
            place += 1
        places = list(range(place - len(group.names), place))
        about = {**theirs, "lr": rate, "weight_decay": options["wd"], **form.group(options)}
        packed.append({**about, "params": places})
    return {"state": state, "param_groups": packed}


def _state_of(
    form: _Form,
    tensors: dict[str, FileTensor],
    name: str,
    updates: int,
    carried: float,
    rate: float,
) -> dict[str, Any]:
    state: dict[str, Any] = {"step": torch.tensor(float(updates))} if form.has_steps else {}
    if form.product is not None:
        state[form.product] = torch.tensor(1 - carried, dtype=torch.float64)
    for number, field in enumerate(form.states):
        there = tensors.get(f"#state.{number}:{key_of(name)}")
        if there is not None:
            value = _tensor(there).clone()
            state[field] = value.div_(-_divisor(name, rate)) if form.is_velocity else value
    master = tensors.get(f"#master:{key_of(name)}")
    if master is not None:
        state["master"] = _tensor(master).clone()
    return state


def _divisor(name: str, rate: float) -> float:
    if rate == 0:
        raise kvstore.UnsupportedError(
            f"state_dict: `{name}`: momenta are in the learning rate, which is 0; use save()"
        )
    return rate


def load_states(
    store: KVStore,
    groups: list[ParameterGroup],
    of_pytorch: list[dict[str, Any]],
    parameters: list[torch.Tensor],
    states: dict[int, dict[str, Any]],
) -> None:
    """Gives a store the weights of parameters in host memory, and states of PyTorch's form."""
    forms = [_form_of("load_state_dict", group) for group in groups]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "states")
        # For the texts of rule and options.
        store.save(path)
        texts, _ = read(path)
        items = list(_items(forms, groups, of_pytorch, parameters, states))
        write(path, texts, items)
        store.load(path)


def _items(
    forms: list[_Form],
    groups: list[ParameterGroup],
    of_pytorch: list[dict[str, Any]],
    parameters: list[torch.Tensor],
    states: dict[int, dict[str, Any]],
) -> Iterator[tuple[str, FileTensor]]:
    updates, carried, place = [], [], 0
    for form, group, theirs in zip(forms, groups, of_pytorch):
        rate = theirs.get("lr", form.defaults["learning_rate"])
        for name in group.names:
            value, state = parameters[place], states.get(place, {})
            place += 1
            yield key_of(name), _file_tensor(value)
            steps = float(state.get("step", 1)) if state else 0
            updates.append(int(steps))
            carried.append(1 - float(state.get(form.product, 1)) if form.product else 0.0)
            if not state:
                continue
            precision = torch.float64 if value.dtype == torch.float64 else torch.float32
            for number, field in enumerate(form.states):
                given = state.get(field)
                if given is None and form.is_velocity:
                    continue
                wide = _checked(name, field, given, value).to("cpu", precision)
                wide = wide * -rate if form.is_velocity else wide
                yield f"#state.{number}:{key_of(name)}", _file_tensor(wide)
            if group.options.get("multi_precision") and value.dtype != precision:
                master = _checked(name, "master", state.get("master", value), value)
                yield f"#master:{key_of(name)}", _file_tensor(master.to("cpu", precision))
    yield "#updates", _file_tensor(torch.tensor(updates, dtype=torch.int64))
    yield "#carried", _file_tensor(torch.tensor(carried, dtype=torch.float64))


def _checked(name: str, field: str, given: Any, value: torch.Tensor) -> torch.Tensor:
    if not isinstance(given, torch.Tensor):
        raise kvstore.InvalidArgumentError(f"load_state_dict: `{name}` has no {field}")
    if given.shape != value.shape:
        raise kvstore.ShapeMismatchError(
            f"load_state_dict: {field} of `{name}` is {list(given.shape)}, and the parameter "
            f"{list(value.shape)}"
        )
    return given.detach()


def _tensor(of_file: FileTensor) -> torch.Tensor:
    dtype = _OF_CODES[of_file.dtype]
    if of_file.data.nbytes == 0:
        return torch.empty(of_file.shape, dtype=dtype)
    return torch.frombuffer(of_file.data, dtype=dtype).view(of_file.shape)


def _file_tensor(tensor: torch.Tensor) -> FileTensor:
    data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return FileTensor(_DTYPES[tensor.dtype], list(tensor.shape), memoryview(data))
