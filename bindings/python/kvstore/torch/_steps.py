"""Steps that run while the program goes on: during backward, or until the next step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Callable, Optional

import torch

from kvstore import Ticket

from ._staging import Arrivals
from ._stored import StoredParameters


class StepsInBackward:
    """Begins the step of a parameter as soon as backward has its gradient.

    That is the gradient behind the `passes`-th pass. Parameters of less than `least_bytes` are left
    to begin(), and while `is_held` is set, all are, to be one step. `prepare` is called before the
    first step of a round. A round ends with begin(), and its weights come later.
    """

    is_held = False
    # What a program does behind a pass that has failed.
    else_do = ""

    def __init__(
        self, keys: StoredParameters, passes: int, least_bytes: int, prepare: Callable[[], None]
    ) -> None:
        self._keys = keys
        self._passes = passes
        self._prepare = prepare
        # By place: passes since the last step, gradients that are copied to host memory, steps of
        # this round, and of the last one whose weights have not been taken.
        self._passed = [0] * len(keys.names)
        self._copied = Arrivals()
        self._tickets: dict[int, Ticket] = {}
        self._coming: dict[int, Ticket] = {}
        self._places = {id(each): place for place, each in enumerate(keys.parameters)}
        for each in keys.parameters:
            if each.numel() * each.element_size() >= least_bytes:
                each.register_post_accumulate_grad_hook(self._accumulated)

    def places_of(self, parameters: Iterable[torch.nn.Parameter]) -> list[int]:
        """The places of those that are stepped."""
        return [self._places[id(each)] for each in parameters if id(each) in self._places]

    def _accumulated(self, parameter: torch.nn.Parameter) -> None:
        place = self._places[id(parameter)]
        if place in self._coming:
            raise RuntimeError(
                f"`{self._keys.names[place]}`: a gradient of the weights before the last step, as "
                "they were used outside of their module; call wait_for_weights() before the pass"
            )
        is_begun = place in self._tickets or place in self._copied
        if is_begun or self._passed[place] == self._passes:
            raise RuntimeError(
                f"`{self._keys.names[place]}`: a second gradient before step(); pass "
                f"backward_passes_per_step{self.else_do}"
            )
        self._passed[place] += 1
        if self._passed[place] == self._passes and not self.is_held:
            self._prepare_first()
            gradient = parameter.grad
            assert gradient is not None
            self._copied.add(place, self._keys.copies.begin(place, gradient))
            self._begin_copied(wait=False)

    def _prepare_first(self) -> None:
        if not self._tickets and not self._copied:
            self._prepare()

    def _begin_copied(self, wait: bool) -> None:
        for place in self._copied.take(wait):
            gradient = self._keys.parameters[place].grad
            assert gradient is not None
            self._begin([place], self._keys.copies.hosts([place], [gradient.detach()]))

    def _begin(self, places: Sequence[int], values: list[torch.Tensor]) -> None:
        ticket = self._keys.begin_step(places, values)
        self._tickets.update((place, ticket) for place in places)

    def begin(self, gradient_of: Callable[[torch.nn.Parameter], Optional[torch.Tensor]]) -> None:
        """Begins the steps that backward has not begun, with the gradients that a function gives.

        A parameter for which it gives None is not stepped.
        """
        self.finish()
        self._prepare_first()
        self._begin_copied(wait=True)
        self._passed = [0] * len(self._passed)
        rest = {
            place: gradient_of(each)
            for place, each in enumerate(self._keys.parameters)
            if place not in self._tickets
        }
        gradients = {place: each for place, each in rest.items() if each is not None}
        if gradients:
            places = list(gradients)
            self._begin(places, self._keys.copies.to_host(places, list(gradients.values())))
        self._coming, self._tickets = self._tickets, {}

    def leave(self) -> list[int]:
        """Ends a round without begin(), as its pass has failed. Gives the places of its steps."""
        self.finish()
        self._passed = [0] * len(self._passed)
        if not self._tickets and not self._copied:
            return []
        # Copies that are under way end too: the next pass uses their memory again.
        self._begin_copied(wait=True)
        self._coming, self._tickets = self._tickets, {}
        return self.end()

    def finish(self, places: Optional[Sequence[int]] = None) -> None:
        """Waits for weights of the last round that have not come: of some parameters, or all."""
        for place in self._end(list(self._coming) if places is None else places):
            self._keys.take_step(place)

    def end(self) -> list[int]:
        """Waits for the steps of the last round, whose places it gives; leaves their weights."""
        return list(self._end(list(self._coming)))

    def _end(self, places: Sequence[int]) -> Iterator[int]:
        for place in places:
            ticket = self._coming.get(place)
            if ticket is None:
                continue
            try:
                ticket.wait()
            except BaseException:
                # What is lent stays so until its operations have ended.
                for other in self._coming.values():
                    other.cancel()
                self._coming = {}
                raise
            del self._coming[place]
            yield place


class LateSteps:
    """Steps whose weights are taken by the next one; parameters are not written meanwhile."""

    def __init__(self, keys: StoredParameters) -> None:
        self._keys = keys
        self._outs = [
            torch.empty_like(each, requires_grad=False) if host is each else host
            for each, host in zip(keys.parameters, keys.hosts())
        ]
        self._places: list[int] = []
        self._ticket: Optional[Ticket] = None

    def begin(self, places: list[int], gradients: list[torch.Tensor]) -> None:
        """Begins to step some parameters, with gradients that nothing changes any more."""
        self.finish()
        hosts = self._keys.copies.to_host(places, gradients)
        self._places = places
        self._ticket = self._keys.begin_step(places, hosts, [self._outs[place] for place in places])

    def finish(self) -> None:
        """Waits for the last step, and has its weights."""
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            return
        ticket.wait()
        for place in self._places:
            self._keys.take_step(place, self._outs[place])
