"""A table of embeddings on the servers, of which a rank holds the rows of its batch."""

from __future__ import annotations

from typing import Any, Optional

import torch

from kvstore import KVStore
from kvstore._agreement import agree

from ._job import job

_KEY = "embedding"


class _Fetch:
    """Rows that are under way."""

    def __init__(self, store: KVStore, ids: torch.Tensor, dim: int) -> None:
        self.ids = ids
        unique, self.places = torch.unique(ids, return_inverse=True)
        self.unique = unique.cpu()
        self._rows = torch.empty(len(unique), dim)
        self._ticket = store.pull_rows_async(_KEY, self.unique, out=self._rows)

    def wait(self) -> torch.Tensor:
        self._ticket.wait()
        return self._rows.to(self.ids.device)

    def cancel(self) -> None:
        self._ticket.cancel()


class Embedding(torch.nn.Module):
    """An embedding whose table is on the servers, with an optimizer of its own there.

    >>> table = kvstore.torch.Embedding(10_000_000, 64, "adagrad", learning_rate=0.05)
    >>> hidden = table(ids)
    >>> loss.backward()
    >>> table.step()

    A forward pass fetches the rows of the batch, each once; step() sends their gradients, and the
    servers change these rows by `rule`, a rule of the library with `lazy_update`: "sgd", "adagrad",
    "adam" and the others that have it. All ranks call step() equally often, also with no ids.
    Gradients are averaged over the ranks. Rows begin with a normal distribution, as those of
    torch.nn.Embedding, multiplied by `scale`. Rows are on the device of their ids.
    """

    def __init__(
        self, rows: int, dim: int, rule: str = "adagrad", *, scale: float = 1.0, **params: Any
    ) -> None:
        super().__init__()
        of = job()
        self.num_embeddings, self.embedding_dim = rows, dim
        agree(of.store, "Embedding", [f"the table: float32[{rows}, {dim}]"])
        self._store = of.another_store()
        # The values of rank 0 count; the other ranks give the shape.
        table = torch.randn(rows, dim).mul_(scale) if of.rank == 0 else torch.zeros(1, 1)
        if of.rank != 0:
            table = table.expand(rows, dim)
        self._store.init(_KEY, table)
        self._store.set_optimizer(rule, rescale_grad=1 / of.size, lazy_update=True, **params)
        self._used: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._next: Optional[_Fetch] = None

    def prefetch(self, ids: torch.Tensor) -> None:
        """Begins to fetch the rows of the next batch in the background.

        Called behind step(), they are those that step() leaves; called before it, they lack it.
        """
        self._drop()
        self._next = _Fetch(self._store, ids, self.embedding_dim)

    def _drop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of some ids, of any shape."""
        fetch, self._next = self._next, None
        if fetch is not None and not torch.equal(fetch.ids, ids):
            fetch.cancel()
            fetch = None
        if fetch is None:
            fetch = _Fetch(self._store, ids, self.embedding_dim)
        rows = fetch.wait()
        if torch.is_grad_enabled():
            rows.requires_grad_()
            self._used.append((fetch.unique, rows))
        return torch.nn.functional.embedding(fetch.places, rows)

    def step(self) -> None:
        """Sends the gradients of all rows since the last step; a call of all ranks."""
        used = [(ids, rows.grad.cpu()) for ids, rows in self._used if rows.grad is not None]
        self._used = []
        ids = torch.cat([torch.empty(0, dtype=torch.int64), *(ids for ids, _ in used)])
        rows = torch.cat([torch.empty(0, self.embedding_dim), *(rows for _, rows in used)])
        self._store.push_rows(_KEY, ids, rows)

    def table(self) -> torch.Tensor:
        """A copy of the whole table."""
        whole = torch.empty(self.num_embeddings, self.embedding_dim)
        self._store.pull(_KEY, out=whole)
        return whole

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Changes an option of the rule, such as "learning_rate"; a call of all ranks."""
        self._store.set_hyperparameter(name, value)

    def save(self, path: Any) -> None:
        """Saves the table and its states as KVStore.save(), by a call of all ranks."""
        self._store.save(path)

    def load(self, path: Any) -> None:
        """Loads a file of save(), by a call of all ranks."""
        self._store.load(path)

    def extra_repr(self) -> str:
        """What a printed model says of it."""
        return f"{self.num_embeddings}, {self.embedding_dim}"
