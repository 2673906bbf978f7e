"""Read a profile written by ONNX Runtime."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Self

import numpy as np
import onnx
import pandas as pd

from ortmeter.errors import OrtMeterError
from ortmeter.profiling.columns import Columns, Ints, collect
from ortmeter.profiling.correlation import domains, name_nodes
from ortmeter.profiling.frames import category, events_frame, session_frame
from ortmeter.profiling.parsing import EventFile
from ortmeter.profiling.record import Profile
from ortmeter.profiling.structure import NO_RUN
from ortmeter.profiling.summary import first_rows, number
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.timing.loop import collector_off

__all__ = ["Recording", "read_profile", "read_recording", "read_startup"]


def read_profile(
    path: str | os.PathLike[str],
    *,
    model: ModelLike | None = None,
    original: ModelLike | None = None,
    warmup: int = 1,
    recover: bool = False,
) -> Profile:
    """Read a profile written by ONNX Runtime.

    Parameters
    ----------
    path : path
        File that ``InferenceSession.end_profiling`` returned, written by any version: older ones
        wrote integers and one event before and after each kernel, recent ones write texts and the
        memory.
    model : ModelProto, bytes, path or text, optional
        Graph that ran: the optimized model when the session optimized it. It gives the domains,
        the initializers and the costs.
    original : ModelProto, bytes, path or text, optional
        Model before optimization, to tell where a fused node comes from.
    warmup : int
        First runs that the statistics leave out.
    recover : bool
        Read the complete events of a file truncated by a crash, instead of failing.

    Returns
    -------
    Profile
        The kernels, the runs and the start-up.

    Raises
    ------
    InvalidArgumentError
        The file cannot be read, is not a profile of ONNX Runtime, is truncated (the message tells
        the event and the byte), or holds no complete run.
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
    recording = read_recording(path, recover=recover)
    return Profile(
        *recording.with_domains(graph),
        model=graph,
        original=None if original is None else name_nodes(load_model(original)),
        warmup=warmup,
        truncated=recording.truncated,
    )


@dataclass(frozen=True, eq=False)
class Recording:
    """Content of a file.

    Parameters
    ----------
    events, session_events : pandas.DataFrame
        As in :class:`~ortmeter.profiling.Profile`, without the domains.
    truncated : bool
        Whether the end of the file is missing.
    """

    events: pd.DataFrame
    session_events: pd.DataFrame
    truncated: bool

    def keep(self, startup: pd.DataFrame, runs: Sequence[int]) -> Self:
        """Keep some runs, in order, after another start-up."""
        # The last one is for what is outside of the runs.
        kept = np.full(self.session_events["iteration"].max() + 2, NO_RUN, np.int64)
        kept[list(runs)] = np.arange(len(runs))
        events, inside = (_renumber(f, kept) for f in (self.events, self.session_events))
        others = pd.concat([startup, inside], ignore_index=True)
        return type(self)(events, _as_categories(others), self.truncated)

    def with_domains(self, graph: onnx.ModelProto | None) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the frames, with the domains that the graph tells."""
        if graph is None:
            return self.events, self.session_events
        codes = number(self.events, ["name", "op", "parent"])
        found = domains(first_rows(self.events, codes), graph)
        return self.events.assign(domain=category(found, codes)), self.session_events


def read_recording(path: str | os.PathLike[str], *, recover: bool = False) -> Recording:
    """Read a file without any model.

    Parameters
    ----------
    path, recover
        As in :func:`read_profile`.
    """
    file = EventFile(path, recover=recover)
    with _refusing(file), closing(file.blocks()) as blocks:
        kernels, others = collect(blocks)
        runs = _runs(file, kernels, others)
        return Recording(events_frame(kernels, runs), session_frame(others, runs), file.truncated)


def read_startup(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read the start-up of a session that had no run.

    Parameters
    ----------
    path : path
        File that ONNX Runtime wrote.

    Returns
    -------
    pandas.DataFrame
        Session events, see :class:`~ortmeter.profiling.Profile`.
    """
    file = EventFile(path)
    with _refusing(file), closing(file.blocks()) as blocks:
        _, others = collect(blocks)
        return session_frame(others, others.select(np.empty(0, np.int64)))


@contextmanager
def _refusing(file: EventFile) -> Iterator[None]:
    """Say what is wrong with a file; garbage is not collected, which takes half of the time."""
    try:
        with collector_off():
            yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as cause:
        if isinstance(cause, OrtMeterError):
            raise
        file.refuse_content(cause)


def _renumber(frame: pd.DataFrame, kept: Ints) -> pd.DataFrame:
    """Keep the rows of some iterations, by their new number."""
    found = frame.assign(iteration=kept[frame["iteration"]])
    return found[found["iteration"] != NO_RUN].reset_index(drop=True)


def _as_categories(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype({"name": "category", "category": "category"})


def _runs(file: EventFile, kernels: Columns, others: Columns) -> Columns:
    """Runs, sorted by start."""
    ranks = np.flatnonzero(others.is_named("model_run"))
    if not len(ranks):
        file.refuse(
            f"holds no complete run (model_run) among its {len(kernels) + len(others)} events, "
            f"{len(kernels)} of which are kernels"
        )
    runs = others.select(ranks)
    return runs.select(np.lexsort((runs.position, runs.start)))
