"""Read a profile of any version of ONNX Runtime into frames with fixed columns."""

import functools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import msgspec
import numpy as np
import onnx
import pandas as pd

from ortmeter.dtypes import short_name
from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.profiling.graph import find_domains, name_nodes
from ortmeter.profiling.record import Profile
from ortmeter.profiling.tables import SIZES, TENSORS, Ints, first_rows, number
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.timing.loop import collector_off

_Types: TypeAlias = tuple[str | None, ...]
_Shapes: TypeAlias = tuple[tuple[int, ...] | None, ...]
_TENSORS = msgspec.json.Decoder(list[dict[str, tuple[int, ...]]] | str | None)
#: Iteration of what happens outside of the runs.
NO_RUN = -1
#: Operators that execute a graph of their own.
_WITH_BODY = {"If", "Loop", "Scan", "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"}
# Sums over the runs of such times do not overflow.
_LONGEST_US = 1 << 44
_KERNEL = "_kernel_time"


class _Arguments(msgspec.Struct, gc=False):
    """What a kernel tells of its node; bytes are texts in recent versions."""

    op_name: str | None = None
    provider: str | None = None
    node_index: int | None = None
    graph_index: int | None = None  # its name in old versions
    input_type_shape: msgspec.Raw = msgspec.Raw(b"null")
    output_type_shape: msgspec.Raw = msgspec.Raw(b"null")
    parameter_size: int | None = None
    activation_size: int | None = None
    output_size: int | None = None
    in_use: int | None = msgspec.field(default=None, name="mem_bytes_in_use")
    in_use_peak: int | None = msgspec.field(default=None, name="mem_in_use_peak")
    arena_held: int | None = msgspec.field(default=None, name="mem_arena_held")


class Event(msgspec.Struct, gc=False):
    """Category, name, process, thread, start and duration in µs."""

    cat: str
    name: str
    pid: int
    tid: int
    ts: int
    dur: int
    # Some execution providers write none.
    args: _Arguments = msgspec.field(default_factory=lambda: _Arguments(op_name="unknown"))

    @property
    def is_kernel(self) -> bool:
        """Whether a kernel ran, and no fence of old versions."""
        if self.cat != "Node" or not self.name.endswith(_KERNEL):
            return False
        if self.args.op_name is None:
            raise KeyError("op_name")
        return True


_EVENTS = msgspec.json.Decoder(list[Event], strict=False)


def read_events(path: str | os.PathLike[str]) -> list[Event]:
    """Read the events in the order in which they were recorded: each one when it ended."""
    content = Path(path).read_bytes()
    try:
        return _EVENTS.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as cause:
        told = f"breaks: {cause}"  # which has the place of an event that is malformed
        if not content.strip():
            told = "is empty: the session that wrote it was not closed by end_profiling"
        refuse(path, told)


def refuse(path: str | os.PathLike[str], problem: str) -> NoReturn:
    raise InvalidArgumentError(
        f"Profile {Path(path).name!r} {problem}. Accepted: the JSON file that "
        "InferenceSession.end_profiling returns"
    )


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
        The file cannot be read, is not a profile of ONNX Runtime, is truncated, or has no
        complete run.
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
        with collector_off():
            found = read_events(path)
            kernels, others = split_kernels(found)
            runs = runs_among(others)
            ran = [event for event in found if event.is_kernel]
            events, session_events = _events_frame(ran, kernels, runs), _session_frame(others, runs)
    except OSError as cause:
        raise InvalidArgumentError(
            f"Profile {str(path)!r} cannot be read: {cause.strerror}"
        ) from cause
    except OrtMeterError:
        raise
    except (ArithmeticError, KeyError, ValueError, msgspec.DecodeError) as cause:
        refuse(path, f"has an invalid value ({type(cause).__name__}: {cause})")
    if runs.empty:
        refuse(
            path,
            f"holds no complete run (model_run) among its {len(found)} events, "
            f"{len(ran)} of which are kernels",
        )
    if graph is not None:  # the file does not tell the domains
        codes = number(events, ["name", "op", "parent"])
        domains = find_domains(first_rows(events, codes), graph)
        events = events.assign(domain=_category(domains[code] for code in codes))
    return events, session_events


def keep_runs(frame: pd.DataFrame, runs: Sequence[int]) -> pd.DataFrame:
    """Keep the events of some runs, which are numbered again in that order."""
    # The last element is for what is outside of the runs, whose iteration is -1.
    last = np.max(frame["iteration"].to_numpy(), initial=max(runs))
    kept = np.full(last + 2, NO_RUN, np.int64)
    kept[list(runs)] = np.arange(len(runs))
    numbered = frame.assign(iteration=kept[frame["iteration"]])
    return numbered[numbered["iteration"] != NO_RUN].reset_index(drop=True)


def split_kernels(events: Sequence[Event]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Make a row per event, in the order of the file: kernels, then everything else."""
    times = np.array([(e.tid, e.ts, e.dur) for e in events], np.int64).reshape(-1, 3)
    if np.any(times[:, 2] < 0) or np.any(np.abs(times[:, 1:]) > _LONGEST_US):
        raise ValueError("a duration below zero, or a time above half a year")
    frame = pd.DataFrame(times, columns=["thread", "start", "duration"])
    frame["name"], frame["category"] = ([getattr(e, n) for e in events] for n in ("name", "cat"))
    is_kernel = np.fromiter((event.is_kernel for event in events), bool)
    return frame[is_kernel], frame[~is_kernel]


def runs_among(others: pd.DataFrame) -> pd.DataFrame:
    """Return the complete runs, in their order."""
    return others[others["name"] == "model_run"].sort_values("start", kind="stable")


def _events_frame(ran: Sequence[Event], kernels: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Make one row per kernel, in the order of the start, a kernel before those of its body."""
    ops = [event.args.op_name for event in ran]
    iteration = iterations(kernels, runs)
    parent = parents(kernels, ops, iteration)
    duration = kernels["duration"].to_numpy()
    # What the kernels of a body take, those of their own bodies included.
    inner, children = np.zeros(len(ran), np.int64), np.flatnonzero(parent >= 0)
    np.add.at(inner, parent[children], duration[children])
    names = [event.name.removesuffix(_KERNEL) for event in ran]
    texts = [(bytes(e.args.input_type_shape), bytes(e.args.output_type_shape)) for e in ran]
    read = {text: _describe_tensors(*text) for text in dict.fromkeys(texts)}  # runs repeat them
    indices = [e.args.graph_index if e.args.node_index is None else e.args.node_index for e in ran]
    columns: dict[str, Any] = {
        "iteration": iteration,
        "name": _category(names),
        "op": _category(ops),
        "domain": _category([None] * len(ran)),
        "node_index": pd.array(indices, "Int64"),
        "provider": _category(event.args.provider for event in ran),
        "parent": _category(names[rank] if rank >= 0 else None for rank in parent),
        "thread": kernels["thread"].to_numpy(),
        "start": kernels["start"].to_numpy(),
        "duration": duration,
        "self_duration": np.maximum(duration - inner, 0),
        **{
            name: np.fromiter((read[text][i] for text in texts), object)
            for i, name in enumerate(TENSORS)
        },
        "signature": _category(read[text][-1] for text in texts),
    }
    columns |= {n: pd.array([getattr(e.args, n) for e in ran], "Int64") for n in SIZES}
    # When the clock is coarse, a kernel and its body may start at the same time.
    order = np.lexsort((kernels.index, _depth(parent), kernels["start"]))
    return pd.DataFrame(columns).iloc[order].reset_index(drop=True)


def _session_frame(others: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Make one row per event that is not a kernel."""
    iteration = pd.Series(iterations(others, runs), others.index)
    iteration.loc[runs.index] = np.arange(len(runs))
    texts = {name: _category(others[name]) for name in ("name", "category")}
    frame = others.assign(**texts, iteration=iteration).sort_values("start", kind="stable")
    columns = ["name", "category", "thread", "start", "duration", "iteration"]
    return frame[columns].reset_index(drop=True)


def iterations(events: pd.DataFrame, runs: pd.DataFrame) -> Ints:
    """Find the run whose interval holds the start of each event.

    Runs of several threads may overlap. A run that happens in the thread of the event is then
    preferred; an event of another thread (a pool shared by the runs) goes to the run that started
    last.
    """
    if runs.empty:
        return np.full(len(events), NO_RUN, np.int64)
    ranks = _latest(events, runs)
    if not np.any(runs["start"].to_numpy()[1:] < _end(runs)[:-1]):
        return ranks
    for thread in runs["thread"].unique():
        own = np.flatnonzero(runs["thread"] == thread)
        mine = np.flatnonzero(events["thread"] == thread)
        rank = _latest(events.iloc[mine], runs.iloc[own])
        ranks[mine[rank != NO_RUN]] = own[rank[rank != NO_RUN]]
    return ranks


def _latest(events: pd.DataFrame, runs: pd.DataFrame) -> Ints:
    """Rank of the last run that started before each event and was not over."""
    start, begin, end = events["start"].to_numpy(), runs["start"].to_numpy(), _end(runs)
    rank = np.searchsorted(begin, start, side="right") - 1
    before = np.maximum(rank - 1, 0)
    # The last kernel of a run may start in the microsecond where the next run starts; it was
    # recorded before its own run was.
    tied = (start == begin[rank]) & (events.index.to_numpy() < runs.index.to_numpy()[before])
    rank = np.where((rank > 0) & tied & (start <= end[before]), before, rank)
    return np.where((rank >= 0) & (start <= end[rank]), rank, NO_RUN)


def _end(events: pd.DataFrame) -> Ints:
    # Start and duration are both rounded down to a microsecond.
    return (events["start"] + events["duration"] + 1).to_numpy()


def parents(kernels: pd.DataFrame, ops: Sequence[str | None], iteration: Ints) -> Ints:
    """Find the position of the If, Loop or Scan that encloses each kernel, -1 in the main graph.

    An event is recorded when it ends: a kernel comes after those of its body, which started after
    it, in the same thread.
    """
    parent = np.full(len(kernels), -1, np.int64)
    if _WITH_BODY.isdisjoint(ops):
        return parent
    # Only kernels recorded before an enclosing one, in its thread and run, may be in its body.
    pending: dict[tuple[int, int], list[int]] = {}
    places = zip(kernels["thread"].tolist(), iteration.tolist(), strict=True)
    starts = kernels["start"].tolist()
    for i, (place, op) in enumerate(zip(places, ops, strict=True)):
        before = pending.setdefault(place, [])
        while op in _WITH_BODY and before and starts[before[-1]] >= starts[i]:
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


def _describe_tensors(inputs: bytes, outputs: bytes) -> tuple[Any, ...]:
    """Read types and shapes of inputs, those of outputs, and write the signature."""
    read, written = _decode(inputs), _decode(outputs)
    if None in {*read, *written}:
        return *read, *written, None
    return *read, *written, f"({_tensors(*read)}) -> {_tensors(*written) or 'none'}"


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


def _category(values: Iterable[str | None]) -> pd.Categorical:
    codes, categories = pd.factorize(np.fromiter(values, object))
    return pd.Categorical.from_codes(codes, pd.Index(categories, dtype="str"))
