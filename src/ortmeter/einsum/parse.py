"""Parse an equation and its operands: letters, sizes, element type."""

import functools
import math
import operator
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ortmeter.dtypes import DTypeLike, numpy_dtype
from ortmeter.errors import InvalidArgumentError

Dim: TypeAlias = int | str | None
#: Integers, names of sizes that are free, None where nothing names a free size.
Shape: TypeAlias = tuple[Any, ...]
#: Each axis of a tensor is the letters that were merged into it; none has size 1.
Axes: TypeAlias = tuple[str, ...]

_TEXT = re.compile(r"(?:\.{3}|[A-Za-z, ])*(?:->(?:\.{3}|[A-Za-z ])*)?")
# What ONNX Runtime sums and multiplies as NumPy does.
_FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]
_TYPICAL = 16  # stands for a free size where costs are compared


class EinsumError(InvalidArgumentError):
    """An equation is not valid, or does not suit its operands.

    Parameters
    ----------
    message : str
        What is wrong, and what is accepted.
    equation : str
        The equation.

    Examples
    --------
    >>> print(EinsumError("'?' is not a letter", "i?->i"))
    'i?->i': '?' is not a letter
    """

    def __init__(self, message: str, equation: str) -> None:
        super().__init__(f"{equation!r}: {message}")
        self.equation = equation


@dataclass(frozen=True)
class Equation:
    """An equation whose ellipsis and implicit result are spelled out.

    The dimensions of an ellipsis have letters that the text lacks, the last ones for a lower rank.
    """

    text: str  # as it was given
    inputs: tuple[str, ...]  # letters of each operand, one per dimension
    output: str

    def __str__(self) -> str:
        return f"{','.join(self.inputs)}->{self.output}"


@functools.lru_cache(1024)
def parse_equation(equation: str, ranks: tuple[int, ...]) -> Equation:
    """Read what :func:`numpy.einsum` accepts, for operands of these ranks."""
    from opt_einsum.parser import parse_einsum_input

    if rest := _TEXT.sub("", equation, count=1):
        raise EinsumError(
            f"{rest[0]!r} is not accepted at position {len(equation) - len(rest)}. Accepted: "
            "letters a to z and A to Z, ',' and '...', then '->' and the letters of the result",
            equation,
        )
    operands, _, result = equation.replace(" ", "").partition("->")
    terms = operands.split(",")
    if max(term.count("...") for term in (*terms, result)) > 1:
        raise EinsumError("a second '...' in the same operand or result. Accepted: one", equation)
    if len(terms) != len(ranks):
        raise EinsumError(
            f"the equation has {len(terms)} operands, {len(ranks)} were given", equation
        )
    shapes = []
    for term, rank in zip(terms, ranks, strict=True):
        letters, more = len(term.replace("...", "")), " or more" * ("..." in term)
        if rank < letters or (rank > letters and not more):
            raise EinsumError(
                f"{term!r} has {letters} letters{more}, its array has {rank} dimensions", equation
            )
        shapes.append((1,) * rank)
    try:
        inputs, output, _ = parse_einsum_input((equation, *shapes), shapes=True)
    except ValueError as cause:
        raise EinsumError(str(cause), equation) from cause
    # opt_einsum would sum them.
    if lost := set(inputs) - set(equation) - set(output):
        raise EinsumError(
            f"'...' stands for {len(lost)} of the dimensions, the result needs it", equation
        )
    return Equation(equation, tuple(inputs.split(",")), output)


@dataclass(frozen=True)
class Operands:
    """What an equation is applied to: shapes of the operands, and their type.

    The size of every letter, the names of those whose size is free, and for each operand the
    letters along which its 1 is stretched, follow from the shapes.
    """

    equation: Equation
    shapes: tuple[Shape, ...]
    dtype: np.dtype[Any]
    size_of: Mapping[str, int] = field(compare=False)  # a typical one where it is free
    free: Mapping[str, str] = field(compare=False)
    stretched: tuple[str, ...] = field(compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"X{i}" for i in range(len(self.shapes)))

    @property
    def is_empty(self) -> bool:
        """Whether a size is known to be 0."""
        return 0 in self.size_of.values()

    def is_free(self, letters: Iterable[str]) -> bool:
        return not self.free.keys().isdisjoint(letters)

    def shape(self, axes: Axes) -> Shape:
        return tuple(self.free.get(x) if self.is_free(x) else self.count(x) for x in axes)

    def count(self, letters: Iterable[str]) -> int:
        """Elements of a tensor with these letters, if free sizes are typical ones."""
        return math.prod(map(self.size_of.__getitem__, letters))


def read_operands(
    equation: str, shapes_or_operands: tuple[Any, ...], dtype: DTypeLike | None
) -> Operands:
    """Read an equation and its operands, or their shapes; without any, all sizes are free."""
    if not isinstance(equation, str):  # the other form of numpy.einsum
        raise InvalidArgumentError(
            f"equation={reprlib.repr(equation)}. Accepted: a str such as 'ij,jk->ik'"
        )
    if shapes_or_operands:
        shapes = tuple(map(_shape, shapes_or_operands))
    elif "..." in equation:
        raise EinsumError(
            "shapes are needed to know how many dimensions '...' stands for", equation
        )
    else:
        terms = equation.replace(" ", "").partition("->")[0].split(",")
        shapes = tuple((None,) * len(term) for term in terms)
    parsed = parse_equation(equation, tuple(map(len, shapes)))
    kind = _dtype(shapes_or_operands) if dtype is None else numpy_dtype(dtype)
    computes = len(shapes) > 1 or not set(parsed.inputs[0]) <= set(parsed.output)
    if computes and kind not in _FLOATS:
        raise EinsumError(
            f"it multiplies or sums its operands, and their type is {kind.name}. Accepted: "
            "float16, float32, float64, and any type where elements are only moved",
            equation,
        )
    sizes, stretched = _letter_sizes(parsed, shapes)
    known = {x: size if isinstance(size, int) else _TYPICAL for x, size in sizes.items()}
    free = {x: size or x for x, size in sizes.items() if not isinstance(size, int)}
    # A size that one operand tells is that of all of them: ONNX Runtime then checks it.
    told = tuple(
        tuple(1 if x in ones else free.get(x, known[x]) for x in letters)
        for letters, ones in zip(parsed.inputs, stretched, strict=True)
    )
    return Operands(parsed, told, kind, known, free, stretched)


def _shape(operand: Any) -> Shape:
    if isinstance(operand, int | float | complex):
        return ()
    shape = getattr(operand, "shape", operand)
    try:
        if isinstance(shape, str):
            raise TypeError("a name is not a shape")
        return tuple(map(_size, shape))
    except TypeError as cause:
        raise InvalidArgumentError(
            f"{operand!r} is neither an array nor a shape. Accepted in a shape: integers from 0, "
            "names, None"
        ) from cause


def _size(dimension: Any) -> Dim:
    if dimension is None or isinstance(dimension, str):
        return dimension
    size = operator.index(dimension)
    if size < 0:
        raise TypeError(f"{size} is negative")
    return size


def _dtype(operands: Sequence[Any]) -> np.dtype[Any]:
    types = {numpy_dtype(kind) for kind in {x.dtype for x in operands if hasattr(x, "dtype")}}
    if len(types) > 1:
        names = ", ".join(sorted(kind.name for kind in types))
        raise InvalidArgumentError(f"Operands have several types: {names}. Accepted: one")
    return types.pop() if types else np.dtype(np.float32)


def _letter_sizes(
    equation: Equation, shapes: Sequence[Shape]
) -> tuple[dict[str, Dim], tuple[str, ...]]:
    """Find the size of every letter, and for each operand the letters along which it is stretched.

    Only a known 1 is stretched: free sizes of a letter are supposed to be equal.
    """
    sizes: dict[str, Dim] = {}
    owned: list[dict[str, Dim]] = []
    for letters, shape in zip(equation.inputs, shapes, strict=True):
        own: dict[str, Dim] = {}
        for letter, size in zip(letters, shape, strict=True):
            # Along a diagonal nothing is stretched.
            own[letter] = _join_sizes(equation, letter, own.get(letter, size), size)
        for letter, size in own.items():
            if sizes.get(letter, 1) == 1:
                sizes[letter] = size
            elif size != 1:
                sizes[letter] = _join_sizes(equation, letter, sizes[letter], size)
        owned.append(own)
    return sizes, tuple(
        "".join(x for x, size in own.items() if size == 1 != sizes[x]) for own in owned
    )


def _join_sizes(equation: Equation, letter: str, known: Dim, size: Dim) -> Dim:
    """Return the more precise of two sizes: a number, then a name."""
    if isinstance(known, int) and isinstance(size, int) and known != size:
        what = repr(letter) if letter in equation.text else "a dimension of '...'"
        raise EinsumError(
            f"{what} has sizes {known} and {size}. Accepted: equal sizes, or 1 in another operand",
            equation.text,
        )
    return min(known, size, key=lambda x: (not isinstance(x, int), x is None))
