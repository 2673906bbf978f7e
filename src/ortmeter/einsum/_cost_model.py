"""How long the steps of a plan should take, to order candidates before they are timed.

The constants are those of the kernels of ONNX Runtime on one core of a recent server, in float32.
Only their ratios matter: a machine twice as fast orders the candidates alike.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ortmeter.einsum._transposes import BYTE_S, split_transpose, transpose_seconds
from ortmeter.einsum.steps import Step

__all__ = ["Estimate", "estimate_einsum", "estimate_steps"]

_LAUNCH = 1.5e-6
_EINSUM = 5e-6  # what Einsum does around a product
_PRODUCT = 1.5e-7  # one matrix of a batch
_FLOP = 1.1e-11
_LANES = 16  # columns that a product computes together
_REDUCED = 2e-10  # element summed along an inner axis


class Estimate(NamedTuple):
    """Estimated time of the steps of a plan.

    Parameters
    ----------
    whole : float
        Seconds when every transposition is one.
    split : float
        Seconds when the slow ones are two fast ones, see
        :func:`~ortmeter.einsum._transposes.split_transpose`.
    """

    whole: float
    split: float


def estimate_steps(
    steps: Sequence[Step], shapes: Mapping[str, Sequence[int]], itemsize: int, *, threads: int = 1
) -> Estimate:
    """Estimate the time of a run.

    Parameters
    ----------
    steps : sequence of Step
        What runs, in order.
    shapes : mapping of str to shape
        Shape of each operand, by name.
    itemsize : int
        Bytes of an element.
    threads : int
        Threads inside an operator; products use all of them, moves do not.
    """
    known = {name: tuple(shape) for name, shape in shapes.items()}
    total = saved = 0.0
    for step in steps:
        inputs = [known[name] for name in step.inputs]
        output = known[step.output] = tuple(int(size) for size in step.shape)  # type: ignore[arg-type]
        seconds = _seconds(step, inputs, output, itemsize, max(threads, 1))
        total += _LAUNCH + seconds
        if step.kind == "transpose":
            split = split_transpose(inputs[0], step.where, itemsize)
            saved += 0.0 if split is None else seconds - split.seconds(itemsize)
    return Estimate(total, total - saved)


def estimate_einsum(
    inputs: Sequence[str], output: str, sizes: Mapping[str, int], itemsize: int
) -> float:
    """Estimate the time of ``Einsum``, which multiplies its operands from left to right.

    Parameters
    ----------
    inputs, output : str
        Letters of the operands and of the result.
    sizes : mapping of str to int
        Size of every letter.
    itemsize : int
        Bytes of an element.

    Notes
    -----
    Each product transposes what it reads and what it writes; as for the steps of a plan, these
    moves count as much as the operations.
    """
    left, total = set(inputs[0]), _EINSUM
    for rank, letters in enumerate(inputs[1:], 1):
        kept, shared = set(output).union(*inputs[rank + 1 :]), left & set(letters)
        groups = (shared & kept, left - shared, set(letters) - shared, shared - kept)
        batch, rows, columns, depth = (_count(group, sizes) for group in groups)
        moved = batch * (rows * depth + depth * columns + rows * columns)
        total += _EINSUM + 2 * moved * itemsize * 2 * BYTE_S
        total += _product_seconds((batch, rows, columns), depth, itemsize)
        left = (left | set(letters)) & kept
    return total + _count(left, sizes) * itemsize * BYTE_S


def _count(letters: Iterable[str], sizes: Mapping[str, int]) -> int:
    return math.prod(sizes[x] for x in letters)


def _seconds(
    step: Step,
    inputs: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    itemsize: int,
    threads: int,
) -> float:
    moved = (sum(map(math.prod, inputs)) + math.prod(output)) * itemsize * BYTE_S
    match step.kind:
        case "reshape":
            return 0.0
        case "transpose":
            return transpose_seconds(inputs[0], step.where, itemsize)
        case "matmul":
            depth = (step.flop or 0) / max(2 * math.prod(output), 1)
            return max(moved, _product_seconds(output, depth, itemsize) / threads)
        case "reduce_sum":
            return moved + math.prod(inputs[0]) * _REDUCED
        case _:
            return moved


def _product_seconds(output: Sequence[int], depth: float, itemsize: int) -> float:
    """Time of a product of matrices, whose columns are computed by blocks."""
    *batch, rows, columns = (1, 1, *output)
    width = math.ceil(columns / _LANES) * _LANES if rows > 1 else columns
    flop = 2 * rows * width * depth * _FLOP * itemsize / 4
    return math.prod(batch) * (_PRODUCT + flop)
