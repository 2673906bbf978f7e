"""Which operators changed between two releases of ONNX Runtime."""

import math
import operator
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ortmeter.evidence import Estimate, Speedup, rounded
from ortmeter.optional import pd
from ortmeter.progress import follow
from ortmeter.releases.environments import Release
from ortmeter.releases.process import ReleaseProcess, write_questions
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.settings import spins
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.comparison import speedup
from ortmeter.timing.measurement import Measurement
from ortmeter.timing.statistics import PROCESSES

if TYPE_CHECKING:
    from ortmeter.profiling.record import Profile

__all__ = ["OUTSIDE", "WHOLE", "profile_releases"]

_STANDARD, _CONTRIBUTED = "ai.onnx", "com.microsoft."
#: Rows of the table of operators: a whole run, and what is left without its kernels.
WHOLE, OUTSIDE = "a profiled run", "outside of kernels"
_TURNS = 10
_RESOLUTION_US = 0.5  # a profile has whole microseconds
_SMALL = 0.01  # share of a run, in both releases


def profile_releases(
    pair: Sequence[Release],
    variant: SessionSpec,
    *,
    processes: int = PROCESSES,
    repeat: int = 30,
    budget_s: float = 30.0,
) -> "pd.DataFrame":
    """Profile a model with two releases, in several fresh processes, and compare its operators.

    Parameters
    ----------
    pair : two Release
        Baseline and candidate.
    variant : SessionSpec
        Model with its inputs and settings.
    processes : int
        Fresh processes of each release; an interval needs 3.
    repeat : int
        Recorded runs in each process, about.
    budget_s : float
        Seconds: no process is started that could not end in time, but for the first ones.

    Returns
    -------
    pandas.DataFrame
        One row per operator that takes 1% of a run or more with either release, largest change
        first. Index ``operator`` (``nchwc.Conv`` for the domain com.microsoft.nchwc), columns
        ``nodes`` (``60``, or ``60 and 58`` when the optimized graphs differ), median time per run
        (µs) of each release, ``speedup``, ``low``, ``high`` and ``verdict``. An operator of one
        release has no speedup. The first row is for a whole run, another one for what is outside
        of kernels. Intervals hold together at 99%; they are never narrower than what the whole
        microseconds of a profile allow. The columns are named by how many processes ran.
    """
    from ortmeter.profiling.read import read_profile

    sides: list[list[dict[str, tuple[int, float]]]] = [[], []]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
        (question,) = write_questions({"": variant}, Path(temporary)).values()
        for i in follow(range(processes), "profiles"):
            elapsed = time.perf_counter() - begin
            if i and elapsed * (i + 1) / i > budget_s:
                break
            with ExitStack() as stack:
                children = [stack.enter_context(ReleaseProcess(release)) for release in pair]
                rng = np.random.default_rng(i)
                for side in rng.permutation(2).tolist():
                    children[side].open(question)
                # Threads that spin after the runs of one would slow the next: it has one turn.
                turns = 1 if spins(variant.settings) else _TURNS
                profiles = _record(children, Path(temporary, str(i)), repeat, turns, rng)
            external = Path(question["model"]).parent
            for side, (file, graph) in zip(sides, profiles, strict=True):
                model = load_model(graph, external_folder=external)
                side.append(_operators(read_profile(file, model=model)))
    return _operator_table([release.name for release in pair], sides)


def _record(
    children: Sequence[ReleaseProcess],
    folder: Path,
    repeat: int,
    turns: int,
    rng: np.random.Generator,
) -> list[tuple[str, Path]]:
    """Take turns of a few runs, in random order: a slow spell of the machine hits both.

    Returns the file of the runs and the optimized graph of each child.
    """
    graphs = [folder / str(side) / "optimized.onnx" for side in range(len(children))]
    for child, graph in zip(children, graphs, strict=True):
        graph.parent.mkdir(parents=True)
        child.ask("record", prefix=str(graph.with_name("profile")), optimized=str(graph))
    for _ in range(turns):
        for side in rng.permutation(len(children)).tolist():
            children[side].sample(math.ceil(repeat / turns))
    return [(child.ask("end"), graph) for child, graph in zip(children, graphs, strict=True)]


def _operators(found: "Profile") -> dict[str, tuple[int, float]]:
    """Nodes and median time per run (µs) of each operator."""
    rows = found.by_operator().astype({"domain": "object"})
    times: dict[str, tuple[int, float]] = {}
    for row in rows.to_dict("records"):
        plain = pd.isna(row["domain"]) or row["domain"] == _STANDARD
        name = row["op"] if plain else f"{row['domain']}.{row['op']}".removeprefix(_CONTRIBUTED)
        nodes, median = times.get(name, (0, 0.0))  # on another provider
        times[name] = nodes + int(row["nodes"]), median + float(row["median"])
    steady = found.steady_runs
    outside = float((steady["duration"] - steady["covered"]).median())
    return {**times, OUTSIDE: (0, outside), WHOLE: (0, float(steady["duration"].median()))}


def _operator_table(
    names: Sequence[str], sides: Sequence[Sequence[Mapping[str, tuple[int, float]]]]
) -> "pd.DataFrame":
    found = {}
    for op in dict.fromkeys(op for side in sides for run in side for op in run):
        runs = [np.array([run.get(op, (0, 0.0)) for run in side]) for side in sides]
        found[op] = [int(run[:, 0].max()) for run in runs], [run[:, 1:] for run in runs]
    least = [_SMALL * run.mean() for run in found[WHOLE][1]]
    kept = {
        op
        for op, (_, times) in found.items()
        if any(side.mean() >= small for side, small in zip(times, least, strict=True))
    }
    rows = []
    for op in sorted(kept):
        nodes, times = found[op]
        before, after = (float(side.mean()) for side in times)
        change = math.inf if op == WHOLE else abs(after - before)
        shown = None if op in {WHOLE, OUTSIDE} else " and ".join(map(str, dict.fromkeys(nodes)))
        slack = sum(
            _RESOLUTION_US * math.sqrt(max(count, 1)) / side.mean()
            for count, side in zip(nodes, times, strict=True)
            if side.any()
        )
        compared = _compared(names, times, 1 - 0.01 / len(kept), slack)
        rows.append((change, [op, shown, rounded(before), rounded(after), *compared]))
    rows.sort(key=operator.itemgetter(0), reverse=True)
    columns = ["operator", "nodes", *(f"{name} (µs)" for name in names)]
    columns += ["speedup", "low", "high", "verdict"]
    table = pd.DataFrame([row for _, row in rows], columns=columns).set_index("operator")
    ran = len(sides[0])
    return table.rename_axis(columns=f"{ran} process{'' if ran == 1 else 'es'}")


def _compared(
    names: Sequence[str], times: Sequence[np.ndarray], confidence: float, slack: float
) -> list[float | str | None]:
    """Compare times; *slack* is what their unit alone may change in the logarithm of the ratio."""
    if min(float(side.min()) for side in times) <= 0:
        absent = [name for name, side in zip(names, times, strict=True) if not side.any()]
        return [math.nan] * 3 + [f"not in {absent[0]}" if absent else "too short"]
    both = (Measurement(name, side) for name, side in zip(names, times, strict=True))
    claim = speedup(*both, confidence=confidence)
    if claim.low is not None and claim.high is not None:
        ends = claim.low * math.exp(-slack), claim.high * math.exp(slack)
        claim = Speedup(names[1], names[0], Estimate(claim.ratio, *ends))
    numbers = (rounded(n, 3) for n in (claim.ratio, claim.low, claim.high))
    return [*numbers, claim.verdict]
