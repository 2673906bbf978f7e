"""Short texts for the types, tensors and attributes of a model.

A model is untrusted input: every text taken from it goes through :func:`clean`.
"""

import math
from collections.abc import Iterable

import onnx
import onnx.numpy_helper

from ortmeter.dtypes import short_name
from ortmeter.errors import InvalidArgumentError

__all__ = ["at_most", "attribute_text", "clean", "fill", "shorten", "tensor_text", "type_text"]

MAX_VALUES = 6
MAX_LINE = 30
MAX_LABEL = 40


def clean(text: str) -> str:
    """Replace what cannot be printed (control, bidirectional override, invalid in XML)."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def shorten(text: str, limit: int = MAX_LABEL) -> str:
    """Cut a text to *limit* characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def at_most(limit: int, lines: Iterable[str]) -> list[str]:
    """Keep *limit* lines; the last one counts those that are left out."""
    lines = list(lines)
    if len(lines) <= limit:
        return lines
    return [*lines[: limit - 1], f"… {len(lines) - limit + 1} more"]


def fill(texts: Iterable[str]) -> list[str]:
    """Put several short texts on a line."""
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + len(text) <= MAX_LINE:
            lines[-1] += f", {text}"
        else:
            lines.append(text)
    return lines


def type_text(info: onnx.TypeProto) -> str:
    """Write a type, ``float32[n,4]`` for a tensor, an empty text when it is unknown."""
    kind = info.WhichOneof("value")
    match kind:
        case "tensor_type":
            return _tensor_type_text(info.tensor_type)
        case "sparse_tensor_type":
            return f"sparse {_tensor_type_text(info.sparse_tensor_type)}"
        case "sequence_type" | "optional_type":
            return f"{kind.removesuffix('_type')}({type_text(getattr(info, kind).elem_type)})"
        case "map_type":
            key = _element_text(info.map_type.key_type)
            return f"map({key}, {type_text(info.map_type.value_type)})"
        case _:
            return ""


def tensor_text(tensor: onnx.TensorProto) -> str:
    """Write the type and shape of a constant, with its values when it has a few of them."""
    text = f"{_element_text(tensor.data_type)}[{','.join(map(str, tensor.dims))}]"
    values = _values_text(tensor)
    return f"{text} = {values}" if values else text


def attribute_text(attribute: onnx.AttributeProto) -> str:
    """Write an attribute, ``axis=1``; an empty text for a subgraph, which is drawn."""
    kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
    if kind in {"GRAPH", "GRAPHS"}:
        return ""
    if attribute.ref_attr_name:
        return clean(f"{attribute.name}=@{attribute.ref_attr_name}")
    match kind:
        case "TENSOR":
            value = tensor_text(attribute.t)
        case "INT" | "FLOAT" | "STRING":
            value = _scalar_text(onnx.helper.get_attribute_value(attribute))
        case "INTS" | "FLOATS" | "STRINGS":
            value = _list_text(list(onnx.helper.get_attribute_value(attribute)))
        case _:
            value = f"({kind.lower().replace('_', ' ')})"
    return clean(f"{attribute.name}={value}")


def _tensor_type_text(info: onnx.TypeProto.Tensor | onnx.TypeProto.SparseTensor) -> str:
    element = _element_text(info.elem_type)
    if not info.HasField("shape"):
        return element
    return f"{element}[{','.join(map(_dimension_text, info.shape.dim))}]"


def _dimension_text(dimension: onnx.TensorShapeProto.Dimension) -> str:
    if dimension.HasField("dim_value"):
        return str(dimension.dim_value)
    return shorten(clean(dimension.dim_param), 20) or "?"


def _element_text(element: int) -> str:
    try:
        return short_name(element)
    except InvalidArgumentError:
        return f"type {element}"


def _values_text(tensor: onnx.TensorProto) -> str:
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    if external or math.prod(tensor.dims) not in range(1, MAX_VALUES + 1):
        return ""
    try:
        values = onnx.numpy_helper.to_array(tensor).ravel().tolist()
    except (KeyError, TypeError, ValueError):  # a malformed tensor has no values to show
        return ""
    return _list_text(values) if tensor.dims else _scalar_text(values[0])


def _list_text(values: list[object]) -> str:
    shown = ",".join(map(_scalar_text, values[:MAX_VALUES]))
    return f"[{shown}]" if len(values) <= MAX_VALUES else f"[{shown},…]"


def _scalar_text(value: object) -> str:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        return shorten(clean(value))
    return format(value, ".4g") if isinstance(value, float) else str(value)
