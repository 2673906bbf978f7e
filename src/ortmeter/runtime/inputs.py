"""Inputs that a model declares: values that they hold, shapes that they may have, their memory."""

import os
import re
import reprlib
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import onnx

from ortmeter.dtypes import numpy_dtype, short_name
from ortmeter.errors import FeedError
from ortmeter.runtime.arrays import as_numpy, is_array
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


_MOST_AXES = 32  # that iterators of numpy take
_PYTHON = (bool, int, float, str)
_KINDS: Mapping[str, tuple[type, ...]] = {
    "text": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "float": (int, float),
}
_READERS: Mapping[str, Callable[[str], Any]] = {
    "text": str,
    "boolean": lambda text: {"true": True, "false": False}[text.lower()],
    "integer": int,
    "float": float,
}


def as_declared(declared: Input, value: Any) -> np.ndarray:
    """Make the array of an input from Python values, checked one by one, or check an array."""
    if isinstance(value, np.generic):
        value = value.item()
    if is_array(value) and not isinstance(value, _PYTHON):
        array = as_numpy(value)
        refuse_misfit(declared, array)
        return array
    given = np.array(value, object)  # of lists when their lengths differ
    if given.ndim > _MOST_AXES:
        raise _refusal(declared, value)
    for element in given.flat:
        if not isinstance(element, _KINDS[declared.kind]) or (
            isinstance(element, bool) and declared.kind != "boolean"
        ):
            raise _refusal(declared, element)
    if declared.kind == "text":
        return given
    return _cast_to_declared(declared, given)


def _cast_to_declared(declared: Input, given: np.ndarray) -> np.ndarray:
    """Convert to the element type; a number out of its range is refused."""
    if declared.kind == "integer":
        low, high = _range(declared)
        for element in given.flat:
            if not low <= element <= high:
                raise _refusal(declared, element)
        return given.astype(np.uint64 if high >= 2**63 else np.int64).astype(declared.dtype)
    try:
        exact = given.astype(np.float64)
    except OverflowError:  # an integer of Python
        raise _refusal(declared, max(given.flat, key=abs)) from None
    with np.errstate(over="ignore", invalid="ignore"):
        array = exact.astype(declared.dtype)
        lost = np.isfinite(exact) & ~np.isfinite(array.astype(exact.dtype))
    if lost.any():
        raise _refusal(declared, exact[lost].flat[0].item())
    return array


def _range(declared: Input) -> tuple[int, int]:
    limits: Any = ml_dtypes.iinfo(declared.dtype)
    return int(limits.min), int(limits.max)


def _refusal(declared: Input, element: Any) -> FeedError:
    accepted = {
        "text": "texts",
        "boolean": "true or false",
        "float": "numbers that this type holds",
    }.get(declared.kind)
    if accepted is None:
        accepted = "integers from {} to {}".format(*_range(declared))
    return FeedError(f"value {reprlib.repr(element)} given for {declared}. Accepted: {accepted}")


def refuse_misfit(declared: Input, array: np.ndarray, origin: str = "") -> None:
    """Check the type and the rank of an array."""
    same_type = array.dtype == declared.dtype or (
        declared.kind == "text" and array.dtype.kind in "UO"
    )
    if not same_type or (declared.shape is not None and array.ndim != len(declared.shape)):
        where = f"{origin!r} has" if origin else "got"
        raise FeedError(
            f"{where} {declared.name!r} of type {array.dtype} and shape {array.shape}. "
            f"Accepted: {declared}"
        )


def parse_value(declared: Input, text: str) -> Any:
    """Read one value, values separated by commas, or nested lists in JSON."""
    if declared.shape == ():
        return _read_text(declared.kind, text)
    if text.startswith("["):
        return decode_json(text)
    values = [_read_text(declared.kind, part) for part in text.split(",")]
    return values[0] if len(values) == 1 else values


def _read_text(kind: str, text: str) -> Any:
    try:
        return _READERS[kind](text)
    except (ValueError, KeyError):
        return text  # which is rejected, with a list of the valid values


def decode_json(text: str | bytes) -> Any:
    """Read JSON as its standard defines it: no NaN."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as cause:
        raise FeedError(f"this is not JSON: {cause}") from cause


def resolve_shapes(
    inputs: Sequence[Input],
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    filled: Collection[str] = (),
) -> dict[str, tuple[int, ...]]:
    """Choose the shape of each input; the symbolic dimensions of one hold for the others.

    A size that nothing gives is 1 in the inputs that one value fills.
    """
    for sizes in (dims.values(), *shapes.values()):
        for size in sizes:
            if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 0:
                raise FeedError(f"got size {size!r}. Accepted: integers >= 0")
    known = dict(dims)
    for declared in inputs:
        if declared.name in shapes:
            _learn(declared, shapes[declared.name], known)
    _refuse_unresolved([d for d in inputs if d.name not in shapes and d.name not in filled], known)
    return {
        declared.name: tuple(shapes[declared.name])
        if declared.name in shapes
        else tuple(1 if (n := _resolve(s, known)) is None else n for s in declared.sizes)
        for declared in inputs
    }


def symbols(inputs: Sequence[Input]) -> list[str]:
    """List the names that may be given a size: of dimensions, and in those that are sums."""
    named = [size for declared in inputs for size in declared.sizes if isinstance(size, str)]
    return list(dict.fromkeys(name for size in named for name in (size, *_terms(size))))


def refuse_unknown(what: str, given: Mapping[str, object], accepted: Sequence[str]) -> None:
    if unknown := [name for name in given if name not in accepted]:
        none = "none, all sizes are fixed" if what == "dimension" else "none, there is no input"
        raise FeedError(
            f"{what} given for {', '.join(map(repr, unknown))}. "
            f"Accepted: {', '.join(map(repr, accepted)) or none}"
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


_NUMBER = re.compile("[0-9]{1,18}")


def _resolve(size: int | str | None, known: Mapping[str, int]) -> int | None:
    if not isinstance(size, str):
        return size
    if size in known:
        return known[size]
    terms = _summands(size)
    values = [int(term) if _NUMBER.fullmatch(term) else known.get(term) for term in terms]
    found = [value for value in values if value is not None]
    return sum(found) if len(found) == len(terms) else None


def _summands(size: str) -> list[str]:
    """Split a sum, as exporters name dimensions ("past + 1"); any other text is one name."""
    terms = [term.strip() for term in size.split("+")]
    is_sum = all(term.isidentifier() or _NUMBER.fullmatch(term) for term in terms)
    return terms if is_sum else [size]


def _terms(size: str) -> list[str]:
    """List the names in a dimension: those of a sum, else its own."""
    return [term for term in dict.fromkeys(_summands(size)) if not _NUMBER.fullmatch(term)]


def _refuse_unresolved(waiting: Sequence[Input], known: Mapping[str, int]) -> None:
    """List each dimension without a size, the inputs that share it, and the option that sets it."""
    users: dict[str, list[str]] = {}
    guessed = dict(known)
    unnamed = [d for d in waiting if d.shape is None or None in d.shape]
    for declared in waiting:
        lacking = [s for s in declared.sizes if s is None or _resolve(s, known) is None]
        for rank, size in enumerate(lacking):
            for name in _terms(size) if isinstance(size, str) else ():
                if name not in known and declared.name not in users.setdefault(name, []):
                    users[name].append(declared.name)
                guessed.setdefault(name, 128 if rank else 1)
    if not users and not unnamed:
        return
    told = [f"{name!r} (in {', '.join(inputs)})" for name, inputs in users.items()]
    told += [
        f"{d}, which has no rank" if d.shape is None else f"unnamed dimensions of {d}"
        for d in unnamed
    ]
    in_shapes = {size for declared in unnamed for size in declared.sizes}
    dims = [f"--dim {shlex.quote(f'{n}={guessed[n]}')}" for n in users if n not in in_shapes]
    shapes = [f"--shape {shlex.quote(f'{d.name}={_example(d, guessed)}')}" for d in unnamed]
    python = ["dims={name: size}"] * bool(dims) + ["shapes={name: shape}"] * bool(shapes)
    raise FeedError(
        f"no size for {'; '.join(told)}. Accepted: {' and '.join(python)} in Python, for instance "
        f"{' '.join(dims + shapes)} on the command line"
    )


def _example(declared: Input, guessed: Mapping[str, int]) -> str:
    """Write a plausible shape: 1 for the first size that is missing, often a batch, then 128."""
    missing = iter([1])
    sizes = [_resolve(size, guessed) for size in declared.sizes]
    return "x".join(str(next(missing, 128) if s is None else s) for s in sizes) or "1x128"
