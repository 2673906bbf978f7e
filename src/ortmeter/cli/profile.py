"""Show where the time of a model goes, and what was optimized."""

import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from ortmeter.cli import conversion, machine
from ortmeter.cli.first_run import refuse_deadly
from ortmeter.cli.inputs import add_feeds, inputs_table, make_feeds
from ortmeter.cli.options import UNOPTIMIZED, add_session, number, session_settings
from ortmeter.cli.report import Report, Rows, drawn
from ortmeter.plotting import comparison_plot, draw_model, operator_plot, profile_notes
from ortmeter.profiling import Profile, advise, merge_profiles, profile_together
from ortmeter.profiling.advice import CHECKS, LEAST_SHARE
from ortmeter.profiling.findings import Advice
from ortmeter.profiling.graph import STANDARD
from ortmeter.runtime.placement import enumerate_some
from ortmeter.study.writer import enumerate_items
from ortmeter.timing.candidates import model_variants
from ortmeter.timing.measurement import format_seconds

_MODEL, _BASELINE = "the model", "the baseline"
_SAMPLING = ["processes", "rounds", "calls"]
_UNITS = {
    "median": "median (µs)",
    "q1": "q1 (µs)",
    "q3": "q3 (µs)",
    "share": "share (%)",
    "gflop_per_s": "GFLOP/s",
    "gb_per_s": "GB/s",
}
_PROFILER_MOST = 0.5  # speed of a profiled run


def register(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] MODEL"
    parser.add_argument("models", metavar="MODEL", nargs=1, help="ONNX file")
    parser.add_argument(
        "--baseline",
        metavar="MODEL2",
        help=f"{UNOPTIMIZED} (the same model without graph optimization) or another ONNX file",
    )
    add_session(parser, several=False)
    add_feeds(parser)
    conversion.add_options(parser, "profiles the converted model")
    machine.add_options(parser)
    parser.add_argument(
        "--repeat",
        type=number(1),
        help="recorded runs (50; 100 with --baseline, the minimum for a verdict)",
    )
    parser.add_argument("--top", type=number(0), default=10, help="rows in the table of nodes (10)")


def run(options: Namespace, report: Report) -> None:
    """Fill the report with the profile, then with what changes from the baseline."""
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        model = conversion.convert_one(options, Path(options.models[0]), Path(folder))
        _profile(options, report, model)


def _profile(options: Namespace, report: Report, model: Path) -> None:
    other = model if options.baseline in {None, UNOPTIMIZED} else Path(options.baseline)
    feeds = make_feeds(options, list(dict.fromkeys([model, other])))
    settings, report.session = session_settings(options)
    ways = {_MODEL: (model, settings)}
    if options.baseline:
        level = "none" if options.baseline == UNOPTIMIZED else settings["optimization"]
        ways = {_BASELINE: (other, {**settings, "optimization": level}), **ways}
    for file, way in ways.values():
        refuse_deadly(model_variants(file, feeds[file], **way))
    asked = {n: {**way, "model": file, "feeds": feeds[file]} for n, (file, way) in ways.items()}
    repeat = options.repeat or (100 if options.baseline else 50)
    where = [settings["threads"]], [settings["provider"]]
    with machine.watched(report, *where, strict=options.strict):
        profiles = profile_together(asked, repeat=repeat)
    profile = profiles[_MODEL]
    if options.baseline:
        _add_baseline(options, report, profiles[_BASELINE], profile)
    if profile.steady.empty:
        report.conclude(
            "no node is left to run: every output is an input, or a constant that the optimizer "
            "computed."
        )
    else:
        _report_operators(report, profile, options.top)
        _advise(report, advise(profile, feeds=feeds[model], **settings))
        report.conclude(f"{profile!r}.", *profile.caveats)
    _place_beside_bench(report, profile)
    report.add("Inputs", inputs_table(options, feeds))


def _report_operators(report: Report, profile: Profile, top: int) -> None:
    """Show what takes the time, operators first."""
    operators = profile.by_operator()
    longest = operators.groupby("op", observed=True)["share"].sum().nlargest(3)
    longest = longest[longest >= min(longest.max(), LEAST_SHARE)]
    report.conclude(
        f"longest operators: {enumerate_items([f'{op} {s:.0%}' for op, s in longest.items()])} of "
        f"the {'launch' if profile.devices else 'kernel'} time."
    )
    if profile.overhead is not None and (profile.overhead.ratio or 1) < _PROFILER_MOST:
        report.conclude(
            "the profiler itself takes most of a profiled run: short kernels, and nodes with a "
            "body, look longer than they are."
        )
    names, domains = operators["op"].astype(str), operators["domain"].astype(str)
    told = operators.duplicated(["op", "provider"], keep=False) & ~domains.isin(["nan", STANDARD])
    operators["op"] = names.where(~told, names + " (" + domains + ")")
    columns = ["op", "provider", "nodes", "calls", "median", "q1", "q3", "share"]
    report.add(
        "Time by operator",
        _with_units(operators[columns]),
        partial(operator_plot, profile, title="Time by operator"),
    )
    nodes = profile.by_node().sort_values("median", ascending=False)
    columns = ["name", "op", "median", "share", "gflop_per_s", "gb_per_s", "signature"]
    report.add(f"The {min(top, len(nodes))} slowest nodes", _with_units(nodes[columns].head(top)))
    if (graph := profile.model) is not None:
        title = "The graph that ran"
        report.add(
            f"{title}, coloured by time",
            partial(
                drawn, graph, lambda: draw_model(graph, title=title, notes=profile_notes(profile))
            ),
        )


def _with_units(frame: pd.DataFrame) -> pd.DataFrame:
    shown = frame.assign(share=(100 * frame["share"]).round(1))
    if "provider" in shown:
        shown["provider"] = shown["provider"].astype(object).str.removesuffix("ExecutionProvider")
    return shown.rename(columns=_UNITS)


def _advise(report: Report, findings: Sequence[Advice]) -> None:
    """Say what to try; the table has the nodes."""
    if not findings:
        report.conclude(f"no advice: {len(CHECKS)} checks found nothing.")
        return
    report.conclude(*(f"{finding}." for finding in findings))
    if rows := [(f.topic, f.bound, enumerate_some(f.nodes)) for f in findings if f.nodes]:
        report.add("Nodes of the advice", Rows(("finding", "saves", "nodes"), tuple(rows)))


def _place_beside_bench(report: Report, profile: Profile) -> None:
    """Show the latencies that ``bench`` measures too, and say why it may find others."""
    if profile.latencies is None:
        return
    table = profile.latencies.to_frame().drop(columns=_SAMPLING, errors="ignore")
    report.add("Latency without the profiler", table)
    low, high = map(format_seconds, profile.latencies[profile.name].quartiles)
    report.conclude(
        f"bench measures the unprofiled latency, here {low} to {high} in half of the runs: compare "
        "numbers of one command, the speed of a machine changes from one to the next."
    )


def _add_baseline(options: Namespace, report: Report, baseline: Profile, profile: Profile) -> None:
    merged = merge_profiles(baseline, profile)
    if not merged.empty:
        sides = {"median_baseline": "baseline (µs)", "median_candidate": "candidate (µs)"}
        longest = merged[[*sides]].max(axis=1).nlargest(options.top).index
        shown = merged.loc[longest, ["label", "side", *sides]].rename(columns=sides)
        report.add(
            f"Compared with the baseline, {Path(options.baseline).name}",
            shown,
            partial(comparison_plot, merged, title="Baseline and candidate"),
        )
    report.conclude(*baseline.compare(profile).claims)
