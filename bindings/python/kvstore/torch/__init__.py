"""Data-parallel training with PyTorch, by three lines.

    import kvstore.torch

    loader = DataLoader(dataset, batch_size=64, sampler=kvstore.torch.sampler(dataset))
    optimizer = kvstore.torch.DistributedOptimizer(optimizer, model)

Started by `torchrun train.py`, or alone. It also brings the back end of
`torch.distributed.init_process_group("kv")`. docs/use/frameworks/pytorch.md starts from a script of
yours.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as missing:
    raise ImportError("kvstore.torch needs PyTorch: pip install torch") from missing

from . import _process_group as _process_group
from ._batchnorm import SyncBatchNorm
from ._collectives import (
    allgather_object,
    allreduce,
    barrier,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from ._embedding import Embedding
from ._hook import ddp_hook
from ._host import HostOptimizer
from ._job import init, rank, shutdown, size, store
from ._optimizer import Distributed, DistributedOptimizer
from ._sampler import sampler
from ._server import ServerOptimizer

__all__ = [
    "Distributed",
    "DistributedOptimizer",
    "Embedding",
    "HostOptimizer",
    "ServerOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_hook",
    "init",
    "rank",
    "sampler",
    "shutdown",
    "size",
    "store",
]
