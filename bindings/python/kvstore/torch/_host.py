"""An optimizer in host memory, with float32 masters, that steps while backward goes on."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

import kvstore
from kvstore import Ticket

from ._staging import Arrivals, refuse_without_memory
from ._stored import Named, StoredOptimizer, loss_of, trained

_NARROW = (torch.bfloat16, torch.float16)


class HostOptimizer(StoredOptimizer):
    """A rule of the library over the parameters of this process, in a store of its own.

    >>> optimizer = kvstore.torch.HostOptimizer("adamw", model, lr=1e-3, wd=0.01)

    Parameters of bfloat16 and float16 have a master in float32, with its states. A parameter
    without a gradient is not stepped. Nothing is compiled, and bits do not depend on `threads`, the
    number of threads that work on a step; None is all processors.

    With `overlap` each parameter is stepped as soon as backward has its gradient, on threads of the
    library, at the n-th pass if `backward_passes_per_step` is n, and step() waits for them. There
    is no clipping then, which needs all gradients first.

    Parameters on an accelerator stay there: gradients leave through pinned memory, with `overlap`
    during backward, and weights come back in their dtype.

    Without `overlap` it may be given to DistributedOptimizer: each rank keeps all states then,
    where ServerOptimizer divides them among the ranks. `rule` and `params` are as there.
    """

    def __init__(
        self,
        rule: str,
        model: Named,
        *,
        overlap: bool = False,
        backward_passes_per_step: int = 1,
        threads: Optional[int] = None,
        **params: Any,
    ) -> None:
        named = trained(model)
        refuse_without_memory("HostOptimizer", named)
        narrow = any(each.dtype in _NARROW for _, each in named)
        store = kvstore.create("local", **({} if threads is None else {"threads": threads}))
        super().__init__(store, named, rule, {"multi_precision": narrow, **params})
        self._passes = backward_passes_per_step
        # The passes since a parameter's last step, and the steps at work.
        self._passed = [0] * len(named)
        self._tickets: dict[int, Ticket] = {}
        # Gradients that are copied to host memory, by place.
        self._copied = Arrivals()
        self.steps_in_backward = overlap
        if overlap:
            self._places = {id(each): place for place, each in enumerate(self._parameters)}
            for each in self._parameters:
                each.register_post_accumulate_grad_hook(self._accumulated)

    def _accumulated(self, parameter: torch.nn.Parameter) -> None:
        place = self._places[id(parameter)]
        if place in self._tickets or place in self._copied:
            raise RuntimeError(
                f"`{self._names[place]}`: a second gradient before step(); pass "
                "backward_passes_per_step"
            )
        self._passed[place] += 1
        if self._passed[place] == self._passes:
            self._passed[place] = 0
            if not self._tickets and not self._copied:
                self._set_rate()
            gradient = parameter.grad
            assert gradient is not None
            self._copied.add(place, self._copies.begin(place, gradient))
            self._step_copied(wait=False)

    def _step_copied(self, wait: bool) -> None:
        """Begins the steps of parameters whose gradients are in host memory."""
        for place in self._copied.take(wait):
            parameter = self._parameters[place]
            assert parameter.grad is not None
            [value] = self._copies.hosts([place], [parameter.grad.detach()])
            [out] = self._copies.hosts([place], [parameter])
            self._tickets[place] = self._store.pushpull_async(self._names[place], value, out=out)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Steps all parameters that have a gradient, or waits for the steps of backward."""
        loss = loss_of(closure)
        if self.steps_in_backward:
            self._step_copied(wait=True)
            tickets, self._tickets = self._tickets, {}
            for place, ticket in tickets.items():
                ticket.wait()
                self._copies.to_device([place], [self._parameters[place]])
            return loss
        self._set_rate()
        with_gradient = [
            (place, each.grad)
            for place, each in enumerate(self._parameters)
            if each.grad is not None
        ]
        self._pushpull(
            [place for place, _ in with_gradient], [gradient for _, gradient in with_gradient]
        )
        return loss
