"""Compare latencies of models, providers, and anything that ONNX Runtime takes."""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from ortmeter.cli import baseline, cold, load, machine, regression, releases
from ortmeter.cli.inputs import add_feeds, make_feeds
from ortmeter.cli.options import add_session, number, session_axes
from ortmeter.errors import InvalidArgumentError
from ortmeter.report import Report
from ortmeter.timing import Comparison, measure
from ortmeter.timing.candidates import Variant, model_variants
from ortmeter.timing.control import movement
from ortmeter.timing.measurement import rounded
from ortmeter.timing.percentiles import NONE, percentile_table
from ortmeter.timing.statistics import MIN_PROCESSES, MIN_ROUNDS

#: Ways to measure other than the latency of runs in turn.
_MODES = (load, cold, releases)
_BUDGET_S = 10.0


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
        help="number of fresh processes (1: this one; 5 with --save, --baseline or --runtime)",
    )
    how.add_argument(
        "--budget",
        type=number(0, kind=float),
        metavar="SECONDS",
        help=f"total measuring time, including warm-up and the start of processes ({_BUDGET_S:g})",
    )
    machine.add_options(parser)
    for part in (*_MODES, baseline):
        part.add_options(parser)


def run(options: Namespace, report: Report) -> int:
    """Fill the report with latencies, memory and verdicts; 1 when ``--fail-if`` says so."""
    asked = [mode for mode in _MODES if mode.is_asked(options)]
    if len(asked) > 1 or (asked and baseline.is_asked(options)):
        raise InvalidArgumentError(
            "one way to measure at a time. Accepted: --callers, --rate and --gap; --cold; "
            "--runtime; or --save and --baseline"
        )
    models = list(dict.fromkeys(map(Path, options.models)))
    feeds = list(make_feeds(options, models).values())
    axes = session_axes(options)
    with cold.saved_optimized(options, report, model_variants(models, feeds, **axes)) as variants:
        kept = baseline.check(options, variants)
        with machine.watched(options, report):
            if asked:
                return int(asked[0].fill(options, report, variants) or 0)
            results = _measure(options, variants)
        _fill(options, report, results)
        report.add("Memory of a fresh process", cold.memory_table(variants))
        if kept is None:
            return 0
        findings = [text for found in report.fitness.values() for text in found.findings]
        return kept.finish(report, results, list(dict.fromkeys(findings)))


def _measure(options: Namespace, variants: Mapping[str, Variant]) -> Comparison:
    repeat, processes, budget_s = None, 1, _BUDGET_S
    if baseline.is_asked(options):
        repeat, processes, budget_s = regression.REPEAT, regression.PROCESSES, regression.BUDGET_S
    return measure(
        {name: variant.candidate() for name, variant in variants.items()},
        repeat=options.repeat or repeat,
        processes=options.processes or processes,
        budget_s=budget_s if options.budget is None else options.budget,
        control=True,
    )


def _fill(options: Namespace, report: Report, results: Comparison) -> None:
    table = _latency_table(results).rename_axis(columns=results.how)
    report.add("Latency", table, results.plot(title="Latency of a run"))
    tails = percentile_table(results)
    if (tails != NONE).any(axis=None):  # dashes alone say nothing
        report.add("Percentiles", tails)
    if len(results) > 1:
        report.add("Speedup over the first", _speedup_table(results))
        report.conclude(f"{results.ranking()}.", *_why_undecided(results, options.budget))
    else:
        report.conclude(*(f"{measured}." for measured in results.values()))
    if moved := movement(results.control):
        report.conclude(f"{moved}.")


def _why_undecided(results: Comparison, budget_s: float | None) -> Iterator[str]:
    """Say what to ask for when there are too few samples for a verdict."""
    first = next(iter(results.values()))
    few = first.repeat < MIN_ROUNDS if first.processes == 1 else first.processes < MIN_PROCESSES
    if few:
        enough = math.ceil(1.2 * (budget_s or _BUDGET_S) * MIN_ROUNDS / first.repeat)
        yield (
            f"{results.how}: a verdict needs {MIN_ROUNDS} rounds, or {MIN_PROCESSES} processes. "
            f"Ask for --budget {enough}, or --processes {MIN_PROCESSES}."
        )


def _latency_table(results: Comparison) -> pd.DataFrame:
    table = results.to_frame().drop(columns=["processes", "rounds", "calls"])
    table.insert(3, "runs/s", [rounded(1 / m.median) for m in results.values()])
    return table


def _speedup_table(results: Comparison) -> pd.DataFrame:
    rows = [(c.subject, c.ratio, c.low, c.high, c.verdict) for c in results.speedups()]
    columns = ["candidate", "speedup", "low", "high", "verdict"]
    return pd.DataFrame(rows, columns=columns).set_index("candidate").round(3)
