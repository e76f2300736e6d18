"""An optimizer in host memory, with float32 masters, that steps while backward goes on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch

import kvstore

from ._groups import Named, groups_of
from ._staging import refuse_without_memory
from ._states import load_states, states_of
from ._steps import LateSteps, StepsInBackward
from ._stored import StoredOptimizer, loss_of

_NARROW = (torch.bfloat16, torch.float16)


class HostOptimizer(StoredOptimizer):
    """A rule of the library over the parameters of this process, in a store of its own.

    >>> optimizer = kvstore.torch.HostOptimizer("adamw", model, lr=1e-3, wd=0.01)

    Parameters of bfloat16 and float16 have a master in float32, with its states. A parameter
    without a gradient is not stepped. Nothing is compiled, and bits do not depend on `threads`, the
    number of threads that work on a step; None is all processors.

    With `max_norm` gradients are scaled in each step by their global norm as by PyTorch's
    clip_grad_norm_(), and a step whose norm is not finite changes nothing; last_norm() gives it.

    With `overlap` each parameter is stepped as soon as backward has its gradient, on threads of the
    library, at the n-th pass if `backward_passes_per_step` is n, and step() waits for them. With
    `max_norm` as well, a step behind one that was not scaled begins before its norm is known
    (speculation): if it is too large then, the step is taken back and made anew. A step behind one
    that was scaled begins when all gradients are there. Bits are those without `overlap`; masters
    and states take twice the memory.

    With `late` step() begins to step all parameters on threads of the library, and returns with the
    weights of the step before: each gradient is one of weights that lack the step before it. The
    gradients are those of the step then, and `grad` is None. wait_for_weights() takes the last
    weights.

    Parameters on an accelerator stay there: gradients leave through pinned memory, with `overlap`
    during backward, and weights come back in their dtype.

    Without `overlap` it may be given to DistributedOptimizer: each rank keeps all states then,
    where ServerOptimizer divides them among the ranks. `rule`, `model` and `params` are as there.
    """

    def __init__(
        self,
        rule: str,
        model: Named,
        *,
        max_norm: Optional[float] = None,
        overlap: bool = False,
        late: bool = False,
        backward_passes_per_step: int = 1,
        threads: Optional[int] = None,
        **params: Any,
    ) -> None:
        if overlap and late:
            raise kvstore.InvalidArgumentError(
                "HostOptimizer: with late, steps run beside the next pass; leave overlap out"
            )
        groups = groups_of("HostOptimizer", rule, model, params)
        narrow = any(each.dtype in _NARROW for group in groups for each in group.parameters)
        for group in groups:
            refuse_without_memory("HostOptimizer", group.named)
            group.options.setdefault("multi_precision", narrow)
        store = kvstore.create("local", **({} if threads is None else {"threads": threads}))
        super().__init__(store, groups, rule)
        self._max_norm = max_norm
        if max_norm is not None:
            store.set_clipping(max_norm)
        self.steps_in_backward = overlap
        # Whether steps have begun that can be taken back.
        self._is_open = False
        self._late = LateSteps(self._keys) if late else None
        self._steps: Optional[StepsInBackward] = None
        if overlap:
            self._steps = StepsInBackward(
                self._keys, backward_passes_per_step, least_bytes=0, prepare=self._prepare
            )
            self._steps.else_do = ", or call zero_grad() behind a pass that has failed"
            # The first steps of a training are scaled, more often than not.
            self._steps.is_held = max_norm is not None

    def _prepare(self) -> None:
        """Comes before the first step of a round."""
        self._set_rates()
        if self._speculates():
            self._store.begin()
            self._is_open = True

    def _speculates(self) -> bool:
        """Whether steps begin before the norm of their gradients is known."""
        return self._max_norm is not None and not (self._steps is None or self._steps.is_held)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Steps all parameters that have a gradient, or waits for the steps of backward."""
        loss = loss_of(closure)
        if self._steps is not None:
            self._steps.begin(lambda parameter: parameter.grad)
            if self._speculates():
                self._settle(self._steps)
            else:
                self._steps.finish()
            if self._max_norm is not None:
                norm = self._store.last_norm().norm
                self._steps.is_held = not norm <= self._max_norm
            return loss
        self._set_rates()
        parameters = enumerate(self._keys.parameters)
        gradients = {place: each.grad for place, each in parameters if each.grad is not None}
        if self._late is None:
            self._keys.step(list(gradients), list(gradients.values()))
            return loss
        self._late.begin(list(gradients), list(gradients.values()))
        for place in gradients:
            self._keys.parameters[place].grad = None
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As of PyTorch's optimizers.

        With `overlap` it also ends the steps of a pass behind which no step() comes, as it has
        failed. With `max_norm` they are taken back; without, parameters that backward has stepped
        stay so, with a RuntimeWarning.
        """
        stepped = self._leave_pass()
        if stepped:
            warnings.warn(
                f"zero_grad: backward has stepped {stepped} of {len(self._keys.names)} parameters "
                "of a pass without a step(), and they stay so; with max_norm they are taken back",
                RuntimeWarning,
                stacklevel=2,
            )
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def _leave_pass(self) -> int:
        """Ends the steps of a pass behind which no step() has come; gives how many stay made."""
        if self._steps is None:
            return 0
        was_open = self._is_open
        try:
            places = self._steps.leave()
        finally:
            if was_open:
                self._take_back()
        if was_open:
            return 0
        for place in places:
            self._keys.take_step(place)
        return len(places)

    def _take_back(self) -> None:
        """Takes the steps back that have begun before their norm was known."""
        self._is_open = False
        self._store.rollback()
        self._keys.pull()

    def _settle(self, steps: StepsInBackward) -> None:
        """Ends steps that have begun before their norm was known."""
        places: Sequence[int] = range(len(self._keys.names))
        try:
            places = steps.end()
            outcome = self._store.commit()
            self._is_open = False
        except BaseException:
            self._take_back()
            raise
        if outcome == kvstore.Commit.KEPT:
            for place in places:
                self._keys.take_step(place)
        elif outcome == kvstore.Commit.SKIPPED:
            self._keys.pull(places)
        else:
            gradients = [self._keys.parameters[place].grad for place in places]
            self._keys.step(places, [each for each in gradients if each is not None])

    def save(self, path: Any) -> None:
        """Saves weights and states as KVStore.save() does.

        Steps that backward has begun are taken back first with `max_norm`, and step() makes them.
        """
        self._take_back_pass()
        super().save(path)

    def load(self, path: Any) -> None:
        """Loads a file of save() into the store and the model."""
        self._leave_pass()
        super().load(path)

    def _take_back_pass(self) -> None:
        """Takes the steps back that backward has begun, where that can be done."""
        if self._is_open:
            self._leave_pass()

    def last_norm(self) -> kvstore.LastNorm:
        """The norm of the gradients of the last step, before clipping, and the skipped steps.

        It is NaN without `max_norm`, and before the first step.
        """
        self.wait_for_weights()
        return self._store.last_norm()

    def wait_for_weights(self) -> None:
        """Takes the weights of the last step, if that is late."""
        if self._late is not None:
            with torch.no_grad():
                self._late.finish()

    def state_dict(self) -> dict[str, Any]:
        """The states, as state_dict() of PyTorch's optimizer with this rule has them: a copy.

        "sgd", "nag", "adam", "adamw", "adamax", "nadam", "adagrad", "rmsprop" and "adadelta" have
        such a form; `torch.optim` goes on with it. States of narrow parameters are float32, and
        the "master" is one more. It goes through a file in the folder of temporary files.
        """
        self._take_back_pass()
        self.wait_for_weights()
        return states_of(self._store, self._groups, self.param_groups)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes states of state_dict(), or of PyTorch's optimizer with this rule.

        Weights are those that the parameters have now, so a model is loaded first. Of options the
        learning rate is taken; the others are those of this optimizer.
        """
        self._leave_pass()
        self.wait_for_weights()
        theirs = state_dict["param_groups"]
        lengths = [len(group.names) for group in self._groups]
        if [len(group["params"]) for group in theirs] != lengths:
            raise kvstore.InvalidArgumentError(
                f"load_state_dict: groups of {[len(group['params']) for group in theirs]} "
                f"parameters, and this optimizer has {lengths}"
            )
        load_states(self._store, self._groups, theirs, self._keys.to_host(), state_dict["state"])
        for mine, group in zip(self.param_groups, theirs):
            mine["lr"] = group["lr"]
        self._keys.pull()
