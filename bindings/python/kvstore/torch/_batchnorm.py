"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ._collectives import allreduce
from ._job import size


class SyncBatchNorm(_BatchNorm):
    """Batch normalization with mean and variance of the batches of all ranks.

    >>> model = kvstore.torch.SyncBatchNorm.convert(model)

    In training a forward pass adds up a few numbers of each channel over the ranks, and so does a
    backward pass; all ranks make the same passes, and may have batches of unequal sizes. Running
    averages become equal on all ranks. Evaluation is that of torch.nn.BatchNorm2d and its sisters.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"SyncBatchNorm: the input has {input.dim()} dimensions, not 2 or more"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalizes each channel, the second dimension."""
        if not self.training or size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        output, mean, variance, count = _Normalize.apply(input, self.weight, self.bias, self.eps)
        if self.track_running_stats:
            self._track(mean, variance * (count / (count - 1)))
        return output

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        self.num_batches_tracked.add_(1)
        momentum: Optional[float] = self.momentum
        factor = 1 / float(self.num_batches_tracked) if momentum is None else momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(variance.to(self.running_var.dtype), factor)

    @classmethod
    def convert(cls, module: torch.nn.Module) -> torch.nn.Module:
        """The module with each BatchNorm in it replaced; parameters and buffers are kept."""
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            new = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
            )
            new.weight, new.bias = module.weight, module.bias
            new.running_mean, new.running_var = module.running_mean, module.running_var
            new.num_batches_tracked = module.num_batches_tracked
            new.training = module.training
            return new
        for name, child in module.named_children():
            setattr(module, name, cls.convert(child))
        return module


class _Normalize(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * weight + bias, with the moments of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Any, bias: Any, eps: float) -> Any:
        mean, variance, count = _moments(x)
        shape = [1, -1, *[1] * (x.dim() - 2)]
        inverse = (variance + eps).rsqrt()
        normal = (x - mean.to(x.dtype).view(shape)) * inverse.to(x.dtype).view(shape)
        ctx.save_for_backward(normal, weight, inverse)
        ctx.count, ctx.shape = count, shape
        output = normal if weight is None else normal * weight.view(shape) + bias.view(shape)
        ctx.mark_non_differentiable(mean, variance)
        return output.clone() if output is normal else output, mean, variance, count

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
        normal, weight, inverse = ctx.saved_tensors
        dims = [0, *range(2, gradient.dim())]
        of_bias = gradient.sum(dims)
        of_weight = (gradient * normal).sum(dims)
        sums = allreduce(torch.stack([of_bias, of_weight]).double(), "sum") / ctx.count
        means = sums.to(gradient.dtype).view(2, *ctx.shape)
        scale = inverse.to(gradient.dtype)
        if weight is not None:
            scale = scale * weight
        of_x = (gradient - means[0] - normal * means[1]) * scale.view(ctx.shape)
        if weight is None:
            return of_x, None, None, None
        return of_x, of_weight, of_bias, None


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean and variance of each channel over all ranks in float64, and the number of values."""
    flat = x.detach().transpose(0, 1).reshape(x.shape[1], -1)
    count = flat.shape[1]
    if count:
        mean = flat.mean(1, dtype=torch.float64)
    else:
        mean = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    # Of differences: the squares themselves would lose a small variance beside a large mean.
    squares = (flat - mean.to(x.dtype)[:, None]).square().sum(1, dtype=torch.float64)
    number_of_own = torch.full([1], float(count), dtype=torch.float64, device=x.device)
    own = torch.cat([number_of_own, count * mean, squares + count * mean**2])
    total = allreduce(own, "sum")
    number, channels = float(total[0]), x.shape[1]
    if number < 2:
        raise ValueError("SyncBatchNorm: expected more than one value of each channel in training")
    means = total[1 : 1 + channels] / number
    return means, (total[1 + channels :] / number - means**2).clamp_(min=0), number
