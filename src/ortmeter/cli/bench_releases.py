"""Compare releases of ONNX Runtime on the same model: which one made it slower, and where."""

import itertools
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmeter.cli import bisect
from ortmeter.cli.options import CLOSE
from ortmeter.cli.report import Report, speedup_rows
from ortmeter.errors import ModelError
from ortmeter.evidence import Speedup
from ortmeter.optional import pd
from ortmeter.plotting.axes import wrap
from ortmeter.plotting.latency import speedup_plot
from ortmeter.releases.environments import Release
from ortmeter.releases.latency import (
    ReleaseClaims,
    ReleaseResults,
    compare_releases,
    measure_releases,
)
from ortmeter.releases.process import run_once
from ortmeter.releases.profiles import WHOLE, profile_releases
from ortmeter.runtime.providers import Provider
from ortmeter.study.writer import enumerate_items
from ortmeter.timing import Comparison
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.drift import drift
from ortmeter.timing.measurement import format_seconds
from ortmeter.timing.statistics import MIN_PROCESSES, PROCESSES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PROGRAM = "ortmeter bench"
_BUDGET_S = 30.0
_TOP = 10
_NAMED = 5
_MOVED = ("slower", "faster")
_PROFILED_S = 0.3  # in each process
_MEASURED = 0.6  # share of the budget; the rest is for profiles


def add_options(parser: ArgumentParser) -> None:
    """Declare the options of this mode."""
    parser.add_argument(
        "--runtime",
        metavar="RELEASE,RELEASE",
        help="releases of ONNX Runtime to compare, oldest first: 1.24.1, onnxruntime-gpu==1.30.0, "
        "onnxruntime-openvino, a wheel file, or installed; each gets an environment in "
        f"the cache (then --processes is {PROCESSES} and --budget {_BUDGET_S:g} seconds, profiles "
        "included); --provider cpu,openvino runs each on both",
    )
    bisect.add_options(parser)


@dataclass(frozen=True)
class ReleaseRuns:
    """Releases to compare, and the others between them if the first bad one is searched."""

    releases: Sequence[Release]
    between: Sequence[Release]  # with both ends
    processes: int
    repeat: int | None
    budget_s: float

    def fill(self, report: Report, variants: Mapping[str, SessionSpec]) -> int:
        """Fill the report with latencies by release, since when, and operators that changed."""
        bisect.prepare_all(_PROGRAM, self.releases)
        results = _report_releases(self, report, variants)
        questions = self._questions(variants, results)
        return bisect.fill(_PROGRAM, report, self.between, questions) if self.between else 0

    def _questions(
        self, variants: Mapping[str, SessionSpec], results: ReleaseResults
    ) -> Iterator[bisect.Onset]:
        """Ask since when a variant is slow, or its outputs differ, where both ends run."""
        first, last = self.releases
        for name, comparison in results.comparisons.items():
            claims, change = compare_releases(comparison), partial(_change, first, variants[name])
            if claims and change(last):
                yield bisect.ask_outputs(f"outputs of {name} differ", change)
            if claims and claims.overall.verdict == "slower":
                ratio = claims.overall.reversed.ratio
                yield bisect.ask_speed(name, variants[name], first, ratio, self.budget_s)


def read_releases(options: Namespace, providers: Sequence[Provider]) -> ReleaseRuns | None:
    """Read the releases, once for each provider that is named; None if there are none."""
    if options.runtime is None and not options.bisect:
        return None
    releases, between = bisect.read_releases(options, providers)
    if options.provider != "auto" and not between:
        several = len(providers) > 1
        releases = [
            replace(one, name=f"{one.name}{f' {provider}' * several}", provider=provider)
            for one, provider in itertools.product(releases, providers)
        ]
    budget_s = _BUDGET_S if options.budget is None else options.budget
    processes = options.processes or PROCESSES
    return ReleaseRuns(releases, between, processes, options.repeat, budget_s)


def _report_releases(
    asked: ReleaseRuns, report: Report, variants: Mapping[str, SessionSpec]
) -> ReleaseResults:
    releases, budget_s = asked.releases, asked.budget_s
    deadline = time.perf_counter() + budget_s
    results = measure_releases(
        releases,
        variants,
        processes=asked.processes,
        repeat=asked.repeat,
        budget_s=budget_s * (_MEASURED if len(releases) > 1 else 1),
    )
    report.add("Releases", _releases_table(releases, results))
    from ortmeter.cli.references import compare

    for rank, (name, comparison) in enumerate(results.comparisons.items()):
        where, several = (f", {name}", f"{name}: ") if len(variants) > 1 else ("", "")
        outputs = {ran: own for (n, ran), own in results.outputs.items() if n == name}
        report.conclude(*(f"{several}{told}" for told in compare(outputs, variants[name])))
        table = _latency_table(comparison)
        if (claims := compare_releases(comparison)) is None:
            report.add(f"Latency{where}", table)
            report.conclude(*(f"{several}{measured}." for measured in comparison.values()))
        else:
            report.add(f"Latency{where}", table, partial(_plot, comparison, where))
            names = claims.largest.baseline, claims.largest.subject
            slowest = max(comparison[name].median for name in names)
            report.conclude(*(f"{several}{sentence}" for sentence in _since(claims)))
            try:
                operators = profile_releases(
                    [release for name in names for release in releases if release.name == name],
                    variants[name],
                    processes=next(iter(comparison.values())).processes,
                    repeat=min(max(int(_PROFILED_S / slowest), 10), 200),
                    budget_s=(deadline - time.perf_counter()) / (len(results.comparisons) - rank),
                )
            except ModelError as error:  # latencies are measured, and stay
                report.conclude(f"{several}operators are not compared: {error}.")
            else:
                pair = f"{names[1]} compared with {names[0]}"
                title = f"Operators of {pair}, time in a profiled run{where}"
                report.add(title, operators.head(_TOP))
                told = _operators_sentence(operators, claims.largest)
                report.conclude(f"{several}{told}")
        if moved := drift(comparison.reference_workload):
            report.conclude(f"{several}{moved}.")
    for (name, _), reason in results.left_out.items():
        report.conclude(f"left out: {f'{name}, ' if len(variants) > 1 else ''}{reason}.")
    return results


def _change(first: Release, variant: SessionSpec, release: Release) -> str:
    """Say which output is not that of the first release; empty when all are close."""
    from ortmeter.discrepancy import Tolerance, max_diff

    before, after = (run_once(one, variant) for one in (first, release))
    for name in before.keys() & after.keys():
        old = before[name]
        largest = np.abs(old[np.isfinite(old)]).max(initial=0) if old.dtype.kind == "f" else 0
        close = Tolerance(atol=CLOSE * float(largest))
        verdict = close.check(max_diff(old, after[name], tolerance=close, on_mismatch="report"))
        if not verdict:
            return f"{name} against {first.name}, {'; '.join(verdict.failures)}"
    return ""


def _plot(comparison: Comparison, where: str) -> "Axes":
    claims = [
        claim.named("latency").at(release=wrap(claim.subject, 18))
        for claim in comparison.speedups()
    ]
    return speedup_plot(claims, title=f"Speedup by release{where}", caption="99% intervals")


def _since(claims: ReleaseClaims) -> list[str]:
    """Say by how much the last release differs, and since which one."""
    moved = [step for step in claims.steps if step.is_difference]
    causes = [s for s in moved if s.verdict == claims.overall.verdict]
    others = [f"{step}." for step in moved if step not in causes]
    text = str(claims.overall)
    if causes:
        told = [f"{step.subject} ({_step(step)})" for step in causes]
        text += f", since {enumerate_items(told)}"
    elif claims.steps and claims.overall.is_difference:
        text += "; the intervals do not decide which release changed it"
    return [f"{text}.", *others]


def _step(claim: Speedup) -> str:
    told = claim if claim.verdict == "faster" else claim.reversed
    return f"{told.ratio:.2f} times {claim.verdict} than {claim.baseline} {told.brackets}"


def _operators_sentence(table: "pd.DataFrame", latency: Speedup) -> str:
    names = before, after = latency.baseline, latency.subject
    runs = {name: table[f"{name} (µs)"].to_dict()[WHOLE] for name in names}
    whole = " and ".join(f"{_time(run)} in {name}" for name, run in runs.items())
    run = table.to_dict("index")[WHOLE]
    if _is_denied(run, runs[before] / runs[after], latency):
        return (
            f"{WHOLE} takes {whole}, and latencies do not say the same: the profiler itself "
            "changed, the table of operators says nothing."
        )
    if table["low"].isna().all():
        return (
            f"operators have no interval in {table.columns.name}, which needs {MIN_PROCESSES}: ask "
            f"for more --budget; {WHOLE} takes {whole}."
        )
    causes = (latency.verdict,) if latency.is_difference else _MOVED
    moved = table[table["verdict"].isin(causes) & (table.index != WHOLE)]
    if moved.empty:
        return f"no operator is shown to be {' or '.join(causes)}; {WHOLE} takes {whole}."
    first, row = moved.index[0], moved.iloc[0]
    where = "" if latency.is_difference else " in profiles, not in latencies"
    others = f"; then {enumerate_items(list(moved.index[1:_NAMED]))}" if len(moved) > 1 else ""
    return (
        f"what changed most{where}: {first}, {_time(row[f'{before} (µs)'])} in {before} and "
        f"{_time(row[f'{after} (µs)'])} in {after}{others}; {WHOLE} takes {whole}."
    )


def _is_denied(run: Mapping[Any, Any], ratio: float, latency: Speedup) -> bool:
    """Whether latencies deny what a profiled run says: another verdict, direction or size."""
    if run["verdict"] in _MOVED and run["verdict"] != latency.verdict:
        return True
    if not latency.is_difference:
        return False
    is_apart = run["low"] > latency.high or run["high"] < latency.low
    return is_apart or (ratio > 1) != (latency.ratio > 1)


def _time(microseconds: float) -> str:
    return format_seconds(microseconds * 1e-6)


def _latency_table(comparison: Comparison) -> "pd.DataFrame":
    table = comparison.to_frame().drop(columns=["processes", "rounds", "calls"])
    if len(comparison) > 1:
        claims = pd.DataFrame(speedup_rows(comparison.speedups())).set_index("candidate")
        table = table.join(claims.drop(columns="verdict"))
    return table.rename_axis("release").rename_axis(columns=comparison.how)


def _releases_table(releases: Sequence[Release], results: ReleaseResults) -> "pd.DataFrame":
    """Say what each release is made of, and how far its outputs are from those of the first."""
    from ortmeter.discrepancy import max_diff

    first = {name: outputs for (name, _), outputs in reversed([*results.outputs.items()])}
    rows = []
    for release in releases:
        changes = [
            max_diff(first[name][output], got).ranked("abs")
            for (name, ran), outputs in results.outputs.items()
            for output, got in outputs.items()
            if ran == release.name and outputs is not first[name] and output in first[name]
        ]
        several = any(one.provider for one in releases)
        where = {"provider": str(release.provider or "")} if several else {}
        change = {"largest change of outputs": max(changes, default=None)}
        versions = results.versions[release.name]
        rows.append({"release": release.name, **versions, **where, **change})
    return pd.DataFrame(rows)
