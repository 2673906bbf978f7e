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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import onnx

from ortmeter.dtypes import DTypeLike, short_name

__all__ = ["node_cost"]

_Shape: TypeAlias = Sequence[int]


class Cost(NamedTuple):
    """Work of one execution of a node."""

    flop: float
    bytes_moved: float


def node_cost(
    node: onnx.NodeProto,
    input_shapes: Sequence[_Shape | None],
    output_shapes: Sequence[_Shape | None],
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
    domain = node.domain.removeprefix("ai.onnx")
    count = _COUNTS.get(domain, {}).get(node.op_type)
    named = zip(node.input, input_shapes, strict=False)
    unknown = any(name and shape is None for name, shape in named)
    if count is None or unknown or not output_shapes or output_shapes[0] is None:
        return None
    read = list(zip(input_types, input_shapes, strict=True))
    written = list(zip(output_types, output_shapes, strict=True))
    if not domain and node.op_type in _SELECTIONS:
        read = [*written, *read[1:]]
    moved = 0 if not domain and node.op_type in _VIEWS else _total_bytes([*read, *written])
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    try:
        flop = count(_Work(input_shapes, output_shapes[0], attributes))
    except (IndexError, KeyError):  # a rank or an attribute that the operator needs is missing
        return None
    return None if moved is None else Cost(flop, moved)


def _total_bytes(tensors: Sequence[tuple[DTypeLike | None, _Shape | None]]) -> int | None:
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


@dataclass(frozen=True)
class _Work:
    """What a count may read."""

    inputs: Sequence[_Shape | None]
    output: _Shape
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


_Count: TypeAlias = Callable[[_Work], float]


def _per_element(operations: int) -> _Count:
    return lambda work: operations * work.out


def _variadic(work: _Work) -> float:
    return (len(work.inputs) - 1) * work.out


def _reduction(*, terms: int, results: int) -> _Count:
    """Count operations per element that is reduced, and per result."""
    return lambda work: terms * work.size(0) + results * work.out


def _conv(work: _Work) -> float:
    # The fourth input of a fused convolution is added to its result.
    added = work.has(2) + work.has(3)
    return (2 * math.prod(work.shape(1)[1:]) + added + _activation(work)) * work.out


def _conv_transpose(work: _Work) -> float:
    return 2 * work.size(0) * math.prod(work.shape(1)[1:]) + work.out * work.has(2)


def _gemm(work: _Work) -> float:
    depth = work.shape(0)[0 if work.integer("transA") else 1]
    return (2 * depth + work.has(2) + _activation(work)) * work.out


def _matmul(work: _Work) -> float:
    shape, axis = work.shape(0), -1
    if work.integer("transA") and len(shape) > 1:
        # With transBatchA, the rows come before the dimensions of the batch.
        axis = 0 if work.integer("transBatchA") else -2
    return 2 * work.out * shape[axis]


def _activation(work: _Work) -> int:
    """Count the operations per element of the activation that a fusion appended."""
    return _PER_ELEMENT.get(work.attributes.get("activation", b"").decode(), 0)


def _softmax(*, per_row: int) -> _Count:
    def count(work: _Work) -> float:
        length = work.shape(0)[work.integer("axis", -1)]
        return 5 * work.size(0) + per_row * (work.size(0) // max(length, 1))

    return count


def _normalization(per_element: int, *, skip: bool = False) -> _Count:
    """Count a normalization over the last axes: mean, variance, division, scale and bias."""

    def count(work: _Work) -> float:
        rows = math.prod(work.shape(0)[: work.integer("axis", -1)])
        added = 1 + work.has(3) + work.has(4) if skip else work.has(2)
        return (per_element + added) * work.size(0) + 2 * rows

    return count


def _instance_normalization(work: _Work) -> float:
    return 7 * work.size(0) + 2 * math.prod(work.shape(0)[:2])


def _batch_normalization(work: _Work) -> float:
    # A scale and a bias for each channel first (+, sqrt, /, *, -), then one of each per element.
    return 2 * work.size(0) + 5 * work.size(1)


def _pool(per_window: int) -> _Count:
    return lambda work: (math.prod(work.attributes["kernel_shape"]) + per_window) * work.out


def _each(names: str, count: _Count) -> dict[str, _Count]:
    return dict.fromkeys(names.split(), count)


_VIEWS = {"Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"}
_SELECTIONS = {"Gather", "GatherElements", "GatherND", "Slice"}
# Operations per element of the output.
_PER_ELEMENT = {
    **dict.fromkeys(("Clip", "LeakyRelu", "PRelu"), 2),
    **dict.fromkeys(("Softplus", "Softsign"), 3),
    **dict.fromkeys(("HardSigmoid", "Sigmoid"), 4),
    **dict.fromkeys(("Gelu", "HardSwish"), 5),
    **dict.fromkeys(("Relu", "Tanh"), 1),
}
_STANDARD: dict[str, _Count] = {
    **dict.fromkeys(_VIEWS, _per_element(0)),
    **_each(
        "Cast CastLike Concat ConstantOfShape DepthToSpace Expand Gather GatherElements GatherND "
        "MemcpyFromHost MemcpyToHost Pad Slice SpaceToDepth Split Tile Transpose Trilu Where",
        _per_element(0),
    ),
    **_each(
        "Abs Ceil Cos Erf Exp Floor IsInf IsNaN Log Neg Not Reciprocal Round Sign Sin Sqrt Tan "
        "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Mod Mul Or Pow Sub Xor",
        _per_element(1),
    ),
    **{name: _per_element(operations) for name, operations in _PER_ELEMENT.items()},
    **_each("Max Min Sum", _variadic),
    "Mean": lambda work: _variadic(work) + work.out,
    **_each(
        "ReduceSum ReduceMax ReduceMin ReduceProd ArgMax ArgMin GlobalMaxPool",
        _reduction(terms=1, results=-1),
    ),
    **_each("ReduceMean GlobalAveragePool ReduceLogSum", _reduction(terms=1, results=0)),
    **_each("ReduceSumSquare ReduceL1", _reduction(terms=2, results=-1)),
    "ReduceL2": _reduction(terms=2, results=0),
    "ReduceLogSumExp": _reduction(terms=4, results=0),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    **_each("MatMul MatMulInteger", _matmul),
    "Softmax": _softmax(per_row=-2),
    "LogSoftmax": _softmax(per_row=-1),
    "LayerNormalization": _normalization(6),
    **_each("RMSNormalization SimplifiedLayerNormalization", _normalization(4)),
    "InstanceNormalization": _instance_normalization,
    "BatchNormalization": _batch_normalization,
    "MaxPool": _pool(-1),
    "AveragePool": _pool(0),
}
_FUSED: dict[str, _Count] = {
    "FusedConv": _conv,
    "FusedGemm": _gemm,
    "FusedMatMul": _matmul,
    "Gelu": _per_element(5),
    **_each("BiasGelu QuickGelu", _per_element(6)),
    "SkipLayerNormalization": _normalization(6, skip=True),
    "SkipSimplifiedLayerNormalization": _normalization(4, skip=True),
}
_COUNTS = {
    "": _STANDARD,
    "com.microsoft": _FUSED,
    "com.microsoft.nchwc": {
        **_STANDARD,
        **_each("ReorderInput ReorderOutput Upsample", _per_element(0)),
    },
}
