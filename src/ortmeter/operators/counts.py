"""Counts of operations that operators share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Shape: TypeAlias = Sequence[int]


@dataclass(frozen=True)
class Work:
    """What a count may read."""

    inputs: Sequence[Shape | None]
    output: Shape
    attributes: dict[str, Any]

    @property
    def out(self) -> int:
        return math.prod(self.output)

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def shape(self, index: int) -> tuple[int, ...]:
        return tuple(self.inputs[index] or ())

    def size(self, index: int) -> int:
        return math.prod(self.shape(index))

    def integer(self, name: str, default: int = 0) -> int:
        return int(self.attributes.get(name, default))


Count: TypeAlias = Callable[[Work], float]


def per_element(operations: int) -> Count:
    """Count operations per element of the output."""
    return lambda work: operations * work.out


nothing = per_element(0)


def between_inputs(work: Work) -> float:
    """inputs - 1 an output."""  # noqa: D403
    return (len(work.inputs) - 1) * work.out


def reduction(*, terms: int, results: int) -> Count:
    """Count operations per element that is reduced, and per result."""
    return lambda work: terms * work.size(0) + results * work.out
