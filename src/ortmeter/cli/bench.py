"""Compare latencies of models, providers, optimization levels and numbers of threads."""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from ortmeter.cli.inputs import add_feeds, make_feeds
from ortmeter.cli.memory import memory_of_candidate
from ortmeter.cli.options import add_session, number, session_axes
from ortmeter.report import Report
from ortmeter.timing import Candidate, Comparison, measure
from ortmeter.timing.candidates import model_variants
from ortmeter.timing.measurement import rounded
from ortmeter.timing.statistics import MIN_PROCESSES, MIN_ROUNDS


def register(parser: ArgumentParser) -> None:
    parser.add_argument("models", metavar="MODEL", nargs="+", help="ONNX file")
    add_session(parser, several=True)
    add_feeds(parser)
    parser.add_argument(
        "--repeat", type=number(1), help="minimum number of samples (100, or 12 in each process)"
    )
    parser.add_argument(
        "--processes", type=number(1), default=1, help="number of fresh processes (1: this one)"
    )
    parser.add_argument(
        "--budget",
        type=number(0, kind=float),
        default=10.0,
        metavar="SECONDS",
        help="total measuring time, including warm-up and the start of processes (10)",
    )


def run(options: Namespace, report: Report) -> None:
    """Fill the report with latencies, memory and verdicts."""
    models = list(dict.fromkeys(map(Path, options.models)))
    feeds = list(make_feeds(options, models).values())
    variants = model_variants(models, feeds, **session_axes(options))
    candidates = {name: variant.candidate() for name, variant in variants.items()}
    results = measure(
        candidates,
        repeat=options.repeat,
        processes=options.processes,
        budget_s=options.budget,
    )
    table = _latency_table(results).rename_axis(columns=results.how)
    report.add("Latency", table, results.plot(title="Latency of a run"))
    if len(results) > 1:
        report.add("Speedup over the first", _speedup_table(results))
        report.conclude(f"{results.ranking()}.", *_why_undecided(results, options.budget))
    else:
        report.conclude(*(f"{measured}." for measured in results.values()))
    report.add("Memory of a fresh process", _memory_table(candidates))


def _why_undecided(results: Comparison, budget_s: float) -> Iterator[str]:
    """Say what to ask for when there are too few samples for a verdict."""
    first = next(iter(results.values()))
    few = first.repeat < MIN_ROUNDS if first.processes == 1 else first.processes < MIN_PROCESSES
    if few:
        enough = math.ceil(1.2 * budget_s * MIN_ROUNDS / first.repeat)
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


def _memory_table(candidates: Mapping[str, Candidate]) -> pd.DataFrame:
    rows = [(name, memory_of_candidate(candidate)) for name, candidate in candidates.items()]
    return pd.DataFrame(rows, columns=["candidate", "peak growth (MiB)"]).set_index("candidate")
