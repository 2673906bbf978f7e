"""Sequences, which are lists, and optionals, which are absent when None."""

from typing import Any

from ortmeter.operators.late import Tensor, torch
from ortmeter.operators.registry import family, kernel
from ortmeter.operators.tensors import as_list, kernels

declare = family("other")
declare("ConcatFromSequence SplitToSequence", kind="movement")
declare("SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength")
declare("Optional OptionalGetElement OptionalHasElement")


def _insert(sequence: list[Tensor], tensor: Tensor, position: Tensor | None = None) -> list[Tensor]:
    longer = list(sequence)
    longer.insert(len(longer) if position is None else int(position), tensor)
    return longer


def _erase(sequence: list[Tensor], position: Tensor | None = None) -> list[Tensor]:
    kept = list(sequence)
    del kept[-1 if position is None else int(position)]
    return kept


def _length(sequence: list[Tensor]) -> Tensor:
    device = sequence[0].device if sequence and isinstance(sequence[0], torch.Tensor) else None
    return torch.tensor(len(sequence), dtype=torch.int64, device=device)


def _concat(sequence: list[Tensor], *, axis: int, new_axis: int = 0) -> Tensor:
    return torch.stack(sequence, axis) if new_axis else torch.cat(sequence, axis)


def _has_element(x: Any = None) -> Tensor:
    return torch.tensor(x is not None, device=x.device if isinstance(x, torch.Tensor) else None)


kernels(
    ("SequenceConstruct", 11, lambda *inputs: list(inputs)),
    ("SequenceEmpty", 11, lambda *, dtype=1: []),  # noqa: ARG005 - what it would hold
    ("SequenceAt", 11, lambda sequence, position: sequence[int(position)]),
    ("SequenceErase", 11, _erase),
    ("SequenceInsert", 11, _insert),
    ("SequenceLength", 11, _length),
    ("ConcatFromSequence", 11, _concat),
    ("Optional", 15, lambda x=None, *, type=None: x),  # noqa: A006, ARG005 - what it would hold
    ("OptionalHasElement", 15, _has_element),
    ("OptionalGetElement", 15, lambda x: x),
)


@kernel("SplitToSequence", since=11)
def _split(
    x: Tensor, split: Tensor | None = None, *, axis: int = 0, keepdims: int = 1
) -> list[Tensor]:
    if split is None:
        return list(torch.split(x, 1, axis) if keepdims else torch.unbind(x, axis))
    return list(torch.split(x, as_list(split) if split.ndim else int(split), axis))
