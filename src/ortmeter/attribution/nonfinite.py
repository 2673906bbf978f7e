"""Name the first nodes that make NaN and infinities."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortmeter.dtypes import float_info
from ortmeter.evaluator.node import Node
from ortmeter.runtime.arrays import as_numpy


@dataclass(frozen=True)
class NonFinite:
    """A value that is not finite, and the node that makes it.

    Parameters
    ----------
    node, op : str
        Its name, and its operator.
    reference : str
        What gives the expected value.
    fused : tuple of str
        Nodes fused with it, whose results do not exist in the session.
    is_fed : bool
        Whether the node reads infinities, from which it makes NaN.
    dtype : numpy.dtype
        Type of the value.
    got, expected : float
        The value, and the expected one: of all those that the node makes, the one expected to be
        the largest.
    """

    node: str
    op: str
    reference: str
    fused: tuple[str, ...]
    is_fed: bool
    dtype: np.dtype[Any]
    got: float
    expected: float

    def __str__(self) -> str:
        most, made = float(float_info(self.dtype).max), "NaN" if math.isnan(self.got) else self.got
        value = f"its {self.reference} value is {self.expected:.6g}"
        if math.isinf(self.got) and most < abs(self.expected) < math.inf:
            told = f"overflows {self.dtype}: {value}, the largest {self.dtype} is {most:.6g}"
        else:
            given = "infinities" if self.is_fed else "finite inputs"
            is_same = str(self.got) == str(self.expected)
            seen = f"as {self.reference} does from them" if is_same else value
            told = f"is the first node to make {made} from {given}, {seen}"
            told = f"(fused with {', '.join(self.fused)}) {told}" if self.fused else told
        return f"{self.op} {self.node} {told}"


def made_non_finite(
    node: Node,
    fused: tuple[str, ...],
    reference: str,
    values: tuple[Sequence[Any], Sequence[Any], Sequence[Any]],
) -> Iterator[NonFinite]:
    """Find what a node makes from finite inputs that is not finite, or NaN from infinities.

    The values are what it reads, the expected outputs and its outputs.
    """
    given, expected, got = values
    if all(np.isfinite(wide).all() for wide in _floats(got)):
        return  # most nodes: what they read is not looked at
    if any(np.isnan(wide).any() for wide in _floats(given)):
        return
    is_fed = any(np.isinf(wide).any() for wide in _floats(given))
    for value, wanted in zip(got, expected, strict=True):
        for wide in _floats([value]):
            exact = as_numpy(wanted).astype(np.float64)
            found = np.flatnonzero(np.isnan(wide) if is_fed else ~np.isfinite(wide))
            if found.size and wide.shape == exact.shape:
                sizes = np.where(np.isfinite(exact), np.abs(exact), -1.0).ravel()
                place = found[sizes[found].argmax()]
                numbers = float(wide.flat[place]), float(exact.flat[place])
                made = reference, fused, is_fed, as_numpy(value).dtype, *numbers
                yield NonFinite(node.label, node.operator, *made)


def first_non_finite(found: Sequence[NonFinite]) -> tuple[NonFinite, ...]:
    """Choose the first one made from finite inputs, not as expected if there is one, then fed."""
    ranked = sorted(found, key=lambda one: not math.isfinite(one.expected))
    firsts = {one.is_fed: one for one in reversed(ranked)}
    return tuple(firsts[is_fed] for is_fed in sorted(firsts))


def _floats(values: Iterable[Any]) -> Iterator[np.ndarray]:
    """Widen the arrays of floats."""
    arrays = (as_numpy(v) for v in values if v is not None and not isinstance(v, list))
    return (a.astype(np.float64, copy=False) for a in arrays if a.dtype.kind in "fV")
