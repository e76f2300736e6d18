"""The mean of gradients over all ranks, at the end of each backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

import torch

import kvstore
from kvstore import KVStore, Ticket
from kvstore._agreement import agree, describe

from ._job import Job
from ._staging import Arrivals, HostCopies, refuse_without_memory
from ._units import units_of

# Places in the flags of a round, in front of one for each parameter.
_CONTRIBUTORS, _ROUND = 0, 1
_FIRST = 2
# Numbers of rounds start again at it: the sum over all ranks stays in an int32.
_ROUNDS = 1 << 14
_NO_PASS = -1
_FLAGS = "gradients "


class Gradients:
    """The gradients of some parameters as keys, which all ranks add up in rounds.

    A round is one list call, or a ticket for each large one during backward. A small key of
    integers goes with it: how many ranks contribute, the number of their round, and which
    parameters have a gradient. So the sum is divided by the ranks that contributed, and a parameter
    without a gradient on all ranks keeps none.
    """

    def __init__(
        self,
        of: Job,
        store: KVStore,
        named: list[tuple[str, torch.nn.Parameter]],
        overlap: bool,
        passes: int,
    ) -> None:
        self.store = store
        self.has_own_store = store is not of.store
        self._size = of.size
        self._names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self._places = {id(each): place for place, each in enumerate(self.parameters)}
        self._overlap = overlap
        self._passes = passes
        self._passed = 0
        # The backward pass at whose end this is called; one that fails never calls.
        self._queued_in = _NO_PASS
        self._suspended = False
        # By place, the sums that are under way, and what is copied to host memory for one.
        self._tickets: dict[int, Ticket] = {}
        self._copied = Arrivals()
        self._round = 0
        self._flags = torch.zeros(_FIRST + len(named), dtype=torch.int32)
        # Whether a step would use gradients of this rank alone.
        self.averaged = False
        if of.size > 1 and named:
            self._create_keys(of)
            for parameter in self.parameters:
                parameter.register_post_accumulate_grad_hook(self._accumulated)

    def _create_keys(self, of: Job) -> None:
        refuse_without_memory("DistributedOptimizer", list(zip(self._names, self.parameters)))
        lines = [describe(name, each) for name, each in zip(self._names, self.parameters)]
        agree(of.store, "DistributedOptimizer", lines)
        taken: set[str] = set() if self.has_own_store else of.keys
        count = sum(key.startswith(_FLAGS) for key in taken)
        # Errors name this key where a rank is missing from a round as a whole.
        self._flags_key = f"{_FLAGS}{count}: `{self._names[0]}` to `{self._names[-1]}`"
        suffix = f" ({count})" if taken.intersection(self._names) else ""
        # A codec may choose among the values of a key, so with one each has its own.
        self._units = units_of(self._names, self.parameters, suffix, fuse=not self.has_own_store)
        self._all = range(len(self._units))
        self._alone = {
            unit.places[0]: number for number, unit in enumerate(self._units) if not unit.is_fused
        }
        self._copies = HostCopies([unit.value(self.parameters) for unit in self._units])
        taken.update(self._names, [self._flags_key])
        self._begin([self._flags_key, *(unit.key for unit in self._units)])

    def _begin(self, keys: list[str]) -> None:
        """The first value of a key is that of rank 0: parameters, which all ranks begin with."""
        parameters = [each.detach() for each in self.parameters]
        values = [unit.gather(parameters) for unit in self._units]
        hosts = self._copies.to_host(self._all, values)
        self.store.init(keys, [self._flags, *hosts])
        self.store.pull(keys[1:], out=hosts)
        self._copies.to_device(self._all, values)
        for unit in self._units:
            unit.scatter(parameters)

    # During backward.

    def _accumulated(self, parameter: torch.nn.Parameter) -> None:
        """Called by autograd when the gradient of a parameter is complete."""
        if self._suspended:
            return
        current = torch._C._current_graph_task_id()
        if self._queued_in != current:
            self._queued_in = current
            # At the end of this backward pass, as DistributedDataParallel does it.
            torch.autograd.Variable._execution_engine.queue_callback(self._passed_backward)
        if self._overlap and self._passed + 1 == self._passes:
            self._send(parameter)

    def _send(self, parameter: torch.nn.Parameter) -> None:
        place = self._places[id(parameter)]
        number = self._alone.get(place)
        if number is None:
            return
        if place in self._tickets or place in self._copied:
            raise RuntimeError(
                f"`{self._names[place]}`: a second gradient while its mean is under way; pass "
                "backward_passes_per_step, or use no_sync()"
            )
        self._copied.add(place, self._copies.begin(number, self._gradient(place, parameter)))
        self._send_copied(wait=False)

    def _send_copied(self, wait: bool) -> None:
        """Begins the sums of gradients that are in host memory, in their order."""
        for place in self._copied.take(wait):
            number, gradient = self._alone[place], self.parameters[place].grad
            assert gradient is not None
            [host] = self._copies.hosts([number], [gradient.detach()])
            self._tickets[place] = self.store.pushpull_async(self._units[number].key, host)

    def _passed_backward(self) -> None:
        self._queued_in = _NO_PASS
        self._passed += 1
        if self._passed >= self._passes:
            self.average()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Backward passes inside send nothing."""
        before, self._suspended = self._suspended, True
        try:
            yield
        finally:
            self._suspended = before

    @property
    def is_suspended(self) -> bool:
        return self._suspended

    # A round.

    def average(self) -> None:
        """Replaces each gradient by the mean over the ranks that contribute."""
        self._passed = 0
        self.averaged = True
        if self._size == 1 or not self._names:
            return
        self._round = (self._round + 1) % _ROUNDS
        gradients = self._contribution()
        try:
            self._send_copied(wait=True)
            rest = [
                number for number in self._all if self._units[number].places[0] not in self._tickets
            ]
            values = [self._units[number].gather(gradients) for number in rest]
            self.store.pushpull(
                [self._flags_key, *(self._units[number].key for number in rest)],
                [self._flags, *self._copies.to_host(rest, values)],
            )
            for ticket in self._tickets.values():
                ticket.wait()
        except BaseException:
            # Gradients that are lent stay so until their operations have ended.
            for ticket in self._tickets.values():
                ticket.cancel()
            raise
        finally:
            self._tickets = {}
            self._copied.clear()
        self._copies.to_device(self._all, [unit.value(gradients) for unit in self._units])
        self._take(gradients)

    def _contribution(self) -> list[torch.Tensor]:
        """What this rank pushes: its gradients, zeros where it has none, and the flags."""
        self._flags.fill_(1)
        self._flags[_ROUND] = self._round
        gradients = []
        for place, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            if gradient is None:
                gradient = torch.zeros_like(parameter, requires_grad=False)
                self._flags[_FIRST + place] = 0
            else:
                gradient = self._gradient(place, parameter)
            gradients.append(gradient)
        return gradients

    def _gradient(self, place: int, parameter: torch.nn.Parameter) -> torch.Tensor:
        gradient = parameter.grad
        if gradient is None or gradient.layout != torch.strided:
            raise kvstore.UnsupportedError(
                f"`{self._names[place]}` has a sparse gradient, which is not averaged; use "
                "kvstore.torch.Embedding, or sparse=False"
            )
        return gradient.detach()

    def _take(self, gradients: list[torch.Tensor]) -> None:
        contributors, rounds = self._flags[:_FIRST].tolist()
        if rounds != contributors * self._round:
            raise RuntimeError(
                f"this rank is at round {self._round} of its gradients, and the {contributors} "
                f"that contribute at {rounds / contributors:g} in the mean: ranks have made "
                "unequal numbers of backward passes; see join()"
            )
        if contributors > 1:
            torch._foreach_div_([unit.value(gradients) for unit in self._units], contributors)
        for unit in self._units:
            unit.scatter(gradients)
        present = self._flags[_FIRST:]
        for place in (present < contributors).nonzero().view(-1).tolist():
            parameter = self.parameters[place]
            if parameter.grad is None and present[place]:
                parameter.grad = gradients[place]

    # For ranks that have fewer batches.

    def attend(self) -> bool:
        """Takes part in a round without a contribution; False if no rank contributes any more."""
        self._flags.zero_()
        self.store.pushpull(self._flags_key, self._flags)
        contributors, rounds = self._flags[:_FIRST].tolist()
        if contributors == 0:
            return False
        self._round = rounds // contributors
        # A push without rows counts as a push; a scalar has no rows.
        values = [(unit.key, unit.value(self.parameters).detach()) for unit in self._units]
        tables = [(key, each[:0].cpu()) for key, each in values if each.dim() > 0]
        scalars = [
            (key, torch.zeros_like(each, device="cpu")) for key, each in values if each.dim() == 0
        ]
        none = torch.empty(0, dtype=torch.int64)
        self.store.push_rows(
            [key for key, _ in tables], [none] * len(tables), [rows for _, rows in tables]
        )
        self.store.push([key for key, _ in scalars], [zero for _, zero in scalars])
        return True

    @property
    def round(self) -> int:
        return self._round

    @round.setter
    def round(self, number: int) -> None:
        self._round = number


def named_parameters(
    optimizer: torch.optim.Optimizer, model: Any
) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters of an optimizer that require gradients, in its order, by the model's names."""
    pairs = model.named_parameters() if isinstance(model, torch.nn.Module) else model
    names: dict[int, str] = {id(parameter): name for name, parameter in pairs}
    named: list[tuple[str, torch.nn.Parameter]] = []
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            name: Optional[str] = names.get(id(parameter))
            if name is None:
                raise kvstore.InvalidArgumentError(
                    f"DistributedOptimizer: parameter {place} of group {number} of the optimizer, "
                    f"{list(parameter.shape)}, is not in the model"
                )
            if parameter.requires_grad:
                named.append((name, parameter))
    return named
