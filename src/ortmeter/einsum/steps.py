"""Steps of a plan: what each one computes, and what it costs."""

import itertools
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ortmeter.einsum._sizes import Axes, Shape

__all__ = ["Step", "result_name", "run_step", "spell"]

_Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Step:
    """One operation of a plan.

    Parameters
    ----------
    kind : {"diagonal", "reduce_sum", "transpose", "reshape", "mul", "matmul"}
        What it does.
    inputs : tuple of str
        Results that it reads.
    output : str
        Result that it writes.
    input_axes : tuple of tuple of str
        Axes of each input: the letters merged in each axis, none for an axis of size 1.
    axes : tuple of str
        Axes of the output.
    shape : tuple of int, str or None
        Shape of the output.
    flop : int or None
        Operations, counted as in :mod:`ortmeter.runtime.costs`; None when a size is not known.
    bytes_moved : int or None
        Bytes read and written, none by a reshape; None when a size is not known.
    where : tuple of int
        Permutation of a transpose, axes that a reduce_sum removes, first of the two adjacent axes
        of a diagonal.
    """

    kind: str
    inputs: tuple[str, ...]
    output: str
    input_axes: tuple[Axes, ...]
    axes: Axes
    shape: Shape
    flop: int | None
    bytes_moved: int | None
    where: tuple[int, ...] = ()

    @property
    def subscripts(self) -> str:
        """The step as an equation: ``b(st)h,bhd->b(st)d``, merged letters between brackets."""
        return f"{','.join(map(spell, self.input_axes))}->{spell(self.axes)}"


def spell(axes: Axes) -> str:
    """Write axes as one text, merged letters between brackets.

    Parameters
    ----------
    axes : tuple of str
        Letters of each axis.

    Examples
    --------
    >>> spell(("b", "st", "", "h"))
    'b(st)()h'
    """
    return "".join(letters if len(letters) == 1 else f"({letters})" for letters in axes)


def result_name(root: str, axes: Axes, taken: Container[str] = ()) -> str:
    """Name a result after what it comes from and its axes.

    Parameters
    ----------
    root : str
        Operand or product.
    axes : tuple of str
        Letters of each axis.
    taken : container of str
        Names of other results.

    Examples
    --------
    >>> result_name("X0", ("b", "st", ""))
    'X0_b_st_1'
    """
    base = "_".join((root, *(letters or "1" for letters in axes))) if axes else f"{root}_scalar"
    names = (base if i == 1 else f"{base}_v{i}" for i in itertools.count(1))
    return next(name for name in names if name not in taken)


def run_step(step: Step, inputs: Sequence[_Array], sizes: Mapping[str, int]) -> _Array:
    """Execute a step with NumPy.

    Parameters
    ----------
    step : Step
        What to execute.
    inputs : sequence of array
        The results that it reads.
    sizes : mapping of str to int
        Size of every letter.

    Returns
    -------
    array
        Its result, of the type of the inputs.
    """
    return _RUN[step.kind](step, inputs, sizes)


def _diagonal(step: Step, inputs: Sequence[_Array], _: Mapping[str, int]) -> _Array:
    (axis,) = step.where
    return np.moveaxis(np.diagonal(inputs[0], axis1=axis, axis2=axis + 1), -1, axis)


def _reduce_sum(step: Step, inputs: Sequence[_Array], _: Mapping[str, int]) -> _Array:
    # Without a type, NumPy sums narrow integers as wide ones and booleans as integers.
    return np.asarray(np.sum(inputs[0], axis=step.where, dtype=inputs[0].dtype))


def _transpose(step: Step, inputs: Sequence[_Array], _: Mapping[str, int]) -> _Array:
    return np.transpose(inputs[0], step.where)


def _reshape(step: Step, inputs: Sequence[_Array], sizes: Mapping[str, int]) -> _Array:
    shape = [math.prod(sizes[letter] for letter in letters) for letters in step.axes]
    return np.reshape(inputs[0], shape)


def _mul(_: Step, inputs: Sequence[_Array], __: Mapping[str, int]) -> _Array:
    return np.asarray(np.multiply(*inputs))


def _matmul(_: Step, inputs: Sequence[_Array], __: Mapping[str, int]) -> _Array:
    return np.asarray(np.matmul(*inputs))


_RUN: dict[str, Callable[[Step, Sequence[_Array], Mapping[str, int]], _Array]] = {
    "diagonal": _diagonal,
    "reduce_sum": _reduce_sum,
    "transpose": _transpose,
    "reshape": _reshape,
    "mul": _mul,
    "matmul": _matmul,
}
