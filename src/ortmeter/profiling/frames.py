"""Make the frames of a profile: fixed columns, whatever the version of the file."""

import functools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import pandas as pd

from ortmeter.dtypes import short_name
from ortmeter.errors import InvalidArgumentError
from ortmeter.profiling.columns import SIZES, Columns, Ints
from ortmeter.profiling.structure import iterations, parents

__all__ = ["COLUMNS", "category", "events_frame", "session_frame", "signature"]

#: Columns of ``Profile.events`` and their dtypes.
COLUMNS = {
    "iteration": "int64",
    "name": "category",
    "op": "category",
    "domain": "category",
    "node_index": "Int64",
    "provider": "category",
    "parent": "category",
    "thread": "int64",
    "start": "int64",
    "duration": "int64",
    "self_duration": "int64",
    "input_types": "object",
    "input_shapes": "object",
    "output_types": "object",
    "output_shapes": "object",
    "signature": "category",
    **dict.fromkeys(SIZES, "Int64"),
}
_Types: TypeAlias = tuple[str | None, ...]
_Shapes: TypeAlias = tuple[tuple[int, ...] | None, ...]
_OP, _PROVIDER, _INDEX, _INPUTS, _OUTPUTS = range(2, 7)


def events_frame(kernels: Columns, runs: Columns) -> pd.DataFrame:
    """Make one row per kernel, see :class:`~ortmeter.profiling.Profile`.

    Parameters
    ----------
    kernels : Columns
        Executions of kernels, in the order of the file.
    runs : Columns
        Events named ``model_run``, sorted by start.

    Returns
    -------
    pandas.DataFrame
        Columns :data:`COLUMNS`, in the order of the start, a kernel before those of its body. The
        domain is missing: the file does not tell.
    """
    iteration = iterations(kernels, runs)
    parent = parents(kernels, iteration)
    inner = _inner_duration(kernels, parent)
    # A kernel of a coarse clock may start with its body.
    order = np.lexsort((kernels.position, _depth(parent), kernels.start))
    # One more description, for no parent.
    parent_row = np.where(parent < 0, len(kernels.names), kernels.row[parent])[order]
    sizes = zip(kernels.sizes[:, order], kernels.absent[:, order], strict=True)
    ordered = kernels.select(order)
    columns = {
        "iteration": iteration[order],
        "parent": category([*kernels.names, None], parent_row).remove_unused_categories(),
        "thread": ordered.thread,
        "start": ordered.start,
        "duration": ordered.duration,
        "self_duration": np.maximum(ordered.duration - inner[order], 0),
        **_described(ordered),
        **{
            name: pd.arrays.IntegerArray(values, absent)
            for name, (values, absent) in zip(SIZES, sizes, strict=True)
        },
    }
    return pd.DataFrame({name: columns[name] for name in COLUMNS}, copy=False)


def session_frame(others: Columns, runs: Columns) -> pd.DataFrame:
    """Make one row per event that is not a kernel, see :class:`~ortmeter.profiling.Profile`.

    Parameters
    ----------
    others : Columns
        These events.
    runs : Columns
        Those named ``model_run``, sorted by start.
    """
    order = np.lexsort((others.position, others.start))
    ordered = others.select(order)
    iteration = iterations(ordered, runs)
    iteration[ordered.is_named("model_run")] = np.arange(len(runs))
    return pd.DataFrame(
        {
            "name": category(ordered.names, ordered.row),
            "category": category([d[0] for d in ordered.descriptions], ordered.row),
            "thread": ordered.thread,
            "start": ordered.start,
            "duration": ordered.duration,
            "iteration": iteration,
        }
    )


def signature(
    input_types: _Types, input_shapes: _Shapes, output_types: _Types, output_shapes: _Shapes
) -> str:
    """Write types and shapes as a short text.

    Parameters
    ----------
    input_types, output_types : tuple of str
        Short names of the element types, None for what is absent.
    input_shapes, output_shapes : tuple of tuple of int
        Shapes, None for what is absent.

    Examples
    --------
    >>> signature(("f32", "i64", None), ((1, 3), (), None), ("f32",), ((1, 3),))
    '(f32 1x3, i64 scalar, none) -> f32 1x3'
    """
    inputs = _tensors(input_types, input_shapes)
    return f"({inputs}) -> {_tensors(output_types, output_shapes) or 'none'}"


def category(values: Sequence[str | None], rows: Ints) -> pd.Categorical:
    """Make a column of categories.

    Parameters
    ----------
    values : sequence of str or None
        Distinct or not; None is missing.
    rows : array of int64, shape (events,)
        Position in *values* of the value of each event.
    """
    codes, found = pd.factorize(np.fromiter(values, object, len(values)))
    return pd.Categorical.from_codes(codes[rows], pd.Index(found, dtype="str"))


def _tensors(types: _Types, shapes: _Shapes) -> str:
    return ", ".join(
        "none" if kind is None or shape is None else f"{kind} {_shape(shape)}"
        for kind, shape in zip(types, shapes, strict=True)
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _described(kernels: Columns) -> dict[str, Any]:
    """Columns that depend on the description only."""
    rows = kernels.row
    values = list(zip(*kernels.descriptions, strict=True)) or [()] * (_OUTPUTS + 1)
    indices = np.array([int(index or 0) for index in values[_INDEX]], np.int64)
    no_index = np.array([index is None for index in values[_INDEX]], bool)
    inputs, outputs = ([_decode(v) for v in values[side]] for side in (_INPUTS, _OUTPUTS))
    texts = [
        None if None in {*i, *o} else signature(*i, *o)
        for i, o in zip(inputs, outputs, strict=True)
    ]
    return {
        "name": category(kernels.names, rows),
        "op": category(values[_OP], rows),
        "domain": category([None] * len(texts), rows),
        "node_index": pd.arrays.IntegerArray(indices[rows], no_index[rows]),
        "provider": category(values[_PROVIDER], rows),
        "input_types": _objects([types for types, _ in inputs], rows),
        "input_shapes": _objects([shapes for _, shapes in inputs], rows),
        "output_types": _objects([types for types, _ in outputs], rows),
        "output_shapes": _objects([shapes for _, shapes in outputs], rows),
        "signature": category(texts, rows),
    }


def _decode(tensors: Any) -> tuple[_Types, _Shapes] | tuple[None, None]:
    """Read ``[{"float": [1, 3]}, {}]``, where an absent tensor has neither type nor shape."""
    if isinstance(tensors, str):
        tensors = orjson.loads(tensors)
    if tensors is None:
        return None, None
    pairs = [next(iter(tensor.items()), (None, None)) for tensor in tensors]
    types = tuple(None if name is None else _type_name(name) for name, _ in pairs)
    return types, tuple(None if shape is None else tuple(map(int, shape)) for _, shape in pairs)


@functools.cache
def _type_name(name: str) -> str:
    """Short name of an element type; a type that ONNX does not have keeps its name."""
    try:
        return short_name(name)
    except InvalidArgumentError:
        return name


def _objects(values: Iterable[Hashable], rows: Ints) -> npt.NDArray[np.object_]:
    return np.fromiter(values, object)[rows]


def _inner_duration(kernels: Columns, parent: Ints) -> Ints:
    """Time spent in the kernels of the body of each kernel, those of their own bodies included."""
    inner = np.zeros(len(kernels), np.int64)
    children = np.flatnonzero(parent >= 0)
    np.add.at(inner, parent[children], kernels.duration[children])
    return inner


def _depth(parent: Ints) -> Ints:
    """Number of kernels around each kernel."""
    depth = np.zeros(len(parent), np.int64)
    above = parent
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    return depth
