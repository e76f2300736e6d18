"""An optimizer of PyTorch whose gradients are averaged over all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Callable, Optional, Union

import torch

import kvstore

from . import _collectives
from ._gradients import Gradients, named_parameters
from ._job import Job, job

_Named = Union[torch.nn.Module, Iterable[tuple[str, torch.nn.Parameter]]]


class Distributed:
    """What the class of an optimizer gains."""

    _kv: _Averaging

    def synchronize(self) -> None:
        """Averages the gradients now, unless that has been done since the last step."""
        self._kv.ensure_averaged()

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside leave gradients as they are; the next one outside averages all.

        A step inside uses the gradients of this rank alone.
        """
        return self._kv.gradients.suspended()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """torch.nn.utils.clip_grad_norm_() of the averaged gradients; all ranks clip equally."""
        self._kv.ensure_averaged()
        parameters = self._kv.gradients.parameters
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def save_residuals(self, path: Any) -> None:
        """Saves what the codec of `compression` has not sent yet, of all ranks, by a call of all.

        state_dict(), which each rank calls for itself, has no part of it.
        """
        self._kv.store_of_codec("save_residuals").save(path)

    def load_residuals(self, path: Any) -> None:
        """Goes on with residuals of save_residuals(), by a call of as many ranks."""
        self._kv.store_of_codec("load_residuals").load(path)

    def join(self) -> AbstractContextManager[None]:
        """A context for loops in which ranks have unequal numbers of batches.

        A rank that is through with its own takes part until all are, and the mean is that of the
        ranks which contribute. Then all have the parameters and the state of a rank that has made
        all steps. May be entered again, such as in each epoch.

        >>> with optimizer.join():
        ...     for inputs, labels in loader:
        ...         train(inputs, labels)
        """
        return self._kv.join()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients."""
        self._kv.gradients.averaged = False
        super().zero_grad(set_to_none)  # type: ignore[misc]


class _Averaging:
    """The gradients of an optimizer, and what its steps do with them."""

    def __init__(
        self, of: Job, optimizer: torch.optim.Optimizer, model: Any, gradients: Gradients
    ) -> None:
        self.gradients = gradients
        self._job = of
        self._optimizer = optimizer
        self._model = model
        self._steps = 0
        self._known = {id(each) for each in gradients.parameters}
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def store_of_codec(self, call: str) -> kvstore.KVStore:
        if not self.gradients.has_own_store:
            raise kvstore.UnsupportedError(
                f"{call}: this optimizer has no residuals; pass compression to DistributedOptimizer"
            )
        return self.gradients.store

    def ensure_averaged(self) -> None:
        if not (self.gradients.averaged or self.gradients.is_suspended):
            self.gradients.average()

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Optional[tuple[tuple[Any, ...], dict[str, Any]]]:
        self._refuse_new_parameters()
        # The optimizer itself comes first.
        if len(args) > 1 and args[1] is not None:
            return (args[0], self._averaged(args[1]), *args[2:]), kwargs
        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": self._averaged(kwargs["closure"])}
        self.ensure_averaged()
        return None

    def _after_step(self, *_: Any) -> None:
        self._steps += 1
        self.gradients.averaged = False

    def _averaged(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """A closure after which gradients and loss are those of all ranks, which so step alike."""

        def evaluate() -> Any:
            self.gradients.averaged = False
            loss = closure()
            self.ensure_averaged()
            return loss if loss is None else _collectives.allreduce(loss)

        return evaluate

    def _refuse_new_parameters(self) -> None:
        for number, group in enumerate(self._optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                if parameter.grad is not None and id(parameter) not in self._known:
                    raise kvstore.UnsupportedError(
                        f"step: parameter {place} of group {number}, {list(parameter.shape)}, was "
                        "frozen or unknown when DistributedOptimizer was made; make it afterwards"
                    )

    @contextmanager
    def join(self) -> Iterator[None]:
        yield
        if self._job.size == 1:
            return
        while self.gradients.attend():
            pass
        counts = [(each["steps"], each["round"]) for each in self._gathered()]
        root = max(range(len(counts)), key=lambda rank: counts[rank][0])
        self._steps, self.gradients.round = counts[root]
        if min(counts)[0] < self._steps:
            _collectives.broadcast_parameters(_state_of(self._model, self.gradients), root)
            _collectives.broadcast_optimizer_state(self._optimizer, root)

    def _gathered(self) -> list[dict[str, int]]:
        mine = {"steps": self._steps, "round": self.gradients.round}
        return _collectives.allgather_object(mine)


def _state_of(model: Any, gradients: Gradients) -> Any:
    if isinstance(model, torch.nn.Module):
        return model
    return [(str(place), each) for place, each in enumerate(gradients.parameters)]


def DistributedOptimizer(  # noqa: N802  It stands for a class, as in other packages.
    optimizer: torch.optim.Optimizer,
    model: _Named,
    *,
    overlap: bool = False,
    backward_passes_per_step: int = 1,
    compression: Union[str, dict[str, Any], None] = None,
) -> Any:
    """Makes an optimizer data-parallel: gradients become their mean over all ranks.

    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> optimizer = kvstore.torch.DistributedOptimizer(optimizer, model)

    Gives the optimizer itself, whose class has gained the methods of `kvstore.torch.Distributed`:
    its groups, state, hooks and schedulers stay. All ranks begin with the parameters and buffers of
    rank 0. Gradients are averaged before `backward()` returns, so clipping, scalers and logging see
    the mean. `zero_grad`, `state_dict` and schedulers work as before; in a step with a closure
    the loss is averaged, too.

    `model` is the module, or pairs of names and parameters: keys and errors have these names. A
    rank with another model is an error on all ranks.

    One call sends all gradients at the end of backward, which is fast where processors are busy
    with backward. `overlap` sends each of more than 16 KiB as soon as backward has it.

    With `backward_passes_per_step=n` gradients are averaged at each n-th backward pass, as the sum
    of these passes; scale the loss as for one process. Without it use `no_sync()`.

    `compression` is the name of a codec, or a dict of its options with the name as "type", such as
    {"type": "2bit", "threshold": 0.5}. Only the gradients of this optimizer are compressed.
    """
    if isinstance(optimizer, Distributed):
        raise kvstore.InvalidArgumentError("DistributedOptimizer: it is distributed already")
    if getattr(optimizer, "steps_in_backward", False):
        raise kvstore.InvalidArgumentError(
            "DistributedOptimizer: this optimizer steps in backward, before gradients are averaged"
        )
    if backward_passes_per_step < 1:
        raise kvstore.InvalidArgumentError(
            f"DistributedOptimizer: backward_passes_per_step is {backward_passes_per_step}"
        )
    of = job()
    named = named_parameters(optimizer, model)
    store = _store_of(of, compression)
    gradients = Gradients(of, store, named, overlap, backward_passes_per_step)
    if isinstance(model, torch.nn.Module):
        _broadcast_others(model, gradients)
    kind = optimizer.__class__
    optimizer.__class__ = type(kind.__name__, (Distributed, kind), {"__module__": kind.__module__})
    optimizer._kv = _Averaging(of, optimizer, model, gradients)
    return optimizer


def _broadcast_others(model: torch.nn.Module, gradients: Gradients) -> None:
    """Buffers, and parameters that no gradient changes."""
    known = {id(each) for each in gradients.parameters}
    state = model.state_dict(keep_vars=True)
    others = {name: each for name, each in state.items() if id(each) not in known}
    _collectives.broadcast_parameters(others)


def _store_of(of: Job, compression: Union[str, dict[str, Any], None]) -> kvstore.KVStore:
    """The store for gradients. A codec holds for a whole store, so it has one of its own."""
    if compression is None:
        return of.store
    params = {"type": compression} if isinstance(compression, str) else dict(compression)
    store = of.another_store()
    store.set_gradient_compression(params)
    return store
