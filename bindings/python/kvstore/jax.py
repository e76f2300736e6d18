"""Sums, means and optimizers over the processes of a job, for trees of JAX arrays.

    import kvstore.jax

    gradients = kvstore.jax.allreduce(gradients)        # the mean over all processes

Started by `kvstore run -n 4 -- python train.py`, mpirun, srun or torchrun, or alone. Also inside of
jax.jit. docs/use/frameworks/jax.md has an example.
"""

from __future__ import annotations

import atexit
import hashlib
from typing import Any, Optional

try:
    import jax as _jax
    import jax.numpy as _jnp
    from jax.experimental import io_callback as _io_callback
except ImportError as missing:
    raise ImportError("kvstore.jax needs JAX: pip install jax") from missing

import numpy as np

import kvstore
from kvstore import KVStore

from ._launched import LaunchedJob

__all__ = ["Optimizer", "allreduce", "broadcast", "init", "rank", "shutdown", "size", "store"]

_OPERATIONS = ("mean", "sum")

_job = LaunchedJob()
atexit.register(_job.leave_at_exit)
# Lists of keys that have been made, by the structure of their trees.
_known: dict[str, list[str]] = {}


def init(**options: Any) -> KVStore:
    """Joins the job of this process, or opens a local store where no launcher has started it.

    The first other call does it, too. Options are those of kvstore.create().
    """
    return _job.join(options)


def store() -> KVStore:
    """The store of init(), for keys of your own."""
    return init()


def rank() -> int:
    """The rank of this process, from 0."""
    return init().rank


def size() -> int:
    """The number of processes."""
    return init().num_workers


def shutdown(timeout: Optional[float] = None) -> None:
    """Leaves the job, which may wait for the others; the end of the program does it, too."""
    _job.leave(timeout)
    _known.clear()


def _leaves(tree: Any) -> tuple[list[str], list[Any], Any]:
    """The names of the leaves of a tree, the leaves, and how to put them together."""
    paths, structure = _jax.tree_util.tree_flatten_with_path(tree)
    names = [_jax.tree_util.keystr(path) for path, _ in paths]
    return names, [leaf for _, leaf in paths], structure


def _shape_of(leaf: Any) -> Any:
    leaf = _jnp.asarray(leaf) if not hasattr(leaf, "dtype") else leaf
    return _jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _keys_of(what: str, names: list[str], arrays: list[np.ndarray[Any, Any]]) -> list[str]:
    """The keys of a tree, which all processes make alike at its first use."""
    parts = [f"{name} {each.dtype} {each.shape}" for name, each in zip(names, arrays)]
    tree = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    known = f"{what}/{tree}"
    if known not in _known:
        keys = [f"{known}{name}" for name in names]
        # Rank 0's shapes count; another tree on a rank has other keys, whose wait names it.
        init().init(keys, [np.zeros_like(each) for each in arrays])
        _known[known] = keys
    return _known[known]


def _sum(names: list[str], op: str, *leaves: Any) -> list[np.ndarray[Any, Any]]:
    arrays = [np.asarray(leaf, order="C") for leaf in leaves]
    keys = _keys_of("allreduce", names, arrays)
    outs = [np.empty_like(each) for each in arrays]
    kv = init()
    kv.pushpull(keys, arrays, out=outs)
    if op == "mean":
        for each in outs:
            each /= kv.num_workers
    return outs


def allreduce(tree: Any, op: str = "mean") -> Any:
    """The mean or the sum of a tree of arrays over all processes, as new arrays.

    All processes call it with trees of one structure, in one order. Sums are in the order of ranks,
    so that the bits are the same on all, and from run to run. Inside of jax.jit it is an ordered
    callback of the host.
    """
    if op not in _OPERATIONS:
        raise kvstore.InvalidArgumentError(f'allreduce: op is {op!r}; use "mean" or "sum"')
    names, leaves, structure = _leaves(tree)
    if not leaves:
        return tree
    for name, leaf in zip(names, leaves):
        if op == "mean" and not _jnp.issubdtype(_shape_of(leaf).dtype, _jnp.inexact):
            raise kvstore.DtypeMismatchError(
                f'allreduce: {name} is {_shape_of(leaf).dtype}: integers have no mean; use op="sum"'
            )
    if any(isinstance(leaf, _jax.core.Tracer) for leaf in leaves):
        shapes = [_shape_of(leaf) for leaf in leaves]
        outs = _io_callback(
            lambda *values: _sum(names, op, *values), shapes, *leaves, ordered=True
        )
    else:
        outs = [_jnp.asarray(each) for each in _sum(names, op, *leaves)]
    return _jax.tree_util.tree_unflatten(structure, outs)


def broadcast(tree: Any) -> Any:
    """The tree of rank 0 for all processes, as new arrays."""
    names, leaves, structure = _leaves(tree)
    arrays = [np.asarray(leaf, order="C") for leaf in leaves]
    if rank() != 0:
        arrays = [np.zeros_like(each) for each in arrays]
    sums = _sum([f"{name}#broadcast" for name in names], "sum", *arrays)
    return _jax.tree_util.tree_unflatten(structure, [_jnp.asarray(each) for each in sums])


class Optimizer:
    """A rule of the library where the parameters are stored: on the servers of a job.

    >>> optimizer = kvstore.jax.Optimizer("adam", parameters, learning_rate=1e-3)
    >>> parameters = optimizer.step(gradients)

    All processes begin with the parameters of rank 0. Gradients are averaged. The rule and its
    options are those of KVStore.set_optimizer(), and hold for the keys of these parameters alone.
    """

    _made = 0

    def __init__(self, rule: str, parameters: Any, **options: Any) -> None:
        """Stores the parameters, which are to have this rule."""
        kv = init()
        names, leaves, self._structure = _leaves(parameters)
        self._keys = [f"optimizer {Optimizer._made}{name}" for name in names]
        Optimizer._made += 1
        options.setdefault("rescale_grad", 1 / kv.num_workers)
        kv.set_optimizer_for(self._keys, rule, **options)
        kv.init(self._keys, [np.asarray(leaf, order="C") for leaf in leaves])
        self._shapes = [np.empty(leaf.shape, leaf.dtype) for leaf in leaves]

    def parameters(self) -> Any:
        """The parameters as they are stored, as new arrays."""
        outs = [np.empty_like(each) for each in self._shapes]
        init().pull(self._keys, out=outs)
        return _jax.tree_util.tree_unflatten(self._structure, [_jnp.asarray(each) for each in outs])

    def step(self, gradients: Any) -> Any:
        """Sends gradients, and gives the new parameters; a call of all processes."""
        _, leaves, structure = _leaves(gradients)
        if structure != self._structure:
            raise kvstore.InvalidArgumentError(
                f"step: the gradients are {structure}, and the parameters {self._structure}"
            )
        outs = [np.empty_like(each) for each in self._shapes]
        arrays = [np.asarray(leaf, order="C") for leaf in leaves]
        init().pushpull(self._keys, arrays, out=outs)
        return _jax.tree_util.tree_unflatten(structure, [_jnp.asarray(each) for each in outs])

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Changes an option of the rule, such as "learning_rate"; a call of all processes."""
        kv = init()
        for key in self._keys:
            kv.set_hyperparameter(name, value, key)
