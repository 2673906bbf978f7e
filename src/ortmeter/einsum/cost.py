"""Estimate the time of the steps of a plan, to rank candidates before they are timed.

The constants describe the kernels of ONNX Runtime in float32 on one core of a recent server. Only
their ratios matter: a machine twice as fast ranks the candidates the same way.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from ortmeter.einsum.parse import Operands
from ortmeter.einsum.steps import Step

LAUNCH = 4e-7  # a node
_EINSUM = 3e-6  # what Einsum does around a product
_PRODUCT = 1e-7  # one matrix of a batch
_FLOP = 4.5e-12
_LANES = 16  # columns that a product computes together
_PACKED = 8e-11  # element of the second operand of a product
_REDUCED = 5e-11  # element that is summed
_SUM, _BLOCK = 1.8e-9, 7e-8  # a sum along the last axis, a block of sums along another one
_SPAN = 8.5e-9  # start of a run of elements along which each operand advances, or stays in place
_BYTE = 7e-12  # read or written in order
_RUN = 6e-9  # start of a run of contiguous elements
_TILED, _TILED_FAR = 1.4e-11, 4.5e-11  # byte of a matrix that is transposed by tiles
_NEAR = 2**20  # bytes read and written that stay in the caches of a core
_SCATTERED = 2.5e-9  # element that is moved alone
_SPLIT_OVERHEAD_S = 3e-6  # the four nodes that two transpositions need beside one
_GAIN = 1.5  # a smaller one is within the error of the model


class StepSeconds(NamedTuple):
    """Seconds of a run: every transposition whole, or the slow ones split in two fast ones."""

    whole: float
    split: float


def estimate_steps(operands: Operands, steps: Sequence[Step], *, threads: int = 1) -> StepSeconds:
    """Estimate the time of steps; products use all the threads, moves do not."""
    itemsize = operands.dtype.itemsize
    known = dict(zip(operands.names, operands.shapes, strict=True))
    total = saved = 0.0
    for step in steps:
        inputs = [known[name] for name in step.inputs]
        known[step.output] = step.shape
        seconds = _seconds(step, inputs, itemsize, max(threads, 1))
        total += LAUNCH + seconds
        if step.kind == "transpose":
            split = split_transpose(inputs[0], step.where, itemsize)
            saved += 0.0 if split is None else seconds - split.seconds(itemsize)
    return StepSeconds(total, total - saved)


def estimate_einsum(operands: Operands) -> float:
    """Estimate the time of ``Einsum``, which multiplies its operands from left to right.

    Each product transposes what it reads and what it writes; as for the steps of a plan, these
    moves count as much as the operations.
    """
    inputs, output = operands.equation.inputs, operands.equation.output
    count, itemsize = operands.count, operands.dtype.itemsize
    left, total = set(inputs[0]), _EINSUM
    for rank, letters in enumerate(inputs[1:], 1):
        kept, shared = set(output).union(*inputs[rank + 1 :]), left & set(letters)
        groups = (shared & kept, left - shared, set(letters) - shared, shared - kept)
        batch, rows, columns, depth = map(count, groups)
        moved = batch * (rows * depth + depth * columns + rows * columns)
        total += _EINSUM + 2 * moved * itemsize * _TILED_FAR
        total += product_seconds((batch, rows, columns), depth, itemsize)
        left = (left | set(letters)) & kept
    return total + count(left) * itemsize * _BYTE


def _seconds(step: Step, inputs: Sequence[tuple[int, ...]], itemsize: int, threads: int) -> float:
    output = step.shape
    moved = (sum(map(math.prod, inputs)) + math.prod(output)) * itemsize * _BYTE
    match step.kind:
        case "reshape":
            return 0.0
        case "transpose":
            return transpose_seconds(inputs[0], step.where, itemsize)
        case "matmul":
            depth = (step.flop or 0) / max(2 * math.prod(output), 1)
            return max(moved, product_seconds(output, depth, itemsize) / threads)
        case "reduce_sum":
            shape = inputs[0]
            blocks = math.prod(shape[: step.where[0]]) * _BLOCK
            sums = math.prod(output) * _SUM if step.where[-1] == len(shape) - 1 else blocks
            return moved + math.prod(shape) * _REDUCED + sums
        case "mul":
            return moved + spans_seconds(*inputs)
        case _:
            return moved


def spans_seconds(left: Sequence[int], right: Sequence[int]) -> float:
    """Time to start the spans of a product: along each, an operand advances or stays in place."""
    sizes = itertools.zip_longest(reversed(left), reversed(right), fillvalue=1)
    axes = [(max(a, b), a == 1, b == 1) for a, b in sizes if max(a, b) > 1]
    repeats = [axis[1:] for axis in axes]
    inner = next((i for i, axis in enumerate(repeats) if axis != repeats[0]), len(axes))
    return math.prod(size for size, *_ in axes[inner:]) * _SPAN


def product_seconds(output: Sequence[int], depth: float, itemsize: int) -> float:
    """Time of a product of matrices: the second one is packed, columns are computed by blocks."""
    *batch, rows, columns = (1, 1, *output)
    packed = 0.0
    if min(rows, columns) > 1:
        columns, packed = math.ceil(columns / _LANES) * _LANES, columns * depth * _PACKED
    flop = 2 * rows * columns * depth * _FLOP
    return math.prod(batch) * (_PRODUCT + (packed + flop) * itemsize / 4)


@functools.lru_cache(4096)
def transpose_seconds(shape: tuple[int, ...], order: tuple[int, ...], itemsize: int) -> float:
    """Estimate the time of a transposition.

    Axes that stay side by side count as one. ONNX Runtime then copies runs of elements when the
    last axis stays, transposes matrices by tiles when the last two are exchanged, and otherwise
    moves element by element, ten times slower.
    """
    count = math.prod(shape)
    sizes, moved = merge_axes(shape, order)
    in_order = 2 * count * itemsize * _BYTE
    if count == 0 or moved == tuple(range(len(moved))):
        return in_order
    last = len(sizes) - 1
    if moved[-1] == last:
        return in_order + count / sizes[last] * _RUN
    if moved == (*range(last - 1), last, last - 1):
        spread = 2 * count * itemsize
        return spread * (_TILED if spread <= _NEAR else _TILED_FAR)
    return count * _SCATTERED


def merge_axes(
    shape: Sequence[int], order: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Merge the axes that a transposition keeps side by side, drop those of size 1."""
    groups: list[list[int]] = []
    kept = [axis for axis in range(len(shape)) if shape[axis] != 1]
    rank = {axis: i for i, axis in enumerate(kept)}
    for axis in (rank[axis] for axis in order if axis in rank):
        if groups and groups[-1][-1] == axis - 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    ordered = sorted(groups)
    sizes = tuple(math.prod(shape[kept[axis]] for axis in group) for group in ordered)
    return sizes, tuple(ordered.index(group) for group in groups)


class Split(NamedTuple):
    """A transposition split into two cheaper ones, on the shape with adjacent axes merged."""

    shape: tuple[int, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]

    @property
    def middle(self) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.first)

    def seconds(self, itemsize: int) -> float:
        first = transpose_seconds(self.shape, self.first, itemsize)
        return _SPLIT_OVERHEAD_S + first + transpose_seconds(self.middle, self.second, itemsize)


def split_transpose(shape: tuple[int, ...], order: tuple[int, ...], itemsize: int) -> Split | None:
    """Find two transpositions that are faster than one, None when one is as fast.

    One of the two keeps the last axis, which copies runs of elements, the other one exchanges the
    last two, which goes by tiles.
    """
    merged, moved = merge_axes(shape, order)
    single = transpose_seconds(shape, order, itemsize)
    if single <= _GAIN * _SPLIT_OVERHEAD_S or len(moved) < 3:  # noqa: PLR2004 - two axes are a matrix
        return None
    last = len(moved) - 1
    orders = [
        (*(axis for axis in range(len(moved)) if axis != moved[-1]), moved[-1]),
        (*(axis for axis in moved if axis != last), last),
    ]
    splits = [Split(merged, first, tuple(first.index(axis) for axis in moved)) for first in orders]
    best = min(splits, key=lambda split: split.seconds(itemsize))
    return best if single > _GAIN * best.seconds(itemsize) else None
