"""What the graph of a model declares about its inputs, and how much memory they may take."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from ortmeter.dtypes import numpy_dtype, short_name
from ortmeter.errors import FeedError
from ortmeter.runtime.cpu import group_files
from ortmeter.runtime.graphs import walk_nodes


@dataclass(frozen=True)
class Input:
    """An input to be fed: initializers that are inputs too are left out.

    The shape holds sizes, names of the symbolic ones, None for those that have neither; it is None
    without a rank.
    """

    name: str
    element_type: int
    shape: tuple[int | str | None, ...] | None

    @property
    def sizes(self) -> tuple[int | str | None, ...]:
        """The sizes that are declared, none without a rank."""
        return self.shape or ()

    @property
    def kind(self) -> str:
        """What the elements are: text, boolean, integer or float."""
        name = short_name(self.element_type)
        named = {"s": "text", "b8": "boolean"}.get(name)
        return named or {"i": "integer", "u": "integer"}.get(name[0], "float")

    @property
    def dtype(self) -> np.dtype:
        """The numpy dtype of the elements; texts are objects."""
        if self.element_type == onnx.TensorProto.STRING:
            return np.dtype(object)
        return numpy_dtype(self.element_type)

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.sizes)
        sizes = "..." if self.shape is None else sizes
        return f"{self.name}: {short_name(self.element_type)}[{sizes}]"


def declared_inputs(model: onnx.ModelProto) -> list[Input]:
    given = {tensor.name for tensor in model.graph.initializer}
    given |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    return [_read_declared(info) for info in model.graph.input if info.name not in given]


def _read_declared(info: onnx.ValueInfoProto) -> Input:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        raise FeedError(
            f"input {info.name!r} is of type {(kind or 'unknown').removesuffix('_type')}. "
            "Accepted: a dense tensor"
        )
    tensor = info.type.tensor_type
    shape = tuple(map(_size, tensor.shape.dim)) if tensor.HasField("shape") else None
    return Input(info.name, tensor.elem_type, shape)


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return dim.dim_value
    # Some exporters name every size they do not know the same.
    return None if dim.dim_param in {"", "?"} else dim.dim_param


# Operators whose output holds the elements of their first input.
_KEEPS_ELEMENTS = {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze"}
_KEEPS_ELEMENTS |= {"Transpose", "Unsqueeze"}
_GATHERS = {"Gather", "GatherElements", "ScatterElements"}


def index_bounds(model: onnx.ModelProto) -> dict[str, int]:
    """Find the smallest size of what is indexed by each input that is an index, an exclusive bound.

    An input is one when it reaches the indices of a Gather, GatherElements or ScatterElements
    through operators that keep its elements. The bound is 0 for an axis of unknown size.
    """
    # Sizes that are not known are 0.
    shapes = {
        info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        for info in (*model.graph.input, *model.graph.value_info)
    } | {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    origin = {info.name: info.name for info in model.graph.input}
    bounds: dict[str, int] = {}
    for node in walk_nodes(model.graph.node):
        if node.op_type in _KEEPS_ELEMENTS and node.input and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        elif node.op_type in _GATHERS and len(node.input) > 1 and node.input[1] in origin:
            name = origin[node.input[1]]
            bounds[name] = min(_indexed_size(node, shapes), bounds.get(name, 2**31))
    return bounds


def _indexed_size(node: onnx.NodeProto, shapes: Mapping[str, list[int]]) -> int:
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    shape = shapes.get(node.input[0], [])
    return max(shape[axis] if -len(shape) <= axis < len(shape) else 0, 0)


def half_of_memory(root: Path = Path("/")) -> int:
    """Return half of the memory that this process may use, in bytes.

    That of the machine, or less where a container or a scheduler of jobs sets a limit; 2 GiB where
    the system does not tell.
    """
    if not hasattr(os, "sysconf"):
        return 2**31
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in group_files("memory.max", "memory", "memory.limit_in_bytes", root=root):
        with suppress(OSError, ValueError):  # no limit, or none that is told
            limits.append(int(file.read_text(encoding="ascii")))
    return min(limits) // 2
