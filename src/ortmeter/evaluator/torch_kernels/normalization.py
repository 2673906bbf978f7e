"""Softmax, normalizations, dropout."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ortmeter.evaluator.kernels import RefusedError
from ortmeter.evaluator.torch_kernels.movement import flatten
from ortmeter.evaluator.torch_kernels.registry import (
    TensorFunction,
    describe,
    dtype_of,
    kernel,
    widened,
)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    if not x.numel():
        return x
    return torch.zeros_like(x).scatter(axis, torch.argmax(x, axis, keepdim=True), 1)


def _register_softmax(op_type: str, function: Callable[[Tensor, int], Tensor]) -> None:
    """Register a function over one axis; before opset 13, over all the axes from one on."""

    def flattened(x: Tensor, *, axis: int = 1) -> Tensor:
        return function(flatten(x, axis=axis), 1).reshape(x.shape)

    def along(x: Tensor, *, axis: int = -1) -> Tensor:
        return function(x, axis)

    kernel(op_type, since=1)(flattened)
    kernel(op_type, since=13)(along)


for _op, _function in (
    ("Softmax", torch.softmax),
    ("LogSoftmax", torch.log_softmax),
    ("Hardmax", _hardmax),
):
    _register_softmax(_op, _function)


def _over_last_axes(
    function: TensorFunction,
    x: Tensor,
    *weights: Tensor | None,
    axis: int,
    epsilon: float,
    stash: torch.dtype,
) -> Tensor:
    """Normalize in the type asked for; in float32, torch does so by itself for narrower types."""
    shape = x.shape[axis:]
    scale, *biases = (weight for weight in weights if weight is not None)
    wide = x if stash in (torch.float32, x.dtype) else x.to(stash)
    if wide is x and all(weight.shape == shape for weight in (scale, *biases)):
        return function(x, shape, scale, *biases, eps=epsilon)
    y = function(wide, shape, eps=epsilon).to(x.dtype) * scale
    return y + biases[0] if biases else y


@kernel("LayerNormalization", since=17)
def _layer_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    n_outputs: int = 1,
) -> Any:
    """Normalize over the last axes; then the mean and the inverse deviation, if asked for."""
    stash = dtype_of("LayerNormalization", stash_type)
    y = _over_last_axes(
        functional.layer_norm, x, scale, bias, axis=axis, epsilon=epsilon, stash=stash
    )
    return (y, *_statistics(x.to(stash), len(x.shape[axis:]), epsilon)) if n_outputs > 1 else y


def _statistics(x: Tensor, rank: int, epsilon: float) -> tuple[Tensor, Tensor]:
    variance, mean = _var_mean(x, tuple(range(-rank, 0)), keepdim=True)
    return mean, torch.rsqrt(variance + epsilon)


def _var_mean(x: Tensor, axes: Sequence[int], *, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Return the variance and the mean, which is infinite with infinities of one sign."""
    variance, mean = torch.var_mean(x, tuple(axes), correction=0, keepdim=keepdim)
    if mean.isnan().any():
        mean = torch.mean(x, tuple(axes), keepdim=keepdim)
    return variance, mean


@kernel("RMSNormalization", since=23)
def _rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    stash = dtype_of("RMSNormalization", stash_type)
    return _over_last_axes(functional.rms_norm, x, scale, axis=axis, epsilon=epsilon, stash=stash)


@kernel("GroupNormalization", since=18)
def _group_normalization_per_group(
    x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5
) -> Tensor:
    """Normalize groups of channels; scale and bias have one value a group."""
    repeats = x.shape[1] // num_groups
    scale, bias = scale.repeat_interleave(repeats), bias.repeat_interleave(repeats)
    return functional.group_norm(x, num_groups, scale, bias, epsilon)


@kernel("GroupNormalization", since=21)
def _group_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:
    """Normalize groups of channels; scale and bias have one value a channel."""
    stash = dtype_of("GroupNormalization", stash_type)
    if stash not in (torch.float32, x.dtype):
        y = functional.group_norm(x.to(stash), num_groups, eps=epsilon).to(x.dtype)
        shape = (1, -1) + (1,) * (x.ndim - 2)
        return y * scale.reshape(shape) + bias.reshape(shape)
    return functional.group_norm(x, num_groups, scale, bias, epsilon)


@kernel("InstanceNormalization", since=6)
def _instance_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5
) -> Tensor:
    if not x.numel():
        return x
    cudnn = torch.backends.cudnn.enabled
    return torch.instance_norm(x, scale, bias, None, None, True, 0.0, epsilon, cudnn)


@kernel("MeanVarianceNormalization", since=9)
def _mean_variance_normalization(
    x: Tensor, *, axes: tuple[int, ...] | list[int] = (0, 2, 3)
) -> Tensor:
    wide = widened(x)
    variance, mean = torch.var_mean(wide, tuple(axes), correction=0, keepdim=True)
    return ((wide - mean) / (torch.sqrt(variance) + 1e-9)).to(x.dtype)


@kernel("LpNormalization")
def _lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """Divide by the norm along an axis; zeros stay zeros."""
    wide = widened(x)
    norm = torch.linalg.vector_norm(wide, p, axis, keepdim=True)
    return torch.where(norm == 0, 0, wide / norm).to(x.dtype)


@kernel("LRN")
def _lrn(
    x: Tensor, *, size: int, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    before, wide = (size - 1) // 2, widened(x)
    shape = [x.shape[0], x.shape[1], math.prod(x.shape[2:])]
    squares = functional.pad((wide * wide).reshape(shape), (0, 0, before, size - 1 - before))
    sums = squares.unfold(1, size, 1).sum(-1).reshape(x.shape)
    return (wide / (sums * (alpha / size) + bias) ** beta).to(x.dtype)


@kernel("BatchNormalization", since=7)
def _batch_normalization_of_inference(
    x: Tensor,
    *given: Tensor,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    n_outputs: int = 1,
) -> Any:
    """Refuse, before opset 14, training and the statistics of each pixel."""
    if n_outputs > 1 or not spatial:
        raise RefusedError(
            f"BatchNormalization: given {describe(x)}, spatial={spatial}, momentum={momentum} and "
            f"{n_outputs} outputs; accepted before opset 14: spatial=1 and one output"
        )
    return _batch_normalization(x, *given, epsilon=epsilon)


@kernel("BatchNormalization", since=14)
def _batch_normalization(
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
    batch_variance, batch_mean = _var_mean(x.to(mean.dtype), axes, keepdim=False)
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


@kernel("Dropout", since=7)
def _dropout(
    x: Tensor, ratio: Any = None, training_mode: Any = None, *, seed: int = 0, n_outputs: int = 1
) -> Any:
    """Return the input; nothing is drawn."""
    if training_mode is not None and bool(training_mode) and (ratio is None or float(ratio)):
        raise RefusedError(
            f"Dropout: given {describe(x, ratio, training_mode)} and seed={seed}; accepted: "
            "inference, or a ratio of 0"
        )
    return (x, torch.ones_like(x, dtype=torch.bool)) if n_outputs > 1 else x
