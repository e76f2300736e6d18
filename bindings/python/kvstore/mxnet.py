"""Stores of this library for MXNet's Gluon and Module, by one word.

    import kvstore.mxnet

    trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore="kvstore")

The names are "kvstore" (a device store), "kvstore_local", "kvstore_device", "kvstore_dist_sync" and
"kvstore_dist_async". docs/use/frameworks/mxnet.md has what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Optional

try:
    import mxnet as _mx
except ImportError as missing:
    raise ImportError("kvstore.mxnet needs MXNet: pip install mxnet 'numpy<1.24'") from missing

import kvstore

__all__ = ["Store"]

# The rule of each class of MXNet, and its own options, which are attributes of the object.
_RULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "SGD": ("sgd", ("momentum",)),
    "NAG": ("nag", ("momentum",)),
    "Adam": ("adam", ("beta1", "beta2", "epsilon")),
    "AdamW": ("adamw", ("beta1", "beta2", "epsilon")),
    "Adamax": ("adamax", ("beta1", "beta2")),
    "Nadam": ("nadam", ("beta1", "beta2", "epsilon", "schedule_decay")),
    "AdaGrad": ("adagrad", ("float_stable_eps",)),
    "GroupAdaGrad": ("groupadagrad", ("float_stable_eps",)),
    "RMSProp": ("rmsprop", ("gamma1", "gamma2", "epsilon", "centered", "clip_weights")),
    "AdaDelta": ("adadelta", ("rho", "epsilon")),
    "Ftrl": ("ftrl", ("lamda1", "beta")),
    "FTML": ("ftml", ("beta1", "beta2", "epsilon")),
    "Signum": ("signum", ("momentum", "wd_lh")),
    "LAMB": (
        "lamb",
        ("beta1", "beta2", "epsilon", "lower_bound", "upper_bound", "bias_correction"),
    ),
    "LARS": ("lars", ("momentum", "eta", "eps", "momentum_correction")),
    "DCASGD": ("dcasgd", ("momentum", "lamda")),
    "Test": ("test", ()),
}
# Of all rules; each may change between two pushes.
_CHANGING = ("learning_rate", "wd", "rescale_grad")
_FIXED = ("clip_gradient", "multi_precision")


class Store(_mx.kvstore.KVStoreBase):
    """A store as Trainer and Module use it.

    An optimizer object is taken over by its figures, never by pickle: its class names the rule, and
    its attributes are the options. Its learning rate, also by a scheduler, weight decay,
    rescale_grad and multipliers are followed from push to push.
    """

    TYPE = "device"

    def __init__(self, **options: Any) -> None:
        """Creates the store of this type, with its options."""
        self._kv = kvstore.create(self.TYPE, **options)
        self._optimizer: Optional[Any] = None
        # What the store has been told: of all keys, and multipliers of single ones.
        self._told: dict[str, float] = {}
        self._multipliers: dict[tuple[Any, str], float] = {}

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether the store can run the optimizer, or has another feature of kvstore.capable()."""
        return kvstore.capable(capability.lower())

    @property
    def type(self) -> str:
        """The type, with "dist" in that of a job."""
        return self.TYPE

    @property
    def rank(self) -> int:
        """The rank of this worker."""
        return self._kv.rank

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return self._kv.num_workers

    def init(self, key: Any, value: Any) -> None:
        """Stores the first value of a key, or of each of a list."""
        self._kv.init(key, value)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Stores the value of rank 0, and copies it to the outs."""
        self._kv.broadcast(key, value, out, priority)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Adds up the values, and merges the sum."""
        self._follow(key)
        self._kv.push(key, value, priority)

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Copies what is stored to the outs."""
        self._kv.pull(key, out, priority)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Pushes the values, and copies the result to the outs, or to the values."""
        self._follow(key)
        self._kv.pushpull(key, value, value if out is None else out, priority)

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Refused: MXNet's sparse arrays are its own."""
        raise kvstore.UnsupportedError(
            f"row_sparse_pull: key {key!r}: sparse NDArrays are not taken; use pull_rows() and "
            "push_rows() of a store of kvstore.create() with dense rows"
        )

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Compresses pushes; parameters as in MXNet."""
        self._kv.set_gradient_compression(compression_params)

    def set_optimizer(self, optimizer: Any) -> None:
        """Takes over an optimizer: the rule of its class, with its options."""
        rule, names = self._rule_of(optimizer)
        # A scheduler counts the updates from here on.
        options = {name: getattr(optimizer, name) for name in (*_CHANGING, *_FIXED, *names)}
        options["begin_num_update"] = optimizer.begin_num_update
        # None is no option, and clip_weights of RMSProp is None or 0 without clipping.
        given = {name: each for name, each in options.items() if each is not None}
        if not given.get("clip_weights", True):
            del given["clip_weights"]
        self._kv.set_optimizer(rule, **given)
        self._optimizer = optimizer
        self._told = {name: float(options[name]) for name in _CHANGING}
        self._multipliers = {}

    @staticmethod
    def _rule_of(optimizer: Any) -> tuple[str, tuple[str, ...]]:
        for kind in type(optimizer).__mro__:
            # A class of the user's own may compute something else.
            if kind.__name__ in _RULES and kind.__module__.startswith("mxnet."):
                if kind is not type(optimizer):
                    break
                return _RULES[kind.__name__]
        raise kvstore.UnsupportedError(
            f"set_optimizer: there is no rule for {type(optimizer).__name__}; there are those of "
            f"{', '.join(_RULES)}; others work with update_on_kvstore=False"
        )

    def _follow(self, keys: Any) -> None:
        """Tells the store what has changed in the optimizer since the last push."""
        optimizer = self._optimizer
        if optimizer is None:
            return
        several = keys if isinstance(keys, (list, tuple)) else [keys]
        for key in dict.fromkeys(several):
            optimizer._update_count(key)
        for name in _CHANGING:
            value = float(getattr(optimizer, name))
            if value != self._told[name]:
                self._kv.set_hyperparameter(name, value)
                self._told[name] = value
        for key in dict.fromkeys(several):
            for name in ("lr_mult", "wd_mult"):
                value = _multiplier(optimizer, name, key)
                if value != self._multipliers.get((key, name), 1.0):
                    self._kv.set_hyperparameter(name, value, key)
                    self._multipliers[key, name] = value

    @property
    def _updater(self) -> SimpleNamespace:
        """Where Trainer looks for the optimizer when it has loaded states."""
        return SimpleNamespace(optimizer=self._optimizer)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Saves values, states and options, in a job those of all workers, by a call of all."""
        self._kv.save(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Loads a file of save_optimizer_states(), with the values that it has."""
        self._kv.load(fname)

    def barrier(self) -> None:
        """Waits for all workers."""
        self._kv.barrier()

    _barrier = barrier

    def close(self, timeout: Optional[float] = None) -> None:
        """Closes the store; in a job by a call of all workers."""
        self._kv.close(timeout)


def _multiplier(optimizer: Any, name: str, key: Any) -> float:
    """As Optimizer of MXNet finds it."""
    if key in optimizer.param_dict:
        return float(getattr(optimizer.param_dict[key], name))
    table = getattr(optimizer, name)
    if key in table:
        return float(table[key])
    return float(table.get(optimizer.idx2name.get(key), 1.0))


def _register(names: Sequence[tuple[str, str]]) -> None:
    for name, kind in names:
        _mx.kvstore.KVStoreBase.register(type(name, (Store,), {"TYPE": kind}))


_register(
    [
        ("kvstore", "device"),
        ("kvstore_local", "local"),
        ("kvstore_device", "device"),
        ("kvstore_dist_sync", "dist_sync"),
        ("kvstore_dist_async", "dist_async"),
    ]
)
