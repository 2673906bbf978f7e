"""Check what is given to a model against what its graph declares."""

from collections.abc import Callable, Mapping
from typing import Any

import onnx

from ortmeter.dtypes import short_name
from ortmeter.errors import FeedError, InvalidArgumentError
from ortmeter.evaluator._attributes import initializers
from ortmeter.evaluator._values import Memory, element_type

__all__ = ["FeedChecker"]


class FeedChecker:
    """The inputs of a graph.

    Parameters
    ----------
    graph : GraphProto
        Inputs that have an initializer are optional.
    memory : Memory
        Where values are put.
    """

    def __init__(self, graph: onnx.GraphProto, memory: Memory) -> None:
        defaults = {name for name, _ in initializers(graph)}
        self._inputs = [
            (value.name, value.name not in defaults, value.type, _checker(value.type))
            for value in graph.input
        ]
        self._known = {value.name for value in graph.input}
        self._memory = memory

    def take(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the values in the order of the graph; ``None`` for a default."""
        values = []
        for name, is_required, kind, fits in self._inputs:
            if name in feeds:
                value = self._convert(name, feeds[name], kind)
                if not fits(value):
                    raise FeedError(f"{_wanted(name, kind)} was given {_describe(value)}")
                values.append(value)
            elif is_required:
                raise FeedError(f"Missing input: {name!r}. {self._expected()}")
            else:
                values.append(None)
        if not feeds.keys() <= self._known:
            unknown = ", ".join(repr(name) for name in feeds if name not in self._known)
            raise FeedError(f"Unknown inputs: {unknown}. {self._expected()}")
        return values

    def _convert(self, name: str, value: Any, kind: onnx.TypeProto) -> Any:
        try:
            return self._memory.receive(value)
        except InvalidArgumentError as cause:
            raise FeedError(f"{_wanted(name, kind)} cannot be read: {cause}") from cause

    def _expected(self) -> str:
        return "Expected: " + ", ".join(
            f"{name!r} {describe_type(kind)}" for name, _, kind, _ in self._inputs
        )


def _wanted(name: str, kind: onnx.TypeProto) -> str:
    return f"Input {name!r} {describe_type(kind)}"


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


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"a sequence of {_describe(value[0])}" if value else "an empty sequence"
    return f"{short_name(element_type(value.dtype))}{list(value.shape)}"


def _checker(kind: onnx.TypeProto) -> Callable[[Any], bool]:
    """Compile a declared type into a test of a value."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            return _tensor_checker(kind.tensor_type)
        case "sequence_type":
            inner = _checker(kind.sequence_type.elem_type)
            return lambda value: isinstance(value, list) and all(map(inner, value))
        case "optional_type":
            inner = _checker(kind.optional_type.elem_type)
            return lambda value: value is None or inner(value)
    return lambda _value: True


def _tensor_checker(declared: onnx.TypeProto.Tensor) -> Callable[[Any], bool]:
    dims = declared.shape.dim
    wanted = declared.elem_type
    rank = len(dims) if declared.HasField("shape") else None
    fixed = [(i, dim.dim_value) for i, dim in enumerate(dims) if dim.HasField("dim_value")]

    def fits(value: Any) -> bool:
        if value is None or isinstance(value, list):
            return False
        if wanted and element_type(value.dtype) != wanted:
            return False
        shape = value.shape
        return rank is None or (
            len(shape) == rank and all(shape[axis] == size for axis, size in fixed)
        )

    return fits
