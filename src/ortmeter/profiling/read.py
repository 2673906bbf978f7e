"""Read a profile of any version of ONNX Runtime into frames with fixed columns."""

import functools
import os
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import pandas as pd

from ortmeter.dtypes import short_name
from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.profiling.events import (
    ABSENT,
    COLUMNS,
    KERNEL,
    SIZES,
    Columns,
    Ints,
    collect,
    read_blocks,
    refuse,
)
from ortmeter.profiling.graph import find_domains, name_nodes
from ortmeter.profiling.record import Profile
from ortmeter.profiling.tables import first_rows, number
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.timing.loop import collector_off

_Types: TypeAlias = tuple[str | None, ...]
_Shapes: TypeAlias = tuple[tuple[int, ...] | None, ...]
_TENSORS = msgspec.json.Decoder(list[dict[str, tuple[int, ...]]] | str | None)
#: Iteration of what happens outside of the runs.
NO_RUN = -1
#: Operators that execute a graph of their own.
_WITH_BODY = {"If", "Loop", "Scan", "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"}


def read_profile(
    path: str | os.PathLike[str],
    *,
    model: ModelLike | None = None,
    original: ModelLike | None = None,
    warmup: int = 1,
) -> Profile:
    """Read a profile written by ONNX Runtime.

    Parameters
    ----------
    path : path
        File returned by ``InferenceSession.end_profiling``, of any version of ONNX Runtime.
    model : ModelProto, bytes, path or text, optional
        Graph that ran, after optimization. It gives domains, initializers and costs.
    original : ModelProto, bytes, path or text, optional
        Model before optimization, to find the origin of fused nodes.
    warmup : int
        Number of first runs that statistics exclude.

    Returns
    -------
    Profile
        The kernels and the runs.

    Raises
    ------
    InvalidArgumentError
        The file cannot be read, is not a profile of ONNX Runtime, is truncated (the message gives
        the event and the byte), or has no complete run.
    ModelError
        A model cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Y = Abs(X) }'''
    >>> from ortmeter.runtime.sessions import make_session
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     session = make_session(text, provider="cpu", profile=f"{folder}/run")
    ...     outputs = session.run(None, {"X": np.float32([-1])})
    ...     found = read_profile(session.end_profiling(), model=text)
    >>> found.events[["iteration", "op", "domain", "signature"]].values.tolist()
    [[0, 'Abs', 'ai.onnx', '(f32 1) -> f32 1']]
    """
    graph = None if model is None else load_model(model)
    events, session_events = read_frames(path, graph)
    return Profile(
        events,
        session_events,
        model=graph,
        original=None if original is None else name_nodes(load_model(original)),
        warmup=warmup,
    )


def read_frames(
    path: str | os.PathLike[str], graph: onnx.ModelProto | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return ``events`` and ``session_events``."""
    try:
        # Without collecting garbage, which takes half of the time.
        with collector_off(), open(path, "rb") as stream:  # noqa: PTH123 - has the name of the file
            kernels, others = collect(read_blocks(stream))
        runs = others.select(np.flatnonzero(others.is_named("model_run")))
        runs = runs.select(np.lexsort((runs.position, runs.start)))
        events, session_events = _events_frame(kernels, runs), _session_frame(others, runs)
    except OSError as cause:
        raise InvalidArgumentError(
            f"Profile {str(path)!r} cannot be read: {cause.strerror}"
        ) from cause
    except OrtMeterError:
        raise
    except (ArithmeticError, KeyError, ValueError, msgspec.DecodeError) as cause:
        refuse(path, f"has an invalid value ({type(cause).__name__}: {cause})")
    if not len(runs):
        refuse(
            path,
            f"holds no complete run (model_run) among its {len(kernels) + len(others)} events, "
            f"{len(kernels)} of which are kernels",
        )
    if graph is not None:  # the file does not tell the domains
        codes = number(events, ["name", "op", "parent"])
        domains = find_domains(first_rows(events, codes), graph)
        events = events.assign(domain=_category(domains, codes))
    return events, session_events


def keep_runs(frame: pd.DataFrame, runs: Sequence[int]) -> pd.DataFrame:
    """Keep the events of some runs, which are numbered again in that order."""
    # The last element is for what is outside of the runs, whose iteration is -1.
    last = np.max(frame["iteration"].to_numpy(), initial=max(runs))
    kept = np.full(last + 2, NO_RUN, np.int64)
    kept[list(runs)] = np.arange(len(runs))
    numbered = frame.assign(iteration=kept[frame["iteration"]])
    return numbered[numbered["iteration"] != NO_RUN].reset_index(drop=True)


def _events_frame(kernels: Columns, runs: Columns) -> pd.DataFrame:
    """Make one row per kernel, in the order of the start, a kernel before those of its body."""
    iteration = iterations(kernels, runs)
    parent = parents(kernels, iteration)
    # What the kernels of a body take, those of their own bodies included.
    inner, children = np.zeros(len(kernels), np.int64), np.flatnonzero(parent >= 0)
    np.add.at(inner, parent[children], kernels.duration[children])
    # When the clock is coarse, a kernel and its body may start at the same time.
    order = np.lexsort((kernels.position, _depth(parent), kernels.start))
    names = [name.removesuffix(KERNEL) for name in kernels.names]
    # The row after the descriptions stands for no parent.
    parent_row = np.where(parent < 0, len(names), kernels.row[parent])[order]
    ordered = kernels.select(order)
    columns = {
        "iteration": iteration[order],
        "name": _category(names, ordered.row),
        "parent": _category([*names, None], parent_row),
        "thread": ordered.thread,
        "start": ordered.start,
        "duration": ordered.duration,
        "self_duration": np.maximum(ordered.duration - inner[order], 0),
        **_described(ordered),
        **{
            name: pd.arrays.IntegerArray(values, values == ABSENT)
            for name, values in zip(SIZES, ordered.sizes, strict=True)
        },
    }
    return pd.DataFrame({name: columns[name] for name in COLUMNS}, copy=False)


def _session_frame(others: Columns, runs: Columns) -> pd.DataFrame:
    """Make one row per event that is not a kernel."""
    ordered = others.select(np.lexsort((others.position, others.start)))
    iteration = iterations(ordered, runs)
    iteration[ordered.is_named("model_run")] = np.arange(len(runs))
    return pd.DataFrame(
        {
            "name": _category(ordered.names, ordered.row),
            "category": _category([d.category for d in ordered.descriptions], ordered.row),
            "thread": ordered.thread,
            "start": ordered.start,
            "duration": ordered.duration,
            "iteration": iteration,
        }
    )


def iterations(events: Columns, runs: Columns) -> Ints:
    """Find the run whose interval holds the start of each event.

    Runs of several threads may overlap. A run that happens in the thread of the event is then
    preferred; an event of another thread (a pool shared by the runs) goes to the run that started
    last.
    """
    if not len(runs):
        return np.full(len(events), NO_RUN, np.int64)
    ranks = _latest(events, runs)
    if not np.any(runs.start[1:] < _end(runs)[:-1]):
        return ranks
    for thread in np.unique(runs.thread):
        own = np.flatnonzero(runs.thread == thread)
        mine = np.flatnonzero(events.thread == thread)
        rank = _latest(events.select(mine), runs.select(own))
        ranks[mine[rank != NO_RUN]] = own[rank[rank != NO_RUN]]
    return ranks


def _latest(events: Columns, runs: Columns) -> Ints:
    """Rank of the last run that started before each event and was not over."""
    rank = np.searchsorted(runs.start, events.start, side="right") - 1
    before, end = np.maximum(rank - 1, 0), _end(runs)
    # The last kernel of a run may start in the microsecond where the next run starts; it was
    # recorded before its own run was.
    tied = (events.start == runs.start[rank]) & (events.position < runs.position[before])
    touches = events.start <= end[before]
    rank = np.where((rank > 0) & tied & touches, before, rank)
    inside = (rank >= 0) & (events.start <= end[rank])
    return np.where(inside, rank, NO_RUN)


def _end(events: Columns) -> Ints:
    # Start and duration are both rounded down to a microsecond.
    return events.start + events.duration + 1


def parents(kernels: Columns, iteration: Ints) -> Ints:
    """Find the position of the If, Loop or Scan that encloses each kernel, -1 in the main graph.

    An event is recorded when it ends: a kernel comes after those of its body, which started after
    it, in the same thread.
    """
    parent = np.full(len(kernels), -1, np.int64)
    encloses = np.array([d.op in _WITH_BODY for d in kernels.descriptions], bool)[kernels.row]
    if not encloses.any():
        return parent
    # Only kernels recorded before an enclosing one, in its thread and run, may be in its body.
    pending: dict[tuple[int, int], list[int]] = {}
    places = zip(kernels.thread.tolist(), iteration.tolist(), strict=True)
    starts = kernels.start.tolist()
    for i, (place, is_parent) in enumerate(zip(places, encloses.tolist(), strict=True)):
        before = pending.setdefault(place, [])
        while is_parent and before and starts[before[-1]] >= starts[i]:
            parent[before.pop()] = i
        before.append(i)
    return parent


def _depth(parent: Ints) -> Ints:
    """Number of kernels around each kernel."""
    depth = np.zeros(len(parent), np.int64)
    above = parent
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    return depth


def _described(kernels: Columns) -> dict[str, Any]:
    """Columns that depend on the description only."""
    rows, descriptions = kernels.row, kernels.descriptions
    inputs = [_decode(description.inputs) for description in descriptions]
    outputs = [_decode(description.outputs) for description in descriptions]
    texts = [
        None if None in {*i, *o} else f"({_tensors(*i)}) -> {_tensors(*o) or 'none'}"
        for i, o in zip(inputs, outputs, strict=True)
    ]
    return {
        "op": _category([description.op for description in descriptions], rows),
        "domain": _category([None] * len(texts), rows),
        "node_index": pd.array([d.node_index for d in descriptions], "Int64")[rows],
        "provider": _category([description.provider for description in descriptions], rows),
        "input_types": _objects([types for types, _ in inputs], rows),
        "input_shapes": _objects([shapes for _, shapes in inputs], rows),
        "output_types": _objects([types for types, _ in outputs], rows),
        "output_shapes": _objects([shapes for _, shapes in outputs], rows),
        "signature": _category(texts, rows),
    }


def _decode(content: bytes) -> tuple[_Types, _Shapes] | tuple[None, None]:
    """Read ``[{"float": [1, 3]}, {}]``, where an absent tensor has neither type nor shape."""
    tensors = _TENSORS.decode(content)
    if isinstance(tensors, str):
        tensors = _TENSORS.decode(tensors)
    if tensors is None or isinstance(tensors, str):
        return None, None
    pairs = [next(iter(tensor.items()), (None, None)) for tensor in tensors]
    types = tuple(None if name is None else _type_name(name) for name, _ in pairs)
    return types, tuple(shape for _, shape in pairs)


@functools.cache
def _type_name(name: str) -> str:
    """Short name of an element type; a type that ONNX does not have keeps its name."""
    try:
        return short_name(name)
    except InvalidArgumentError:
        return name


def _tensors(types: _Types, shapes: _Shapes) -> str:
    return ", ".join(
        "none"
        if kind is None or shape is None
        else f"{kind} {'x'.join(map(str, shape)) or 'scalar'}"
        for kind, shape in zip(types, shapes, strict=True)
    )


def _category(values: Sequence[str | None], rows: Ints) -> pd.Categorical:
    """Make a column of categories from values, distinct or not, and the row of each event."""
    codes, categories = pd.factorize(np.fromiter(values, object, len(values)))
    column = pd.Categorical.from_codes(codes[rows], pd.Index(categories, dtype="str"))
    return column.remove_unused_categories()


def _objects(values: Iterable[Hashable], rows: Ints) -> npt.NDArray[np.object_]:
    return np.fromiter(values, object)[rows]
