"""Operations and bytes of a node, from the types and the shapes of its tensors.

Conventions:

* an addition, a multiplication, a division, a comparison or a function call such as an exponential
  is one operation, for any element type;
* a dot product of *K* terms (Gemm, MatMul, Conv) is *2K* operations; ``alpha`` and ``beta`` are not
  counted;
* other operators follow their definition: a sum of *n* terms is *n - 1* additions;
* bytes are the minimum that a kernel moves: every input is read once, every output is written once.
  A view (Reshape, Squeeze) moves nothing; a selection (Gather, Slice) reads as much as it writes;
* shapes are those of the kernel that ran, including the channels that a blocked layout adds.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import onnx

from ortmeter.dtypes import DTypeLike, short_name
from ortmeter.operators.counts import Shape, Work
from ortmeter.operators.registry import NCHWC, find_operator

__all__ = ["node_cost"]


class Cost(NamedTuple):
    """Work of one execution of a node."""

    flop: float
    bytes_moved: float


def node_cost(
    node: onnx.NodeProto,
    input_shapes: Sequence[Shape | None],
    output_shapes: Sequence[Shape | None],
    input_types: Sequence[DTypeLike | None],
    output_types: Sequence[DTypeLike | None],
) -> Cost | None:
    """Count the operations and the bytes of one execution of a node.

    Parameters
    ----------
    node : onnx.NodeProto
        Operator, domain (the standard one, ``com.microsoft`` or ``com.microsoft.nchwc``) and
        attributes.
    input_shapes, output_shapes : sequence of tuple of int or None
        Shape of each tensor, None for an optional one that is absent.
    input_types, output_types : sequence of dtype or None
        Their element types, see :mod:`ortmeter.dtypes`.

    Returns
    -------
    tuple of float, or None
        ``flop`` and ``bytes_moved``. None if the operator is unknown, or if its cost does not
        follow from the arguments: a string has no size, an input has no shape, or the operator does
        not accept a shape.

    Examples
    --------
    >>> node = onnx.helper.make_node("MatMul", ["A", "B"], ["C"])
    >>> node_cost(node, [(8, 16, 32), (32, 4)], [(8, 16, 4)], ["f32", "f32"], ["f32"])
    Cost(flop=32768, bytes_moved=18944)
    """
    entry = find_operator(node.op_type, node.domain)
    if node.domain == NCHWC and entry.cost is None:
        entry = find_operator(node.op_type)
    unknown = any(n and s is None for n, s in zip(node.input, input_shapes, strict=False))
    if entry.cost is None or unknown or not output_shapes or output_shapes[0] is None:
        return None
    read = list(zip(input_types, input_shapes, strict=True))
    written = list(zip(output_types, output_shapes, strict=True))
    if entry.reads == "selection":
        read = [*written, *read[1:]]
    moved = 0 if entry.reads == "nothing" else _total_bytes([*read, *written])
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    try:
        flop = entry.cost(Work(input_shapes, output_shapes[0], attributes))
    except (IndexError, KeyError):  # a rank or an attribute that the operator needs is missing
        return None
    return None if moved is None else Cost(flop, moved)


def _total_bytes(tensors: Sequence[tuple[DTypeLike | None, Shape | None]]) -> int | None:
    total = 0
    for dtype, shape in tensors:
        if dtype is None or shape is None:
            continue
        bits = re.search(r"\d+", short_name(dtype))  # short names count them, strings have none
        if bits is None:
            return None
        # Elements narrower than a byte are packed, the last byte is whole.
        total += -(-int(bits[0]) * math.prod(shape) // 8)
    return total


def activation(work: Work) -> float:
    """Count the operations per element of the activation that a fusion appended."""
    cost = find_operator(work.attributes.get("activation", b"").decode()).cost
    return cost(Work([(1,)], (1,), {})) if cost else 0
