"""Which operators changed between two releases of ONNX Runtime."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ortmeter.profiling.read import read_profile
from ortmeter.profiling.record import Profile
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.releases import Release
from ortmeter.timing.candidates import Variant
from ortmeter.timing.comparison import speedup
from ortmeter.timing.measurement import Measurement, rounded
from ortmeter.timing.release_process import ReleaseProcess, open_model, write_questions
from ortmeter.timing.releases import PROCESSES

_STANDARD, _CONTRIBUTED = "ai.onnx", "com.microsoft."
#: Rows of the table of operators: a whole run, and what is left without its kernels.
WHOLE, OUTSIDE = "a profiled run", "outside of kernels"
_TURNS = 10
_SMALL = 0.01  # share of a run, in both releases


def profile_releases(
    pair: Sequence[Release],
    variant: Variant,
    *,
    processes: int = PROCESSES,
    repeat: int = 30,
) -> pd.DataFrame:
    """Profile a model with two releases, in several fresh processes, and compare its operators.

    Parameters
    ----------
    pair : two Release
        Baseline and candidate.
    variant : Variant
        Model with its inputs and settings.
    processes : int
        Fresh processes of each release; an interval needs 3.
    repeat : int
        Recorded runs in each process, about.

    Returns
    -------
    pandas.DataFrame
        One row per operator that takes 1% of a run or more with either release, largest change
        first. Index ``operator`` (``nchwc.Conv`` for the domain com.microsoft.nchwc), columns
        ``nodes`` and median time per run (µs) of each release, ``change (µs)``, ``speedup``,
        ``low``, ``high`` and ``verdict``. The graphs that ran differ as each release optimizes
        them: an operator of one only has no speedup. Two rows are for a whole run, and for what is
        outside of kernels. Intervals hold together at 99%.
    """
    sides: list[list[dict[str, tuple[int, float]]]] = [[], []]
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
        (question,) = write_questions({"": variant}, Path(temporary)).values()
        for i in range(processes):
            order = np.random.default_rng(i).permutation(2).tolist()
            with ExitStack() as stack:
                children = [stack.enter_context(ReleaseProcess(r.name, r.python)) for r in pair]
                for side in order:
                    open_model(children[side], pair[side], question)
                profiles = _record(children, Path(temporary, str(i)), question, repeat, seed=i)
                for side, found in zip(sides, profiles, strict=True):
                    side.append(_operators(found))
    return _table([release.name for release in pair], sides)


def _record(
    children: Sequence[ReleaseProcess],
    folder: Path,
    question: Mapping[str, Any],
    repeat: int,
    *,
    seed: int,
) -> list[Profile]:
    """Take turns of a few runs, in random order: a slow spell of the machine hits both."""
    graphs = [folder / str(side) / "optimized.onnx" for side in range(len(children))]
    for child, graph in zip(children, graphs, strict=True):
        graph.parent.mkdir(parents=True)
        child.ask("record", prefix=str(graph.with_name("profile")), optimized=str(graph))
    rng = np.random.default_rng(seed)
    for _ in range(_TURNS):
        for side in rng.permutation(len(children)).tolist():
            children[side].ask("sample", number=math.ceil(repeat / _TURNS))
    external = Path(question["model"]).parent
    return [
        read_profile(child.ask("end"), model=load_model(graph, external_folder=external))
        for child, graph in zip(children, graphs, strict=True)
    ]


def _operators(found: Profile) -> dict[str, tuple[int, float]]:
    """Nodes and median time per run (µs) of each operator."""
    rows = found.by_operator().astype({"domain": "object"})
    times: dict[str, tuple[int, float]] = {}
    for op, domain, nodes, median in rows[["op", "domain", "nodes", "median"]].itertuples(
        index=False
    ):
        plain = pd.isna(domain) or domain == _STANDARD
        name = str(op) if plain else f"{domain}.{op}".removeprefix(_CONTRIBUTED)
        before = times.get(name, (0, 0.0))  # on another provider
        times[name] = before[0] + int(nodes), before[1] + float(median)
    runs = found.by_iteration()
    steady = runs[runs["steady"]]
    outside = float((steady["duration"] - steady["covered"]).median())
    return {**times, OUTSIDE: (0, outside), WHOLE: (0, float(steady["duration"].median()))}


def _table(
    names: Sequence[str], sides: Sequence[Sequence[Mapping[str, tuple[int, float]]]]
) -> pd.DataFrame:
    operators = list(dict.fromkeys(op for side in sides for run in side for op in run))
    nodes = {
        op: [max(run.get(op, (0, 0))[0] for run in side) for side in sides] for op in operators
    }
    times = {
        op: [np.array([[run.get(op, (0, 0.0))[1]] for run in side]) for side in sides]
        for op in operators
    }
    kernels = [op for op in operators if op != WHOLE]
    totals = [sum(float(times[op][side].mean()) for op in kernels) for side in (0, 1)]
    kept = [
        op
        for op in operators
        if any(times[op][i].mean() >= _SMALL * totals[i] for i in (0, 1) if totals[i])
    ]
    rows = []
    for op in kept:
        before, after = (float(times[op][side].mean()) for side in (0, 1))
        mean = [rounded(time) for time in (before, after, after - before)]
        rows.append([op, *nodes[op], *mean, *_compared(names, times[op], 1 - 0.01 / len(kept))])
    columns = [
        "operator",
        *(f"nodes {name}" for name in names),
        *(f"{name} (µs)" for name in names),
        "change (µs)",
        *("speedup", "low", "high", "verdict"),
    ]
    table = pd.DataFrame(rows, columns=columns).set_index("operator")
    return table.iloc[np.argsort(-table["change (µs)"].abs().to_numpy(), kind="stable")]


def _compared(
    names: Sequence[str], times: Sequence[np.ndarray], confidence: float
) -> list[float | str | None]:
    if min(float(side.min()) for side in times) <= 0:
        absent = [name for name, side in zip(names, times, strict=True) if not side.any()]
        return [math.nan] * 3 + [f"not in {absent[0]}" if absent else "too short"]
    both = (Measurement(name, side) for name, side in zip(names, times, strict=True))
    claim = speedup(*both, confidence=confidence)
    numbers = (rounded(n, 3) for n in (claim.ratio, claim.low, claim.high))
    return [*numbers, claim.verdict]
