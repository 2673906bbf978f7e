"""What is known to be wrong in the sources that this package does not write."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ortmeter.evaluator._node import Node

__all__ = ["KNOWN_ERRORS", "KnownError", "known_errors"]

_MASK, _PAST_KEY = 3, 4


def _always(_node: Node, _inputs: Sequence[Any]) -> bool:
    return True


@dataclass(frozen=True)
class KnownError:
    """A wrong answer of a source.

    Parameters
    ----------
    source : str
        Name of the source.
    op_type : str
        Operator of the standard domain.
    reason : str
        What is wrong.
    applies : callable
        Takes the node and its inputs, and tells whether the answer is wrong. Only their types,
        ranks and presence count, not their values.
    """

    source: str
    op_type: str
    reason: str
    applies: Callable[[Node, Sequence[Any]], bool] = _always


def _given(inputs: Sequence[Any], *positions: int) -> bool:
    """Tell whether optional inputs are there."""
    return all(i < len(inputs) and inputs[i] is not None for i in positions)


def _resize_aligned_by_scales(node: Node, inputs: Sequence[Any]) -> bool:
    mode = node.attributes.get("coordinate_transformation_mode")
    return mode == "align_corners" and not _given(inputs, 3)


def _before(opset: int) -> Callable[[Node, Sequence[Any]], bool]:
    return lambda node, _inputs: node.opset < opset


_FLATTENED = "the axes after the axis are one before opset 13; this normalizes one axis"

KNOWN_ERRORS = (
    # onnxruntime 1.31
    KnownError(
        "ort",
        "Attention",
        "its matrix product before softmax ignores the causal mask after a past, and it refuses a "
        "mask shorter than the keys",
        lambda _node, inputs: _given(inputs, _MASK),
    ),
    KnownError("ort", "DFT", "errors of 1e-4 in float32 for lengths that are not a power of two"),
    KnownError("ort", "STFT", "errors of 1e-5 in float32, that of its DFT"),
    KnownError(
        "ort",
        "MaxUnpool",
        "indices are read in the output shape given, not in the one that the kernel implies",
        lambda _node, inputs: _given(inputs, 2),
    ),
    KnownError(
        "ort",
        "Resize",
        "align_corners uses the rounded output size instead of the scales",
        _resize_aligned_by_scales,
    ),
    # onnx 1.23
    KnownError(
        "reference",
        "Optional",
        "a sequence becomes a sequence of sequences",
        lambda _node, inputs: bool(inputs) and isinstance(inputs[0], list),
    ),
    KnownError("reference", "Softmax", _FLATTENED, _before(13)),
    KnownError("reference", "LogSoftmax", _FLATTENED, _before(13)),
    KnownError("reference", "Hardmax", _FLATTENED, _before(13)),
)
"""Every known error: such a source is passed over, unless ``kernels`` asks for it."""


def known_errors(source: str, node: Node) -> list[KnownError]:
    """List what is known to be wrong for the operator of a node.

    Parameters
    ----------
    source : str
        Name of the source.
    node : Node
        A node of a model.

    Returns
    -------
    list of KnownError
        Those of the operator; whether they apply depends on the inputs.
    """
    if node.domain:
        return []
    return [
        error for error in KNOWN_ERRORS if error.source == source and error.op_type == node.op_type
    ]
