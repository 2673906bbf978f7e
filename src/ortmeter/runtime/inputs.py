"""What the graph of a model declares about its inputs, and how much memory they may take."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from ortmeter.dtypes import numpy_dtype, short_name
from ortmeter.errors import FeedError, InvalidArgumentError
from ortmeter.runtime.control_groups import group_files
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
    return [_describe(info) for info in model.graph.input if info.name not in given]


def _describe(info: onnx.ValueInfoProto) -> Input:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        raise FeedError(
            f"input {info.name!r} is of type {(kind or 'unknown').removesuffix('_type')}. "
            "Accepted: a dense tensor"
        )
    tensor = info.type.tensor_type
    try:
        short_name(tensor.elem_type)
    except InvalidArgumentError:
        raise FeedError(
            f"input {info.name!r} has element type {tensor.elem_type}. "
            "Accepted: those of onnx.TensorProto.DataType"
        ) from None
    shape = tuple(map(_size, tensor.shape.dim)) if tensor.HasField("shape") else None
    return Input(info.name, tensor.elem_type, shape)


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return dim.dim_value
    return dim.dim_param or None


def resolve_shapes(
    inputs: Sequence[Input],
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
) -> dict[str, tuple[int, ...]]:
    """Choose the shape of each input; the symbolic dimensions of one hold for the others."""
    _refuse_unknown("shape", shapes, [declared.name for declared in inputs])
    for sizes in (dims.values(), *shapes.values()):
        for size in sizes:
            if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 0:
                raise FeedError(f"got size {size!r}. Accepted: integers >= 0")
    known = dict(dims)
    for declared in inputs:
        if declared.name in shapes:
            _learn(declared, shapes[declared.name], known)
    symbols = [size for declared in inputs for size in declared.sizes if isinstance(size, str)]
    _refuse_unknown("dimension", dims, list(dict.fromkeys(symbols)))
    _refuse_unresolved(inputs, known, shapes)
    return {
        declared.name: tuple(shapes[declared.name])
        if declared.name in shapes
        else tuple(known[size] if isinstance(size, str) else size or 0 for size in declared.sizes)
        for declared in inputs
    }


def _refuse_unknown(what: str, given: Mapping[str, object], accepted: Sequence[str]) -> None:
    if unknown := [name for name in given if name not in accepted]:
        raise FeedError(
            f"{what} given for {', '.join(map(repr, unknown))}. "
            f"Accepted: {', '.join(map(repr, accepted)) or 'none, all sizes are fixed'}"
        )


def _learn(declared: Input, shape: Sequence[int], known: dict[str, int]) -> None:
    if declared.shape is None:
        return
    if len(shape) != len(declared.shape):
        raise FeedError(f"shape {tuple(shape)} given for {declared}: the ranks differ")
    for size, asked in zip(shape, declared.shape, strict=True):
        expected = known.setdefault(asked, size) if isinstance(asked, str) else asked
        if expected is not None and size != expected:
            raise FeedError(
                f"shape {tuple(shape)} given for {declared}: {size} where {expected} is expected"
            )


def _refuse_unresolved(
    inputs: Sequence[Input], known: Mapping[str, int], shapes: Mapping[str, Sequence[int]]
) -> None:
    waiting = [declared for declared in inputs if declared.name not in shapes]
    named = {size: 0 for d in waiting for size in d.sizes if isinstance(size, str)}
    if missing := [name for name in named if name not in known]:
        options = " ".join(f"--dim {name}=SIZE" for name in missing)
        raise FeedError(
            f"no size for dimension{'s' if len(missing) > 1 else ''} "
            f"{', '.join(map(repr, missing))}. Accepted: dims={{name: size}} in Python, "
            f"{options} on the command line"
        )
    blank = [d for d in waiting if d.shape is None or None in d.shape]
    if blank:
        lacking = "no rank" if blank[0].shape is None else "unnamed dimension"
        raise FeedError(
            f"{lacking} in {blank[0]}. Accepted: shapes={{name: shape}} in Python, "
            f"--shape {blank[0].name}=... on the command line"
        )


# Operators whose output holds the elements of their first input.
_KEEPS_ELEMENTS = {
    "Cast",
    "Expand",
    "Flatten",
    "Identity",
    "Reshape",
    "Slice",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
}
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
