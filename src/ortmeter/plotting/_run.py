"""One run of a profile, as rows of bars."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting._axes import GREY, series_style
from ortmeter.plotting._rows import OTHER, US_PER_MS, node_label
from ortmeter.profiling import Profile

__all__ = ["Run", "read_run"]

_COLORED = 6  # operators that have a colour of their own
_MAX_ROWS = 40


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: its kernels, their rows and colours; times in milliseconds since its start."""

    iteration: int
    duration: float
    events: pd.DataFrame
    start: npt.NDArray[np.float64]
    length: npt.NDArray[np.float64]
    row: npt.NDArray[np.int64]
    labels: list[str]
    operator: npt.NDArray[np.object_]

    @property
    def xlabel(self) -> str:
        """Label of the axis of the times."""
        return f"time since the start of run {self.iteration} (ms)"

    def by_operator(self) -> Iterator[tuple[str, str, npt.NDArray[np.bool_]]]:
        """List the operators that have a colour, with this colour and their kernels."""
        for rank, name in enumerate(dict.fromkeys(self.operator)):
            color = GREY if name == OTHER else str(series_style(rank)["color"])
            yield name, color, self.operator == name


def read_run(profile: Profile, iteration: int | None) -> Run:
    """Read a run, by default the steady one of median duration.

    Raises
    ------
    InvalidArgumentError
        The profile has no such run.
    """
    runs = profile.by_iteration().set_index("iteration")
    wanted = _typical(runs) if iteration is None else iteration
    if wanted is None or wanted not in runs.index:
        raise InvalidArgumentError(
            f"iteration={iteration} is not in this profile, which has {len(runs)} complete runs"
        )
    begin, duration = (float(runs[name][wanted]) for name in ("start", "duration"))
    events = profile.events[profile.events["iteration"] == wanted]
    start = (events["start"].to_numpy() - begin) / US_PER_MS
    length = events["duration"].to_numpy() / US_PER_MS
    operators = _longest(events)
    return Run(wanted, duration / US_PER_MS, events, start, length, *_rows(events), operators)


def _typical(runs: pd.DataFrame) -> int | None:
    """Return the steady run of median duration."""
    durations = runs.loc[runs["steady"], "duration"].sort_values()
    return int(durations.index[len(durations) // 2]) if len(durations) else None


def _rows(events: pd.DataFrame) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Give its row to each event, and the labels of the rows."""
    column = "name" if events["name"].nunique() <= _MAX_ROWS else "op"
    rows, _ = pd.factorize(events[column])
    first = events.drop_duplicates(column)
    return rows, [node_label(o, n) for o, n in zip(first["op"], first[column], strict=True)]


def _longest(events: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return the operator of each event, *other* but for those that take the most time."""
    operators = events["op"].astype(str)
    totals = events["self_duration"].groupby(operators).sum()
    kept = operators.isin(totals.nlargest(_COLORED).index)
    return operators.where(kept, OTHER).to_numpy(dtype=object)
