"""Batch normalization, whose outputs changed with the opsets."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ortmeter.evaluator.torch_kernels._registry import UnsupportedError, describe, kernel

__all__ = ["batch_normalization", "batch_normalization_7", "batch_normalization_9"]


@kernel("BatchNormalization", since=7)
def batch_normalization_7(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    n_outputs: int = 1,
) -> Any:
    """Normalize by the statistics given; those of each pixel are refused."""
    if not spatial:
        raise UnsupportedError(
            f"BatchNormalization: given {describe(x)} and spatial=0; accepted: spatial=1"
        )
    return batch_normalization_9(
        x, scale, bias, mean, variance, epsilon=epsilon, momentum=momentum, n_outputs=n_outputs
    )


@kernel("BatchNormalization", since=9)
def batch_normalization_9(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    n_outputs: int = 1,
) -> Any:
    """Normalize by the statistics given; training, which several outputs ask for, is refused."""
    if n_outputs > 1:
        raise UnsupportedError(
            f"BatchNormalization: given {describe(x)} and {n_outputs} outputs, momentum "
            f"{momentum}; accepted: one output before opset 14"
        )
    return batch_normalization(x, scale, bias, mean, variance, epsilon=epsilon)


@kernel("BatchNormalization", since=14)
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    n_outputs: int = 1,
) -> Any:
    """Normalize each channel by the statistics given or, in training, by those of the batch."""
    if not training_mode:
        y = _normalize(x, scale, bias, mean, variance, epsilon=epsilon)
        return (y, mean, variance) if n_outputs > 1 else y
    axes = [axis for axis in range(x.ndim) if axis != 1]
    batch_variance, batch_mean = torch.var_mean(x.to(mean.dtype), axes, correction=0)
    y = _normalize(x, scale, bias, batch_mean, batch_variance, epsilon=epsilon)
    if n_outputs == 1:
        return y
    return y, _blend(mean, batch_mean, momentum), _blend(variance, batch_variance, momentum)


def _normalize(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, *, epsilon: float
) -> Tensor:
    if mean.dtype == scale.dtype == x.dtype:
        return functional.batch_norm(x, mean, variance, scale, bias, eps=epsilon)
    wide = torch.promote_types(x.dtype, mean.dtype)
    mean, variance, scale, bias = (t.to(wide) for t in (mean, variance, scale, bias))
    return functional.batch_norm(x.to(wide), mean, variance, scale, bias, eps=epsilon).to(x.dtype)


def _blend(running: Tensor, of_batch: Tensor, momentum: float) -> Tensor:
    return running * momentum + of_batch.to(running.dtype) * (1 - momentum)
