"""Sequences, which are lists, and optionals, which are absent when None."""

from typing import Any

import torch
from torch import Tensor

from ortmeter.evaluator.torch_kernels._helpers import as_list
from ortmeter.evaluator.torch_kernels._registry import kernel

__all__ = [
    "concat_from_sequence",
    "optional",
    "optional_get_element",
    "optional_has_element",
    "sequence_at",
    "sequence_construct",
    "sequence_empty",
    "sequence_erase",
    "sequence_insert",
    "sequence_length",
    "split_to_sequence",
]


@kernel("SequenceConstruct", since=11)
def sequence_construct(*inputs: Tensor) -> list[Tensor]:
    """Make a sequence."""
    return list(inputs)


@kernel("SequenceEmpty", since=11)
def sequence_empty(*, dtype: int = 1) -> list[Tensor]:
    """Make an empty sequence."""
    del dtype
    return []


@kernel("SequenceAt", since=11)
def sequence_at(sequence: list[Tensor], position: Tensor) -> Tensor:
    """Read an element; negative positions count from the end."""
    return sequence[int(position)]


@kernel("SequenceErase", since=11)
def sequence_erase(sequence: list[Tensor], position: Tensor | None = None) -> list[Tensor]:
    """Remove an element, the last by default."""
    kept = list(sequence)
    del kept[-1 if position is None else int(position)]
    return kept


@kernel("SequenceInsert", since=11)
def sequence_insert(
    sequence: list[Tensor], tensor: Tensor, position: Tensor | None = None
) -> list[Tensor]:
    """Insert an element, at the end by default."""
    longer = list(sequence)
    longer.insert(len(longer) if position is None else int(position), tensor)
    return longer


@kernel("SequenceLength", since=11)
def sequence_length(sequence: list[Tensor]) -> Tensor:
    """Count the elements."""
    device = sequence[0].device if sequence and isinstance(sequence[0], Tensor) else None
    return torch.tensor(len(sequence), dtype=torch.int64, device=device)


@kernel("ConcatFromSequence", since=11)
def concat_from_sequence(sequence: list[Tensor], *, axis: int, new_axis: int = 0) -> Tensor:
    """Join the elements along an axis, new or not."""
    return torch.stack(sequence, axis) if new_axis else torch.cat(sequence, axis)


@kernel("SplitToSequence", since=11)
def split_to_sequence(
    x: Tensor, split: Tensor | None = None, *, axis: int = 0, keepdims: int = 1
) -> list[Tensor]:
    """Cut along an axis, in slices of one element by default."""
    if split is None:
        return list(torch.split(x, 1, axis) if keepdims else torch.unbind(x, axis))
    return list(torch.split(x, as_list(split) if split.ndim else int(split), axis))


@kernel("Optional", since=15)
def optional(x: Any = None, *, type: Any = None) -> Any:  # noqa: A002 - name of the attribute
    """Make an optional."""
    del type
    return x


@kernel("OptionalHasElement", since=15)
def optional_has_element(x: Any = None) -> Tensor:
    """Tell whether there is a value."""
    device = x.device if isinstance(x, Tensor) else None
    return torch.tensor(x is not None, device=device)


@kernel("OptionalGetElement", since=15)
def optional_get_element(x: Any) -> Any:
    """Read the value."""
    return x
