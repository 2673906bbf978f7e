"""What ``operators`` says of times and errors: sentences first, then tables."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from ortmeter.cli.report import Report, Rows
from ortmeter.errors import OrtMeterError
from ortmeter.evidence import Estimate, Speedup, plural
from ortmeter.observatory.accuracy import (
    accuracy_changes,
    comparable_errors,
    measure_errors,
    not_judged,
    out_of_bound,
    told_error,
)
from ortmeter.observatory.case import Case, in_words
from ortmeter.observatory.edge_cases import edge_cases
from ortmeter.observatory.edges import ALWAYS, OPEN, WRONG, measure_edges
from ortmeter.observatory.matrix import AGAIN, Matrix, RuntimeCandidate
from ortmeter.observatory.reference import DRAWN
from ortmeter.observatory.verdicts import claim_level, claimed, compare_cells
from ortmeter.plotting.heatmap import change_map
from ortmeter.runtime.providers import Provider
from ortmeter.study.rendering import digits
from ortmeter.study.writer import enumerate_items
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.measurement import format_seconds
from ortmeter.timing.statistics import MIN_PROCESSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TOLD = 5  # cases in the conclusion
_PAIR = 2
_EFFECT = 0.05  # smallest relative difference worth a claim
_CLAIMED = ("faster", "slower")


def fill(report: Report, candidates: Sequence[RuntimeCandidate], matrix: Matrix) -> None:
    """Fill the report with the times of the candidates, and with verdicts if there are several."""
    names = [candidate.name for candidate in candidates]
    if len(names) > 1:
        cells = compare_cells(matrix.times, names, min_effect=_EFFECT)
        report.conclude(*_sentences(cells, names, matrix))
        slower = claimed(cells, names[-1], "slower")
        if len(slower) and all(c.script is None for c in candidates):  # torch has no script
            case = slower.index.get_level_values("case")[0]
            report.conclude(f"a script for an issue: ortmeter operators --repro {case}.")
        is_pair = len(names) == _PAIR
        beside = (
            f"{names[1]} compared with {names[0]}" if is_pair else "Compared with the best before"
        )
        plots = [partial(_plot, cells, report)] if cells["verdict"].isin(_CLAIMED).any() else []
        report.add(beside, *plots, _cells_table(cells, several=not is_pair))
    else:
        report.conclude(_slowest(matrix, names[0]))
    medians = matrix.times[names].groupby(level="case", sort=False).median()
    report.add("Median time of a run (µs)", medians)
    versions = [{"candidate": name, **matrix.versions[name]} for name in names]
    report.add("Candidates", pd.DataFrame(versions))
    if matrix.absent:
        absent = tuple((*key, reason) for key, reason in matrix.absent.items())
        report.add("Absent", Rows(("case", "candidate", "reason"), absent))
        report.conclude(f"{len(absent)} absent: the table has the reasons.")


def _sentences(
    cells: pd.DataFrame, names: Sequence[str], matrix: Matrix
) -> Iterator[str | Speedup]:
    """Say what the last candidate lost and won, then what the control says."""
    *others, last = names
    before = others[0] if len(names) == _PAIR else "the best before"
    own = cells[cells.index.get_level_values("candidate") == last]
    tested = own[own["verdict"].isin([*_CLAIMED, "undecided"])]
    lost, won = (claimed(cells, last, verdict) for verdict in ("slower", "faster"))
    if len(lost) + len(won):
        small = int(_is_small(tested).sum())
        left = len(tested) - len(lost) - len(won) - small
        yield (
            f"{last} compared with {before}: {len(lost)} slower, {len(won)} faster, {small} within "
            f"{_EFFECT:.0%}, {left} undecided ({_how(matrix.times)})."
        )
    else:
        yield _nothing(tested, last, before, matrix.times)
    for moved, word in ((lost, "slower"), (won, "faster")):
        told = moved.reset_index().head(_TOLD).to_dict("records")
        for row in told:
            since = {} if row["since"] == last else {"since": row["since"]}
            speed = Estimate(row["speedup"], row["low"], row["high"])
            where = {"case": in_words(row["case"]), **since}
            yield Speedup(last, row["baseline"], speed, where)
        if len(moved) > len(told):
            yield f"{len(moved) - len(told)} more {word}: the tables have them."
    if last + AGAIN in matrix.times:
        pair, level = [last, last + AGAIN], claim_level(cells["p"])  # every claim is false
        control = compare_cells(matrix.times, pair, level=level).dropna(subset="low")
        false = int(control["verdict"].isin(_CLAIMED).sum())
        if len(control):
            yield f"control, {last} compared with itself: false claims, {false} of {len(control)}."


def _how(times: pd.DataFrame) -> str:
    """Say how many processes ran in each pass: an interruption leaves some out."""
    sets = times.dropna(how="all").reset_index()[["pass", "process"]].drop_duplicates()
    counts = sets.groupby("pass").size().tolist()
    if len({*counts}) == 1 and len(counts) > 1:
        return f"{len(counts)} passes of {counts[0]} processes"
    return f"processes by pass: {enumerate_items([str(count) for count in counts])}"


def _nothing(tested: pd.DataFrame, last: str, before: str, times: pd.DataFrame) -> str:
    if tested.empty:
        return f"{last} and {before} have no case that both run."
    known = tested.dropna(subset=["low", "high"])
    if known.empty:
        return (
            f"no verdict: {last} and {before} both ran {plural(len(tested), 'case')} "
            f"({_how(times)}). It needs {MIN_PROCESSES} processes in each pass."
        )
    low, high, told = known["low"].min(), known["high"].max(), plural(len(known), "case")
    return (
        f"no case is shown to be slower or faster in {last} than in {before}: {told}, "
        f"speedups within [{low:.2f}, {high:.2f}] ({_how(times)})."
    )


def _slowest(matrix: Matrix, name: str) -> str:
    medians = matrix.times[name].groupby(level="case").median().dropna()
    if medians.empty:
        return f"{name} runs none of the cases."
    least, most = (format_seconds(value * 1e-6) for value in (medians.min(), medians.max()))
    return (
        f"{plural(len(medians), 'case')} with {name}, from {least} to {most} "
        f"({in_words(str(medians.idxmax()))}): with another candidate, --runtime or --against "
        "torch, they are compared."
    )


def _cells_table(cells: pd.DataFrame, *, several: bool) -> pd.DataFrame:
    """Return the cells that have a verdict, the surest first; times are in another table."""
    cells = cells.assign(verdict=cells["verdict"].mask(_is_small(cells), f"within {_EFFECT:.0%}"))
    shown = cells[cells["p"].notna()].sort_values("p", kind="stable").reset_index()
    names = ["candidate", "baseline"] if several else []
    return shown[["case", *names, "speedup", "low", "high", "verdict"]]


def _is_small(cells: pd.DataFrame) -> "pd.Series[bool]":
    """Whether a whole interval is within the smallest effect."""
    inside = (cells["low"] > 1 / (1 + _EFFECT)) & (cells["high"] < 1 + _EFFECT)
    return inside & (cells["verdict"] == "undecided")


def _plot(cells: pd.DataFrame, report: Report) -> "Figure":
    named = cells.rename(in_words, level="case")
    frame = named.reset_index().rename(columns={"case": "row", "candidate": "column"})
    frame["panel"] = ["1 thread" if n == 1 else f"{n or 'all'} threads" for n in frame["threads"]]
    return change_map(
        frame, title="Speedup over the best candidate before", caption=report.machine.cpu
    )


def fill_errors(
    report: Report, candidates: Sequence[RuntimeCandidate], cases: Mapping[str, SessionSpec]
) -> None:
    """Fill the report with how close each candidate is to float64."""
    try:
        errors = measure_errors(candidates, cases)
    except OrtMeterError as error:  # what was measured before is kept
        report.conclude(f"outputs are not compared: {error}.")
        return
    for row in out_of_bound(errors).reset_index().to_dict("records"):
        report.conclude(f"{in_words(row['case'])} with {row['candidate']}: {told_error(row)}.")
    unjudged = not_judged(errors)
    report.conclude(*(f"{in_words(case)}: {why}." for case, why in unjudged.items()))
    changes = accuracy_changes(errors).reset_index()
    for row in changes.head(_TOLD).to_dict("records"):
        word = "less" if row["error_ratio"] > 1 else "more"
        report.conclude(
            f"{in_words(row['case'])}: {word} accurate with {row['candidate']}, {_moved(row)}."
        )
    if len(changes) > _TOLD:
        report.conclude(f"{len(changes) - _TOLD} more changed their accuracy: the table has them.")
    if len(candidates) > 1:
        drawn = errors["reference"] == DRAWN
        changed = errors["bits"][~drawn].groupby(level="case").nunique().gt(1)
        report.conclude(
            f"bits of the outputs differ in {changed.sum()} of {plural(len(changed), 'case')}."
        )
    report.add("Errors against float64", _errors_table(errors, len(candidates)))


def _moved(row: Mapping[Any, Any]) -> str:
    unit = "ulp" if row["unit"] == "ulp" else "ulp of the largest value"
    return f"{digits(row['after'])} {unit}, {digits(row['before'])} with {row['previous']}"


def _errors_table(errors: pd.DataFrame, candidates: int) -> pd.DataFrame:
    """Return a row for each case and each set of candidates whose outputs have the same bits."""
    shown = comparable_errors(errors).assign(bound=errors["bound"], bits=errors["bits"])
    shown = shown.reset_index().rename(columns={"bound": "of bound"})
    same = shown.groupby(["case", "bits"], sort=False)["candidate"]
    is_all = (same.transform("size") == candidates) & (candidates > 1)
    shown["candidate"] = same.transform(", ".join).mask(is_all, "all")
    shown["unit"] = shown["unit"].replace("largest", "ulp of largest")
    columns = ["case", "candidate", "error", "unit", "of bound", "bits"]
    return shown.drop_duplicates(["case", "bits"])[columns].reset_index(drop=True)


def fill_edges(
    report: Report,
    candidates: Sequence[RuntimeCandidate],
    cases: Mapping[str, Case],
    provider: Provider,
    threads: int,
) -> None:
    """Fill the report with the edge values and shapes on which candidates are wrong."""
    known = edge_cases(cases)
    found = measure_edges(candidates, known, provider=provider, threads=threads)
    wrong, unknown = (found[found["verdict"] == verdict] for verdict in (WRONG, OPEN))
    last = candidates[-1].name
    now = wrong["candidates"].str.split(", ").map(lambda names: last in names).astype(bool)
    told = plural(len(wrong), "wrong result")
    report.conclude(
        f"{told} on edge values and shapes of {plural(len(known), 'case')}, {now.sum()} of them "
        f"with {last}{', the worst first' if len(wrong) > 1 else ''}."
    )
    for row in wrong[now].head(_TOLD).to_dict("records"):
        since = ALWAYS if row["since"] == ALWAYS else f"since {row['since']}"
        report.conclude(
            f"{in_words(row['case'])}, {row['inputs']}: {row['what']}, {since}. "
            f"Expected {row['expected']}, got {row['got']}."
        )
    if len(unknown):
        verb = "is" if len(unknown) == 1 else "are"
        report.conclude(f"{len(unknown)} {verb} open, no finding: the table says why.")
    columns = ["case", "what", "edge", "inputs", "expected", "got"]
    for title, rows, more in (
        ("Wrong results", wrong, ["since", "candidates"]),
        ("Open", unknown, ["candidates", "reason"]),
    ):
        if len(rows):
            report.add(title, rows[[*columns, *more]])
