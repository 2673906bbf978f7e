"""Softmax, normalizations, dropout."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortmeter.operators.counts import Count, Work
from ortmeter.operators.late import Array, Dtype, Tensor, TensorFunction, functional, torch
from ortmeter.operators.movement import flatten
from ortmeter.operators.registry import MICROSOFT, definition, family, kernel, stand_in
from ortmeter.operators.roundings import Run, growth, product, rounded
from ortmeter.operators.tensors import dtype_of, named, refused, widened


def _softmax_flop(*, per_row: int) -> Count:
    def count(work: Work) -> float:
        length = work.shape(0)[work.integer("axis", -1)]
        return 5 * work.size(0) + per_row * (work.size(0) // max(length, 1))

    return count


def _normalization_flop(per_element: int, *, skip: bool = False) -> Count:
    """Count a normalization over the last axes: mean, variance, division, scale and bias."""

    def count(work: Work) -> float:
        rows = math.prod(work.shape(0)[: work.integer("axis", -1)])
        added = 1 + work.has(3) + work.has(4) if skip else work.has(2)
        return (per_element + added) * work.size(0) + 2 * rows

    return count


def _instance_flop(work: Work) -> float:
    """7 an input, 2 a channel."""
    return 7 * work.size(0) + 2 * math.prod(work.shape(0)[:2])


def _batch_flop(work: Work) -> float:
    """2 an input, 5 a channel."""
    # A scale and a bias for each channel first (+, sqrt, /, *, -), then one of each per element.
    return 2 * work.size(0) + 5 * work.size(1)


def _batch_bound(run: Run) -> Array:
    """8 roundings of each term of ``(x - mean) scale / sigma + bias``, in any order."""
    x, *columns = (array.astype(np.float64) for array in run.inputs)
    shape = (-1, *[1] * (x.ndim - 2))
    scale, bias, mean, variance = (np.reshape(column, shape) for column in columns)
    sigma = np.sqrt(variance + run.options.get("epsilon", 1e-5))
    terms = np.abs(scale / sigma) * (np.abs(x) + np.abs(mean)) + np.abs(bias)
    return rounded(growth(8) * terms, run)


def _layer_bound(run: Run) -> Array:
    """Roundings of the mean, the variance and the scaling."""
    x, *columns = run.inputs
    axis = run.options.get("axis", -1)
    whole = [np.broadcast_to(a, x.shape[axis:]).reshape(-1) for a in columns]
    return _normalized(run, x.reshape((*x.shape[:axis], -1)), whole)


def _group_bound(run: Run) -> Array:
    """Roundings of the mean, the variance and the scaling, of a channel or a group."""
    x, *columns = run.inputs
    groups, inside = int(run.options.get("num_groups", x.shape[1])), math.prod(x.shape[1:])
    whole = [np.repeat(c, inside // c.size).reshape((groups, -1)) for c in columns]
    return _normalized(run, x.reshape((x.shape[0], groups, -1)), whole)


def _normalized(run: Run, rows: Array, columns: Sequence[Array]) -> Array:
    from ortmeter.discrepancy.bounds import layer_norm_error_bound

    scale, bias = (*columns, np.zeros(1, run.dtype))[:2]
    epsilon = run.options.get("epsilon", 1e-5)
    errors = layer_norm_error_bound(rows, dtype=run.dtype, epsilon=epsilon, scale=scale, bias=bias)
    return errors.reshape(run.exact.shape)


def _along_axis(run: Run) -> float:
    return float(run.inputs[0].shape[run.options.get("axis", -1)] + 2)


def _from_axis(run: Run) -> float:
    return math.prod(run.inputs[0].shape[run.options.get("axis", -1) :]) / 2 + 6


declare = family("normalization")
declare("Softmax", kind="attention", cost=_softmax_flop(per_row=-2))
declare("LogSoftmax", kind="attention", cost=_softmax_flop(per_row=-1))
declare("Hardmax", kind="other", is_exact=True)
_RMS = product(_from_axis)
declare("LayerNormalization", cost=_normalization_flop(6), bound=_layer_bound)
declare("RMSNormalization", cost=_normalization_flop(4), cpu_types="f32 f16", bound=_RMS)
declare("SimplifiedLayerNormalization", cost=_normalization_flop(4))
declare("InstanceNormalization", cost=_instance_flop, bound=_group_bound)
declare("GroupNormalization", bound=_group_bound)
declare("BatchNormalization", cost=_batch_flop, bound=_batch_bound)
declare("LpNormalization", bound=product(_along_axis))
declare("LRN MeanVarianceNormalization")
declare("Dropout", kind="other", is_exact=True)
declare = family("normalization", domain=MICROSOFT)
declare("SkipLayerNormalization", cost=_normalization_flop(6, skip=True))
declare("SkipSimplifiedLayerNormalization", cost=_normalization_flop(4, skip=True))


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


_register_softmax("Softmax", named("softmax"))
_register_softmax("LogSoftmax", named("log_softmax"))
_register_softmax("Hardmax", _hardmax)


def _over_last_axes(
    function: TensorFunction, x: Tensor, *weights: Tensor, axis: int, epsilon: float, stash: Dtype
) -> Tensor:
    """Normalize in the type asked for; in float32, torch does so by itself for narrower types."""
    shape = x.shape[axis:]
    wide = x if stash in (torch.float32, x.dtype) else x.to(stash)
    if wide is x and all(weight.shape == shape for weight in weights):
        return function(x, shape, *weights, eps=epsilon)
    scale, *biases = weights
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
    given = [scale] if bias is None else [scale, bias]
    y = _over_last_axes(functional.layer_norm, x, *given, axis=axis, epsilon=epsilon, stash=stash)
    return (y, *_statistics(x.to(stash), len(x.shape[axis:]), epsilon)) if n_outputs > 1 else y


def _statistics(x: Tensor, rank: int, epsilon: float) -> tuple[Tensor, Tensor]:
    axes = tuple(range(-rank, 0))
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    if mean.isnan().any():  # it is infinite with infinities of one sign
        mean = torch.mean(x, axes, keepdim=True)
    return mean, torch.rsqrt(variance + epsilon)


@kernel("RMSNormalization", since=23)
def _rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    stash = dtype_of("RMSNormalization", stash_type)
    return _over_last_axes(functional.rms_norm, x, scale, axis=axis, epsilon=epsilon, stash=stash)


@stand_in("GroupNormalization")
def _torch_group_norm(*_inputs: Any, num_groups: int, epsilon: float = 1e-5) -> TensorFunction:
    return lambda x, scale, bias: functional.group_norm(x, num_groups, scale, bias, epsilon)


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
    before = (size - 1) // 2
    wide = widened(x)
    shape = [x.shape[0], x.shape[1], math.prod(x.shape[2:])]
    squares = functional.pad((wide * wide).reshape(shape), (0, 0, before, size - 1 - before))
    sums = squares.unfold(1, size, 1).sum(-1).reshape(x.shape)
    return (wide / (sums * (alpha / size) + bias) ** beta).to(x.dtype)


@stand_in("LRN")
def _torch_lrn(
    _x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> TensorFunction:
    return lambda x: functional.local_response_norm(x, size, alpha, beta, bias)


@kernel("BatchNormalization", since=7)
def _batch_normalization(
    x: Tensor, *columns: Tensor, epsilon: float = 1e-5, n_outputs: int = 1, **others: float
) -> Tensor:
    """Normalize each channel by the statistics given."""
    if others.get("training_mode") or n_outputs > 1 or not others.get("spatial", 1):
        also = f", {others} and {n_outputs} outputs"
        raise refused("BatchNormalization", "inference, spatial=1, one output", x, also=also)
    scale, bias, mean, variance = columns
    if mean.dtype == scale.dtype == x.dtype:
        return functional.batch_norm(x, mean, variance, scale, bias, eps=epsilon)
    wide = torch.promote_types(x.dtype, mean.dtype)
    scale, bias, mean, variance = (column.to(wide) for column in columns)
    return functional.batch_norm(x.to(wide), mean, variance, scale, bias, eps=epsilon).to(x.dtype)


stand_in("Dropout")(lambda *_inputs, **_: lambda x, *_others: x)


@definition("SkipLayerNormalization")
def _skip_layer_norm(*inputs: Any, epsilon: float = 1e-12) -> Array:
    x, skip, scale, beta, bias = (*inputs, None, None)[:5]
    total = x + skip + (0 if bias is None else bias)
    centred = total - total.mean(-1, keepdims=True)
    normalized = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + epsilon)
    return np.asarray(normalized * scale + (0 if beta is None else beta))


@definition("SkipSimplifiedLayerNormalization")
def _skip_rms_norm(x: Array, skip: Array, scale: Array, *, epsilon: float = 1e-12) -> Array:
    total = x + skip
    return np.asarray(total / np.sqrt(np.square(total).mean(-1, keepdims=True) + epsilon) * scale)
