"""Data-parallel training with Hugging Face's Trainer, by a callback.

    import kvstore.transformers

    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=kvstore.transformers.part(dataset),
        callbacks=[kvstore.transformers.Callback()],
    )

Started by `kvstore run -n 4 -- python train.py`, or alone. docs/use/frameworks/transformers.md has
an example.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Optional

try:
    import transformers as _transformers
    from accelerate.state import GradientState as _GradientState
except ImportError as missing:
    raise ImportError(
        "kvstore.transformers needs Transformers: pip install transformers accelerate"
    ) from missing

import torch

import kvstore
import kvstore.torch

__all__ = ["Callback", "part"]


def part(dataset: Any) -> Any:
    """The samples of this rank: each n-th one, from its rank on, of n ranks.

    All ranks get equally many; the first samples come twice where the number does not divide, as in
    PyTorch's DistributedSampler. `dataset` has a length: one of PyTorch's, or of Hugging Face's.
    """
    rank, size = kvstore.torch.rank(), kvstore.torch.size()
    length = len(dataset)
    if length == 0:
        raise kvstore.InvalidArgumentError("part: the dataset is empty")
    count = -(-length // size)
    places = [(rank + size * number) % length for number in range(count)]
    # A subset would hide the columns of a table.
    is_table = hasattr(dataset, "select")
    return dataset.select(places) if is_table else torch.utils.data.Subset(dataset, places)


class Callback(_transformers.TrainerCallback):
    """Averages gradients over all ranks, before the Trainer clips them.

    It makes the Trainer's optimizer a `kvstore.torch.DistributedOptimizer`, by hooks of parameters
    that run inside of backward; `options` are those of it, such as `overlap` or `compression`. All
    ranks begin with the weights of rank 0. Only rank 0 writes checkpoints.
    """

    def __init__(self, **options: Any) -> None:
        """Keeps the options until the training begins."""
        self._options = options
        self._optimizer: Any = None
        self._hook: Optional[Any] = None
        self._suspension = ExitStack()

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any, optimizer: Any, **others: Any
    ) -> None:
        """Distributes the optimizer, which the Trainer has made by now."""
        if args.world_size > 1:
            raise kvstore.UnsupportedError(
                "Callback: the Trainer averages gradients itself over the processes of torchrun; "
                "start this program by `kvstore run`"
            )
        # Accelerate wraps it; hooks belong to the one inside.
        inner = getattr(optimizer, "optimizer", optimizer)
        if not isinstance(inner, kvstore.torch.Distributed):
            kvstore.torch.DistributedOptimizer(inner, model, **self._options)
        if kvstore.torch.rank() != 0:
            # All ranks have equal weights and states, and one folder for checkpoints.
            args.save_strategy = _transformers.trainer_utils.SaveStrategy.NO
        self._optimizer = inner
        self._hook = model.register_forward_pre_hook(self._before_forward)

    def _before_forward(self, model: Any, inputs: Any) -> None:
        """Backward passes that only accumulate gradients send none."""
        if model.training:
            self._suspension.close()
            if not _GradientState().sync_gradients:
                self._suspension.enter_context(self._optimizer.no_sync())

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Ends what belongs to this training."""
        self._suspension.close()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
