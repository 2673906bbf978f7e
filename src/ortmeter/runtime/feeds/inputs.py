"""What the graph of a model declares about its inputs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from ortmeter.dtypes import numpy_dtype, short_name
from ortmeter.errors import FeedError, InvalidArgumentError

__all__ = ["Input", "declared_inputs", "resolve_shapes"]


@dataclass(frozen=True)
class Input:
    """An input to be fed: initializers that are inputs too are left out.

    Parameters
    ----------
    name : str
        Name.
    element_type : int
        ONNX element type.
    shape : tuple of int, str or None, or None
        Sizes, names of the symbolic ones, None for those that have neither; None without a rank.
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
    """List the inputs of a model that must be fed.

    Raises
    ------
    FeedError
        An input is not a dense tensor, or has an unknown type.
    """
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
    """Choose the shape of each input.

    Parameters
    ----------
    inputs : sequence of Input
        What is declared.
    dims : mapping of str to int
        Sizes of the symbolic dimensions.
    shapes : mapping of str to sequence of int
        Whole shapes of some inputs; their symbolic dimensions hold for the others.

    Raises
    ------
    FeedError
        A name is unknown, a given shape contradicts the declared one or another size, or a
        dimension has no size.
    """
    _refuse_unknown("shape", shapes, [declared.name for declared in inputs])
    for sizes in (dims.values(), *shapes.values()):
        _refuse_other_than_sizes(sizes)
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


def _refuse_other_than_sizes(sizes: Iterable[object]) -> None:
    for size in sizes:
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 0:
            raise FeedError(f"a size is {size!r}. Accepted: integers >= 0")


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
            f"no size for dimension {', '.join(map(repr, missing))}: give dims={{name: size}}, "
            f"or {options} on the command line"
        )
    blank = [d for d in waiting if d.shape is None or None in d.shape]
    if blank:
        lacking = "no rank" if blank[0].shape is None else "unnamed dimension"
        raise FeedError(
            f"{lacking} in {blank[0]}: give shapes={{name: shape}}, "
            f"or --shape {blank[0].name}=... on the command line"
        )
