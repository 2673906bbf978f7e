"""Describe values: tensors, lists of them and nothing, in ONNX and in words."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import onnx
import onnx.helper

from ortmeter.dtypes import onnx_type, short_name

element_type: Callable[[Any], int] = functools.cache(onnx_type)


def type_proto(value: Any, *, with_shapes: bool = False) -> onnx.TypeProto:
    """Describe a value in ONNX: its type and its rank, and its shape when asked for."""
    if value is None:
        return onnx.TypeProto()
    if isinstance(value, list):
        return onnx.helper.make_sequence_type_proto(type_proto(value[0] if value else None))
    shape = value.shape if with_shapes else [None] * value.ndim
    return onnx.helper.make_tensor_type_proto(element_type(value.dtype), shape)


def describe(values: Iterable[Any]) -> str:
    """Write values as ``f32[2, 3], nothing, a sequence of f32[2]``."""
    return ", ".join(map(_describe_value, values)) or "no input"


def _describe_value(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"a sequence of {_describe_value(value[0])}" if value else "an empty sequence"
    return describe_type(type_proto(value, with_shapes=True))


def describe_type(kind: onnx.TypeProto) -> str:
    """Write a type as ``f32[n, 3]``, ``sequence of f32[?]``, ``optional f32[]``."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            tensor = kind.tensor_type
            text = short_name(tensor.elem_type) if tensor.elem_type else "any type"
            if not tensor.HasField("shape"):
                return text
            dims = ", ".join(
                d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?")
                for d in tensor.shape.dim
            )
            return f"{text}[{dims}]"
        case "sequence_type":
            return f"sequence of {describe_type(kind.sequence_type.elem_type)}"
        case "optional_type":
            return f"optional {describe_type(kind.optional_type.elem_type)}"
    return "any type"
