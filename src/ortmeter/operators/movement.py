"""Shapes, cutting and joining, positions, padding, constants: nothing is computed."""

import math
from typing import Any

import numpy as np

from ortmeter.errors import InvalidArgumentError
from ortmeter.operators.counts import nothing
from ortmeter.operators.descriptions import describe
from ortmeter.operators.late import Array, Tensor, TensorFunction, functional, torch
from ortmeter.operators.registry import NCHWC, family, kernel, stand_in
from ortmeter.operators.roundings import Run, growth, rounded, sum_of_products
from ortmeter.operators.tensors import as_list, non_negative, positive_axes, positive_axis

declare = family("movement")
declare("Flatten Identity Reshape Squeeze Unsqueeze", cost=nothing, reads="nothing", is_exact=True)
declare("Shape Size", cost=nothing, reads="nothing")
declare("Concat ConstantOfShape Expand Pad Tile Transpose", cost=nothing, is_exact=True)
declare("DepthToSpace SpaceToDepth Split", cost=nothing, is_exact=True)
declare("Gather GatherElements GatherND Slice", cost=nothing, reads="selection", is_exact=True)
declare("ScatterElements ScatterND", is_exact=True, bound=sum_of_products)
declare("Compress OneHot ReverseSequence", is_exact=True)
declare("EyeLike NonZero Scatter TensorScatter")
declare("MemcpyFromHost MemcpyToHost", cost=nothing)
declare("ReorderInput ReorderOutput Upsample", domain=NCHWC, cost=nothing)


def _integers(value: Any, like: Tensor) -> Tensor:
    return torch.tensor(value, dtype=torch.int64, device=like.device)


kernel("Identity")(lambda x: x)
kernel("Shape")(lambda x, *, start=0, end=None: _integers(x.shape[slice(start, end)], x))
kernel("Size")(lambda x: _integers(math.prod(x.shape), x))
kernel("Transpose")(lambda x, *, perm=None: x.permute(perm or [*reversed(range(x.ndim))]))
kernel("Tile", since=6)(lambda x, repeats: x.repeat(repeats.tolist()))
kernel("Concat", since=4)(lambda *inputs, axis: torch.cat(inputs, axis))
kernel("NonZero", since=9)(lambda x: torch.nonzero(x).t())


@kernel("Reshape")
def _reshape(x: Tensor, shape: Any, *, allowzero: int = 0) -> Tensor:
    """Reshape; 0 copies a dimension, or is 0 with *allowzero*; -1 is inferred."""
    sizes = as_list(shape)
    if 0 in sizes and not allowzero:
        sizes = [size or x.shape[i] for i, size in enumerate(sizes)]
    return x.reshape(sizes)


@kernel("Flatten")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    cut = positive_axis(axis, x.ndim)
    return x.reshape(math.prod(x.shape[:cut]), math.prod(x.shape[cut:]))


@kernel("Expand", since=8)
def _expand(x: Tensor, shape: Tensor) -> Tensor:
    sizes = shape.tolist()
    added = len(sizes) - x.ndim
    kept = [-1 if size == 1 and i >= added else size for i, size in enumerate(sizes)]
    return x.expand([-1] * -added + kept)


@kernel("Squeeze")
def _squeeze(x: Tensor, axes: Any = None) -> Tensor:
    if axes is None:
        return x.squeeze()
    chosen = set(positive_axes(as_list(axes), x.ndim))
    if any(x.shape[axis] != 1 for axis in chosen):
        raise InvalidArgumentError(
            f"Squeeze: given {describe([x])} and the axes {as_list(axes)}; accepted: axes of size 1"
        )
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in chosen])


@kernel("Unsqueeze")
def _unsqueeze(x: Tensor, axes: Any) -> Tensor:
    wanted = as_list(axes)
    for axis in sorted(positive_axes(wanted, x.ndim + len(wanted))):
        x = x.unsqueeze(axis)
    return x


@kernel("Split", since=2)
def _split(
    x: Tensor, split: Any = None, *, axis: int = 0, num_outputs: int | None = None, n_outputs: int
) -> tuple[Tensor, ...]:
    """Cut along an axis in parts of the sizes given, or equal but the last."""
    if split is not None:
        return torch.split(x, as_list(split), axis)
    size, count = x.shape[axis], num_outputs or n_outputs
    part = -(-size // count)
    return torch.split(x, [min(part, max(size - i * part, 0)) for i in range(count)], axis)


@kernel("Slice")
def _slice(x: Tensor, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Tensor:
    first, last = as_list(starts), as_list(ends)
    dims = range(len(first)) if axes is None else positive_axes(as_list(axes), x.ndim)
    strides = [1] * len(first) if steps is None else as_list(steps)
    index: list[Any] = [slice(None)] * x.ndim
    reversed_dims = []
    for dim, start, end, step in zip(dims, first, last, strides, strict=True):
        if step > 0:  # torch warns of -2**63, which exporters write
            index[dim] = slice(*slice(start, end, step).indices(x.shape[dim]))
        else:
            index[dim] = _mirrored(x.shape[dim], start, end, step)
            reversed_dims.append(dim)
    x = x[tuple(index)]
    return torch.flip(x, reversed_dims) if reversed_dims else x


def _mirrored(size: int, start: int, end: int, step: int) -> slice:
    """Return the slice, of a positive step, of what a negative one takes from the end."""
    taken = range(*slice(start, end, step).indices(size))
    return slice(taken[-1], taken[0] + 1, -step) if taken else slice(0, 0)


@kernel("DepthToSpace")
def _depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode == "CRD":
        return functional.pixel_shuffle(x, blocksize)
    n, c, h, w = x.shape
    depth = c // blocksize**2
    blocks = x.reshape(n, blocksize, blocksize, depth, h, w).permute(0, 3, 4, 1, 5, 2)
    return blocks.reshape(n, depth, h * blocksize, w * blocksize)


@kernel("SpaceToDepth")
def _space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.permute(order).reshape(n, -1, h // blocksize, w // blocksize)


@kernel("Gather")
def _gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis = positive_axis(axis, x.ndim)
    flat = non_negative(indices, x.shape[axis]).reshape(-1)
    shape = x.shape[:axis] + indices.shape + x.shape[axis + 1 :]
    return torch.index_select(x, axis, flat).reshape(shape)


@stand_in("Gather")
def _torch_gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> TensorFunction:
    axis = positive_axis(axis, x.ndim)
    if axis == 0 and x.ndim == 2:  # noqa: PLR2004 - rows of a table
        return lambda x, indices: functional.embedding(indices, x)
    if indices.ndim == 1:
        return lambda x, indices: torch.index_select(x, axis, indices)
    where: Any = (*(slice(None),) * axis, indices)
    return lambda x, _indices: x[where]


@kernel("GatherElements", since=11)
def _gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return torch.gather(x, axis, non_negative(indices, x.shape[axis]))


stand_in("GatherElements")(lambda *_, axis=0: lambda x, indices: torch.gather(x, axis, indices))


@stand_in("GatherND")
def _torch_gather_nd(_x: Tensor, indices: Tensor, **_: Any) -> TensorFunction:
    where = indices.unbind(-1)
    return lambda x, _indices: x[where]


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@stand_in("ScatterElements")
def _torch_scatter(*_inputs: Any, axis: int = 0, reduction: str = "none") -> TensorFunction:
    if reduction == "none":
        return lambda x, indices, updates: torch.scatter(x, axis, indices, updates)
    name = _REDUCTIONS[reduction]
    return lambda x, indices, updates: torch.scatter_reduce(x, axis, indices, updates, name)


@stand_in("ScatterND")
def _torch_index_put(
    _x: Tensor, indices: Tensor, _updates: Any, *, reduction: str = "none"
) -> TensorFunction:
    where, adds = indices.unbind(-1), reduction == "add"
    return lambda x, _indices, updates: torch.index_put(x, where, updates, accumulate=adds)


@stand_in("Pad")
def _torch_pad(
    x: Tensor, pads: Tensor, fill: Tensor | None = None, *_axes: Any, mode: str = "constant"
) -> TensorFunction:
    sizes, rank = pads.tolist(), x.ndim
    mode = {"edge": "replicate", "wrap": "circular"}.get(mode, mode)
    pairs = [n for axis in reversed(range(rank)) for n in (sizes[axis], sizes[axis + rank])]
    while mode != "constant" and len(pairs) > 2 * (rank - 2) and not any(pairs[-2:]):
        del pairs[-2:]
    value = None if fill is None else fill.item()
    return lambda x, *_rest: functional.pad(x, pairs, mode, value)


@kernel("ConstantOfShape", since=9)
def _constant_of_shape(shape: Tensor, *, value: Tensor | None = None) -> Tensor:
    sizes = shape.tolist()
    if value is None:
        return torch.zeros(sizes, device=shape.device)
    return value.to(shape.device).reshape(()).expand(sizes).contiguous()


def _of_a_range(run: Run) -> Array:
    """2 roundings of the largest magnitude."""
    start = np.abs(run.inputs[0].astype(np.float64))
    return rounded(growth(2) * (2 * start + np.abs(run.exact)), run)


declare("Range", bound=_of_a_range)


@stand_in("Range")
def _torch_arange(*inputs: Tensor, **_: Any) -> TensorFunction:
    limits, made = [value.item() for value in inputs], inputs[0]
    return lambda *_limits: torch.arange(*limits, dtype=made.dtype, device=made.device)
