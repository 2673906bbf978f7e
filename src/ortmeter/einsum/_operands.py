"""Read the operands of an equation: arrays, or shapes."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortmeter.dtypes import DTypeLike, numpy_dtype
from ortmeter.einsum._sizes import Shape, Sizes, letter_sizes
from ortmeter.einsum.parse import Equation, parse_equation
from ortmeter.errors import FeedError, InvalidArgumentError

__all__ = ["Operands", "read_operands"]


@dataclass(frozen=True)
class Operands:
    """What an equation is applied to.

    Parameters
    ----------
    equation : Equation
        The equation, explicit.
    shapes : tuple of tuple of int, str or None
        Shape of each operand.
    sizes : Sizes
        Size of every letter.
    dtype : numpy.dtype
        Type of the elements.
    """

    equation: Equation
    shapes: tuple[Shape, ...]
    sizes: Sizes
    dtype: np.dtype[Any]

    def check_count(self, count: int) -> None:
        """Check that there are as many arrays as operands."""
        if count != len(self.shapes):
            raise FeedError(
                f"{self.equation.text!r} has {len(self.shapes)} operands, {count} were given"
            )

    def actual_sizes(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """Find the size of every letter for arrays, whose shapes must be these ones."""
        for i, (planned, shape) in enumerate(zip(self.shapes, shapes, strict=True)):
            same = [not isinstance(p, int) or p == s for p, s in zip(planned, shape, strict=False)]
            if len(planned) != len(shape) or not all(same):
                raise FeedError(f"X{i} has shape {shape}, the plan was made for {planned}")
        actual = letter_sizes(self.equation, shapes)
        both = zip(self.sizes.stretched, actual.stretched, strict=True)
        for i, (known, stretched) in enumerate(both):
            if set(stretched) - set(known):
                raise FeedError(
                    f"X{i} has size 1 along {stretched!r}, another operand has not: the plan "
                    "supposes that sizes that are not known are equal"
                )
        return {letter: size for letter, size in actual.of.items() if isinstance(size, int)}


def read_operands(
    equation: str, shapes_or_operands: Sequence[Any], dtype: DTypeLike | None
) -> Operands:
    """Read an equation and its operands.

    Parameters
    ----------
    equation : str
        What :func:`numpy.einsum` accepts.
    shapes_or_operands : sequence of tuple or array
        Shape of each operand, or the operand; empty when only the equation is known.
    dtype : dtype or None
        Type of the elements; None takes that of the operands, or float32.

    Returns
    -------
    Operands
        What was read.

    Raises
    ------
    EinsumError
        The equation is not valid or does not suit the operands.
    InvalidArgumentError
        A shape is not one, or the operands have several types.
    """
    if not isinstance(equation, str):
        raise InvalidArgumentError(f"equation={equation!r}. Accepted: a text such as 'ij,jk->ik'")
    given = shapes_or_operands or (None,) * (equation.count(",") + 1)
    shapes = [_shape(operand) for operand in given]
    parsed = parse_equation(equation, [None if s is None else len(s) for s in shapes])
    known = tuple(
        (None,) * len(letters) if shape is None else shape
        for letters, shape in zip(parsed.inputs, shapes, strict=True)
    )
    kind = _dtype(given) if dtype is None else numpy_dtype(dtype)
    return Operands(parsed, known, letter_sizes(parsed, known), kind)


def _shape(operand: Any) -> Shape | None:
    if operand is None:
        return None
    if isinstance(operand, int | float | complex):
        return ()
    shape = getattr(operand, "shape", operand)
    try:
        if isinstance(shape, str):
            raise TypeError("a name is not a shape")
        return tuple(d if d is None or isinstance(d, str) else _size(d) for d in shape)
    except TypeError as cause:
        raise InvalidArgumentError(
            f"{operand!r} is neither an array nor a shape. Accepted in a shape: integers from 0, "
            "names, None"
        ) from cause


def _size(dimension: Any) -> int:
    size = operator.index(dimension)
    if size < 0:
        raise TypeError(f"{size} is negative")
    return size


def _dtype(operands: Sequence[Any]) -> np.dtype[Any]:
    found = {numpy_dtype(x.dtype) for x in operands if hasattr(x, "dtype")}
    if len(found) > 1:
        names = ", ".join(sorted(kind.name for kind in found))
        raise InvalidArgumentError(f"Operands have several types: {names}. Accepted: one")
    return found.pop() if found else np.dtype(np.float32)
