"""Compare latencies of models, providers, and other settings of ONNX Runtime."""

import dataclasses
import math
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmeter.cli import baseline, bench_releases, cold, conversion, load, machine
from ortmeter.cli.first_run import refuse_deadly
from ortmeter.cli.inputs import add_feeds, inputs_table, make_feeds
from ortmeter.cli.options import CLOSE, add_session, number, session_axes
from ortmeter.cli.report import Report, Rows, speedup_rows
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.evidence import Speedup, plural
from ortmeter.plotting.latency import latency_plot
from ortmeter.runtime.digests import content, digest
from ortmeter.runtime.optimizers import without
from ortmeter.runtime.sessions import graph_digest
from ortmeter.runtime.settings import DEFAULT, scheduling
from ortmeter.study.writer import enumerate_items, rank
from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.bench import BUDGET_S, measure_variants, why_isolated
from ortmeter.timing.candidates import SessionSpec, model_variants
from ortmeter.timing.comparison import latency_row
from ortmeter.timing.drift import drift
from ortmeter.timing.percentiles import MISSING, RUNS_OF_P99, percentile_rows, why_missing
from ortmeter.timing.processes import processes_needed
from ortmeter.timing.statistics import MIN_PROCESSES, PROCESSES
from ortmeter.tuning.files import Session, read_session, session_specs

_LONGEST_S = 1800.0


def register(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] MODEL [MODEL ...]"
    parser.add_argument("models", metavar="MODEL", nargs="*", help="ONNX file")
    add_feeds(parser)
    add_session(parser, several=True)
    conversion.add_options(
        parser,
        "each --precision is added to the model, each --rewrite replaces it, unless its error "
        f"exceeds {CLOSE:g} of the largest value of an output",
    )
    parser.add_argument(
        "--budget",
        type=number(0, kind=float),
        metavar="SECONDS",
        help="limit of the measurement, in seconds, including warm-up and the start of processes "
        f"({BUDGET_S:g})",
    )
    how = parser.add_argument_group("measurement")
    how.add_argument(
        "--repeat",
        type=number(1),
        help="minimum number of rounds (100, or 12 of each set of sessions)",
    )
    how.add_argument(
        "--processes",
        type=number(1),
        help=f"number of fresh processes ({PROCESSES}, and up to three times as many while "
        "intervals are wide); 1 measures in this process",
    )
    how.add_argument(
        "--switching",
        action="store_true",
        help="time single runs, each after another candidate, which filled the caches, "
        "as in a server with several models; by default runs are back to back",
    )
    parser.add_argument_group("tuned session").add_argument(
        "--config",
        metavar="session.json",
        help="compare what ortmeter tune chose with the default, here and now",
    )
    for part in (cold, bench_releases, load, baseline, machine):
        part.add_options(parser)


@dataclass(frozen=True)
class Request:
    """What is asked of ``bench``, read from its options once."""

    models: Mapping[Path, Mapping[str, Any]]  # with their inputs
    tuned: Session | None
    inputs: Rows
    axes: Mapping[str, Any]
    session: str  # in words
    mode: load.LoadRuns | cold.ColdStarts | bench_releases.ReleaseRuns | None
    conversion: conversion.Conversion
    kept: baseline.KeptSamples | None
    save_optimized: bool
    shorten: bool
    strict: bool
    limits: Mapping[str, Any]

    def variants(self) -> dict[str, SessionSpec]:
        """Combine the models and the values of settings."""
        if self.tuned is not None:
            return session_specs(self.tuned, next(iter(self.models.values())))
        axes = dict(self.axes)
        if isinstance(self.mode, bench_releases.ReleaseRuns) and not self.mode.between:
            # Each release has its own provider: that of a variant is only for its options.
            given = axes["provider"]
            axes["provider"] = next((one for one in given if not one.is_cpu), given[0])
        return model_variants(list(self.models), list(self.models.values()), **axes)


def read_request(options: Namespace) -> Request:
    """Read the options, refuse those that do not go together."""
    axes, session = session_axes(options)
    modes = (
        load.read_load(options),
        cold.read_cold(options),
        bench_releases.read_releases(options, axes["provider"]),
    )
    asked = [mode for mode in modes if mode is not None]
    kept, made = baseline.read_kept(options), conversion.read_conversion(options)
    if len(asked) + (kept is not None) > 1:
        raise InvalidArgumentError(
            "one way to measure at a time. Accepted: --callers, --rate and --gap; --cold; "
            "--runtime; or --save and --baseline"
        )
    if options.switching and (asked or kept):
        raise InvalidArgumentError(
            "--switching is for interleaved candidates. Accepted without --callers, --rate, --gap, "
            "--cold, --runtime, --save and --baseline"
        )
    if kept and (made.rewriters or made.precisions):
        raise InvalidArgumentError(
            "--rewrite and --precision do not go with --save or --baseline, which need files. "
            "Accepted: files that --save-model kept"
        )
    if bool(options.models) == bool(options.config):
        raise InvalidArgumentError("expected models, or --config session.json, and not both")
    tuned = read_session(Path(options.config)) if options.config else None
    if tuned is not None:
        options.models, session = [tuned.default], f"those of {options.config}"
        if not any((options.feeds, options.value, options.dim, options.shape)):
            options.shape, options.value = tuned.inputs["shape"], tuned.inputs["value"]
    models = make_feeds(options, list(dict.fromkeys(map(Path, options.models))))
    limits = {
        "repeat": options.repeat,
        "processes": options.processes or PROCESSES,
        "budget_s": BUDGET_S if options.budget is None else options.budget,
        "switching": options.switching,
    }
    inputs, mode = inputs_table(options, models), next(iter(asked), None)
    flags = options.save_optimized, options.shorten, options.strict
    return Request(models, tuned, inputs, axes, session, mode, made, kept, *flags, limits)


def run(options: Namespace, report: Report) -> int:
    """Fill the report with latencies, memory and verdicts; 1 or 2 when ``--fail-if`` says so."""
    request = read_request(options)
    report.session = request.session
    given = request.variants()
    if request.tuned is not None and not request.tuned.changes:
        report.conclude(f"{options.config} keeps the defaults, so the default is timed alone")
    if not isinstance(request.mode, bench_releases.ReleaseRuns):
        refuse_deadly(given)
    begun = len(report.sections), len(report.sentences)
    try:
        return _measure_request(request, report, given)
    except ModelError:
        del report.sections[begun[0] :], report.sentences[begun[1] :]
        running = _without_failing(report, given)
        if running.keys() == given.keys():
            raise
    return _measure_request(request, report, running)


def _without_failing(report: Report, variants: Mapping[str, SessionSpec]) -> dict[str, SessionSpec]:
    """Leave optimizers out where they make a model fail, and tell."""
    from ortmeter.attribution.optimizers import find_failing

    running = {}
    for name, variant in variants.items():
        settings = variant.settings
        names = find_failing(variant.model, variant.feeds, **settings)
        label = f"{name} without {enumerate_items(names)}" if names else name
        if names:
            report.conclude(f"{name} fails, and is timed as it runs: {label}")
        running[label] = dataclasses.replace(variant, settings=without(settings, names))
    return running


def _measure_request(request: Request, report: Report, given: Mapping[str, SessionSpec]) -> int:
    mode, kept = request.mode, request.kept
    variants = request.conversion.apply(report, given)
    if mode is None and kept is None:
        variants = _distinct(report, variants)
        if request.tuned is None:
            variants = _with_default(request.limits, variants)
    with ExitStack() as stack:
        if request.shorten or request.save_optimized:
            made = request.conversion
            starts = cold.other_starts(report, variants, made, shorten=request.shorten)
            variants = stack.enter_context(starts)
        samples = None if kept is None else kept.begin(variants)
        threads, providers = request.axes["threads"], request.axes["provider"]
        with machine.watched(report, threads, providers, strict=request.strict):
            if mode is not None:
                return mode.fill(report, variants)
            why, start = why_isolated(variants), time.perf_counter()
            results = measure_variants(variants, **request.limits, reference_workload=True)
            seconds = time.perf_counter() - start
        with ThreadPoolExecutor(1) as meanwhile:  # what is timed is over: a process starts
            memory = meanwhile.submit(cold.memory_table, variants)
            # With pandas and SciPy: after what is timed.
            from ortmeter.cli.references import tell_differences

            report.conclude(*tell_differences(variants))
            _report_latencies(report, results, variants, seconds)
            report.add("Inputs", request.inputs)
            if why:
                report.conclude(f"{why}: each candidate was measured apart, in its own processes.")
            report.add("Memory of a fresh process", memory.result())
        return 0 if samples is None else samples.finish(report, results)


def _distinct(report: Report, variants: Mapping[str, SessionSpec]) -> Mapping[str, SessionSpec]:
    """Keep one of the candidates that run the same optimized graph in the same way, and tell."""
    ways: dict[str, str] = {}
    for name, variant in variants.items():
        settings = {**variant.settings, "optimization": ""}
        fed = [(n, a.dtype, a.shape, digest([content(a)])) for n, a in variant.feeds.items()]
        ways[name] = repr((settings, variant.run_config, variant.bound, fed))
    shared, same = Counter(ways.values()), dict[tuple[str, str], list[str]]()
    for name, way in ways.items():
        one = variants[name]
        graph = graph_digest(one.model, **one.settings) if shared[way] > 1 else ""
        same.setdefault((way, graph or name), []).append(name)
    for first, *others in same.values():
        if others:
            report.conclude(
                f"{enumerate_items([first, *others])} have the same optimized graph, so only "
                f"{first} was timed"
            )
    return {first: variants[first] for first, *_ in same.values()}


def _with_default(
    limits: Mapping[str, Any], variants: Mapping[str, SessionSpec]
) -> Mapping[str, SessionSpec]:
    """Add the session of ``InferenceSession(path)`` to a comparison of threads or spinning."""
    ways = _ways(variants)
    alone = limits["processes"] == 1 or limits["switching"]  # its threads would slow the others
    several = len({id(variant.model) for variant in variants.values()}) > 1
    is_there = len(ways) == 1 or scheduling(DEFAULT) in ways
    if is_there or alone or several or not _on_cpu(variants):
        return variants
    first = next(iter(variants.values()))
    name = "default (threads={threads}, spinning={spinning})".format_map(DEFAULT)
    return {**variants, name: dataclasses.replace(first, settings={**first.settings, **DEFAULT})}


def _ways(variants: Mapping[str, SessionSpec]) -> set[tuple[int, str]]:
    return {scheduling(variant.settings) for variant in variants.values()}


def _on_cpu(variants: Mapping[str, SessionSpec]) -> bool:
    return all(variant.settings["provider"].is_cpu for variant in variants.values())


def _report_latencies(
    report: Report, results: Comparison, variants: Mapping[str, SessionSpec], seconds: float
) -> None:
    first = next(iter(results.values()))
    how = {"processes": first.processes, "sets": first.sets, "rounds": first.repeat // first.sets}
    report.measurement = {**how, "calls": first.number, "stopped": results.stopped}
    ways = _ways(variants)
    table = Rows.of([*map(_latency_row, results.values())], results.how)
    report.add("Latency", table, lambda: latency_plot(results, title="Latency of a run"))
    tails = percentile_rows(results)
    cells = {text for row in tails.values() for text in row.values()}
    if cells - {MISSING}:  # dashes alone say nothing
        rows = [{"candidate": name, **row} for name, row in tails.items()]
        report.add("Percentiles", Rows.of(rows, why_missing(results) if MISSING in cells else ""))
    if len(results) > 1:
        claims = results.ranking()
        level = claims[0].confidence  # the table says what the conclusion does
        others = (results.speedup(first.name, n, confidence=level) for n in [*results][1:])
        report.add("Speedup over the first", Rows.of(speedup_rows(list(others))))
        beside = report.beside if len(ways) > 1 else ""
        report.conclude(f"{beside}{rank(claims)}.", *_what_decides(results, claims, seconds))
    else:
        report.conclude(*(f"{measured}." for measured in results.values()))
    if not tails or MISSING in {row["p99 (ms)"] for row in tails.values()}:
        calls = plural(first.number, "call")
        taken = f"{first.processes * first.repeat} samples of {calls}"
        report.conclude(
            f"a p99 needs {RUNS_OF_P99} or more samples of one call, and this run has {taken}: "
            "measure it with --callers 1."
        )
    if moved := drift(results.reference_workload):
        report.conclude(f"{moved if len(results) > 1 else moved.finding}.")
    if scheduling(DEFAULT) not in ways and _on_cpu(variants):
        report.conclude(
            "a plain onnxruntime.InferenceSession(path) uses all cores, and its threads spin after "
            "a run: time that with --threads 0 --spinning on."
        )


def _latency_row(measured: Measurement) -> dict[str, Any]:
    """Write a row of the table of latencies; the cost of a switch may be unknown."""
    cost = measured.switch_cost
    return {
        **latency_row(measured, "ms"),
        "runs/s": 1 / measured.median,
        **({} if cost is None else {"switch cost (ms)": 1e3 * cost}),
    }


def _what_decides(results: Comparison, claims: Sequence[Speedup], seconds: float) -> Iterator[str]:
    """Say what one process leaves open, and what to ask for where a verdict is missing."""
    count = next(iter(results.values())).processes
    each = 1.2 * seconds / count
    if count < MIN_PROCESSES:
        enough = f"--processes {PROCESSES} --budget {math.ceil(each * PROCESSES)}"
        if count == 1:
            yield (
                "one process compares sessions, not models: two sessions of one model differ by 1 "
                f"to 3%. Use {enough} for a verdict on the models."
            )
        else:
            yield f"an interval needs {MIN_PROCESSES} processes: use {enough}."
        return
    undecided = [claim for claim in claims if claim.verdict == "undecided"]
    needed = [
        processes_needed(results[c.baseline], results[c.subject], c.confidence, c.min_effect)
        for c in undecided
    ]
    most = max((math.inf if number is None else number for number in needed), default=0)
    if each * most > _LONGEST_S:
        yield (
            "this run is too noisy to detect a difference of 5%, and enough processes would take "
            "more than half an hour. Use a quieter machine."
        )
    elif most:
        yield (
            f"to decide, use --processes {most} --budget {math.ceil(each * most)}: enough in 9 of "
            "10 runs at this level of noise."
        )
