"""Queries, keys and values, or gates and values, that one product computes side by side."""

from itertools import pairwise
from typing import Any

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.rule import BF16, F16, F32, F64, MICROSOFT, Rule
from ortmeter.backend.rules.values import (
    constant,
    copy_type,
    dimensions,
    from_operator,
    producer,
    readers_beside,
)

__all__ = ["RULES", "PackedGroupQuery", "SlicesToSplit"]

_QUERIES_KEYS_VALUES = 3


class SlicesToSplit:
    """Slices that cut a result into consecutive parts -> one Split.

    The first of them writes the Split, the others find it.
    """

    def pattern(  # noqa: PLR0917 - the inputs of a pattern have positions
        self, op: Any, x: Any, begin: Any, end: Any, axes: Any, steps: Any
    ) -> Any:
        """One part."""
        return op.Slice(x, begin, end, axes, steps, _outputs=["y"])

    def rewrite(self, op: Any, *, x: ir.Value, y: ir.Value, **_: ir.Value) -> Any:
        """Together, the slices along an axis must be the whole of it."""
        part = _part(producer(y))
        if part is None:
            return None
        axis, bounds = part
        readers = readers_beside(x, producer(y))
        made = _split_parts(x, axis, readers)
        if bounds in made:
            return op.Identity(made[bounds])
        cuts = _cuts(x, axis, readers)
        if bounds not in cuts:
            return None
        sizes = ir.tensor(np.array([end - begin for begin, end in cuts], np.int64))
        results = op.Split(x, op.Constant(value=sizes), axis=axis, _outputs=len(cuts))
        shape = dimensions(x) or ()
        for result, (begin, end) in zip(results, cuts, strict=True):
            copy_type(result, x, (*shape[:axis], end - begin, *shape[axis + 1 :]))
        return results[cuts.index(bounds)]


def _part(node: ir.Node) -> tuple[int, tuple[int, int]] | None:
    """Give the axis of a slice without steps, and what it keeps: the begin and the end."""
    shape, arrays = dimensions(node.inputs[0]), [constant(value) for value in node.inputs[1:]]
    numbers = [int(a.item()) for a in arrays if a is not None and a.size == 1]
    if shape is None or len(numbers) != len(arrays) or len(arrays) != len(("b", "e", "a", "s")):
        return None
    begin, end, axis, step = numbers
    size = shape[axis] if -len(shape) <= axis < len(shape) else None
    if not isinstance(size, int) or step != 1:
        return None
    first, last, _ = slice(begin, end).indices(size)
    return axis % len(shape), (first, last)


def _cuts(x: ir.Value, axis: int, readers: list[ir.Node]) -> list[tuple[int, int]]:
    """Give the parts that the slices of a value keep, when each begins where another ends."""
    slices = [node for node in readers if node.op_identifier() == ("", "Slice", "")]
    parts = [_part(node) for node in slices if node.inputs[0] is x]
    cuts = sorted({part[1] for part in parts if part is not None and part[0] == axis})
    size = (dimensions(x) or ())[axis]
    edges = [(0, 0), *cuts, (size, size)]
    follow = all(left[1] == right[0] for left, right in pairwise(edges))
    return cuts if follow and all(begin < end for begin, end in cuts) else []


def _split_parts(x: ir.Value, axis: int, readers: list[ir.Node]) -> dict[tuple[int, int], ir.Value]:
    """Give the results of the Split of a value along an axis, by what they keep."""
    found: dict[tuple[int, int], ir.Value] = {}
    for node in readers:
        if node.op_identifier() != ("", "Split", "") or node.inputs[0] is not x:
            continue
        if node.attributes.get_int("axis", 0) != axis:
            continue
        sizes = constant(node.inputs[1]) if len(node.inputs) > 1 else None
        if sizes is not None:
            ends = [int(end) for end in np.cumsum(sizes)]
            found |= dict(zip(zip([0, *ends], ends, strict=False), node.outputs, strict=True))
    return found


class PackedGroupQuery:
    """GroupQueryAttention of the three parts of a result -> of the result, left in one piece."""

    def pattern(self, op: Any, q: Any, k: Any, v: Any) -> Any:
        """The cache that it returns may be used."""
        return op.GroupQueryAttention(
            *(q, k, v),
            _domain=MICROSOFT,
            _allow_other_inputs=True,
            _outputs=["y", "keys", "values"],
        )

    def rewrite(
        self, op: Any, *, q: ir.Value, k: ir.Value, v: ir.Value, y: ir.Value, **_: Any
    ) -> Any:
        """The parts must be queries, keys and values, in this order."""
        node, split = producer(y), from_operator(q, "Split")
        packed = None if split is None else dimensions(split.inputs[0], rank=3)
        if split is None or packed is None or tuple(split.outputs) != (q, k, v):
            return None
        if split.attributes.get_int("axis", 0) not in {-1, len(packed) - 1}:
            return None
        rest = node.inputs[_QUERIES_KEYS_VALUES:]
        return op.GroupQueryAttention(
            *(split.inputs[0], None, None, *rest),
            **node.attributes,
            _outputs=3,
            _domain=MICROSOFT,
        )


_TYPES = frozenset({F32, F64, F16, BF16})

#: The rules of this family.
RULES = (
    Rule("SlicesToSplit", "default", (SlicesToSplit(),), {"cpu": _TYPES, "cuda": _TYPES}),
    Rule(
        "PackedGroupQuery",
        "onnxruntime",
        (PackedGroupQuery(),),
        {"cpu": frozenset({F32, F16}), "cuda": frozenset({F16, BF16})},
    ),
)
