"""Compare latencies of models, providers, and anything that ONNX Runtime takes."""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ortmeter.cli import baseline, bench_releases, cold, conversion, load, machine
from ortmeter.cli.inputs import add_feeds, make_feeds
from ortmeter.cli.options import add_session, number, session_axes
from ortmeter.cli.report import Report
from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import rounded
from ortmeter.plotting.latency import latency_plot
from ortmeter.study.writer import rank
from ortmeter.timing import Comparison
from ortmeter.timing.bench import BUDGET_S, LONG_BUDGET_S, measure_variants, why_isolated
from ortmeter.timing.candidates import model_variants
from ortmeter.timing.drift import drift
from ortmeter.timing.percentiles import NONE, percentile_table
from ortmeter.timing.statistics import MIN_PROCESSES, MIN_ROUNDS, PROCESSES

#: Ways to measure other than the latency of runs in turn.
_MODES = (load, cold, bench_releases)


def register(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] MODEL [MODEL ...]"
    parser.add_argument("models", metavar="MODEL", nargs="+", help="ONNX file")
    add_session(parser, several=True)
    add_feeds(parser)
    how = parser.add_argument_group("measurement")
    how.add_argument(
        "--repeat", type=number(1), help="minimum number of samples (100, or 12 in each process)"
    )
    how.add_argument(
        "--processes",
        type=number(1),
        help="number of fresh processes (1: this one); by default 5 with --save, --baseline or "
        "--runtime, and of each candidate where one would disturb the next (--spinning on)",
    )
    how.add_argument(
        "--budget",
        type=number(0, kind=float),
        metavar="SECONDS",
        help=f"total measuring time, including warm-up and the start of processes "
        f"({BUDGET_S:g}; {LONG_BUDGET_S:g} where --processes is 5 by default)",
    )
    conversion.add_options(parser)
    machine.add_options(parser)
    for part in (*_MODES, baseline):
        part.add_options(parser)


def run(options: Namespace, report: Report) -> int:
    """Fill the report with latencies, memory and verdicts; 1 or 2 when ``--fail-if`` says so."""
    asked = [mode for mode in _MODES if mode.is_asked(options)]
    keeps = baseline.is_asked(options)
    if len(asked) > 1 or (asked and keeps):
        raise InvalidArgumentError(
            "one way to measure at a time. Accepted: --callers, --rate and --gap; --cold; "
            "--runtime; or --save and --baseline"
        )
    models = list(dict.fromkeys(map(Path, options.models)))
    feeds = list(make_feeds(options, models).values())
    axes = session_axes(options)
    if bench_releases.is_asked(options) and not options.bisect:
        axes["provider"] = bench_releases.variant_provider(options)
    given = model_variants(models, feeds, **axes)
    converted = conversion.converted(options, report, given)
    with cold.saved_optimized(options, report, converted) as variants:
        kept = baseline.check(options, report, variants)
        with machine.watched(options, report):
            if asked:
                return int(asked[0].fill(options, report, variants) or 0)
            why, budget_s = why_isolated(variants), options.budget
            if budget_s is None:
                budget_s = LONG_BUDGET_S if keeps or why else BUDGET_S
            results = measure_variants(
                variants,
                repeat=options.repeat or (baseline.REPEAT if keeps else None),
                processes=options.processes or (PROCESSES if keeps else None),
                budget_s=budget_s,
                reference_workload=True,
            )
            if kept is not None:
                kept.join(results)
        with ThreadPoolExecutor(1) as meanwhile:  # what is timed is over: a process starts
            memory = meanwhile.submit(cold.memory_table, variants)
            _fill(report, results, budget_s)
            if why:
                report.conclude(f"{why}: each candidate was measured apart, in its own processes.")
            report.add("Memory of a fresh process", memory.result())
        return 0 if kept is None else kept.finish(report, results)


def _fill(report: Report, results: Comparison, budget_s: float) -> None:
    table = results.to_frame().drop(columns=["processes", "rounds", "calls"])
    table.insert(3, "runs/s", [rounded(1 / m.median) for m in results.values()])
    table = table.rename_axis(columns=results.how)
    report.add("Latency", table, lambda: latency_plot(results, title="Latency of a run"))
    tails = percentile_table(results)
    if (tails != NONE).any(axis=None):  # dashes alone say nothing
        report.add("Percentiles", tails)
    if len(results) > 1:
        report.add("Speedup over the first", cold.speedup_table(results.speedups()))
        report.conclude(f"{rank(results.ranking())}.", *_why_undecided(results, budget_s))
    else:
        report.conclude(*(f"{measured}." for measured in results.values()))
    if moved := drift(results.reference_workload):
        report.conclude(f"{moved}.")


def _why_undecided(results: Comparison, budget_s: float) -> Iterator[str]:
    """Say what to ask for when there are too few samples for a verdict."""
    first = next(iter(results.values()))
    got, least, what = first.processes, MIN_PROCESSES, f"{MIN_PROCESSES} processes"
    other = ""
    if got == 1 and not first.isolated:
        got, least, what = first.repeat, MIN_ROUNDS, f"{MIN_ROUNDS} rounds, or {what}"
        other = f", or --processes {MIN_PROCESSES}"
    if got < least:
        enough = math.ceil(1.2 * (budget_s or BUDGET_S) * least / got)
        yield f"{results.how}: a verdict needs {what}. Ask for --budget {enough}{other}."
