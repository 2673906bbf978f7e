"""Show where the time of a model goes, and what was optimized."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ortmeter.cli import machine
from ortmeter.cli.inputs import add_feeds, make_feeds
from ortmeter.cli.options import add_session, number, session_settings
from ortmeter.plotting import comparison_plot, draw_model, operator_plot, profile_notes
from ortmeter.profiling import Profile, advise, merge_profiles, profile_together
from ortmeter.profiling.advice import CHECKS
from ortmeter.profiling.findings import Finding
from ortmeter.report import MAX_DRAWN, Report, readable
from ortmeter.timing.measurement import format_seconds

_UNOPTIMIZED = "unoptimized"
_MODEL, _BASELINE = "the model", "the baseline"
_SAMPLING = ["processes", "rounds", "calls"]
_SAID = 3  # findings in the conclusion
_NAMED = 3  # nodes of a finding


def register(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] MODEL"
    parser.add_argument("models", metavar="MODEL", nargs=1, help="ONNX file")
    parser.add_argument(
        "--baseline",
        metavar="MODEL2",
        help=f"{_UNOPTIMIZED} (the same model without graph optimization) or another ONNX file",
    )
    add_session(parser, several=False)
    add_feeds(parser)
    machine.add_options(parser)
    parser.add_argument(
        "--repeat",
        type=number(1),
        help="recorded runs (50; 100 with --baseline, the minimum for a verdict)",
    )
    parser.add_argument("--top", type=number(0), default=20, help="rows in the table of nodes (20)")


def run(options: Namespace, report: Report) -> None:
    """Fill the report with the profile, then with what changes from the baseline."""
    model = Path(options.models[0])
    other = model if options.baseline in {None, _UNOPTIMIZED} else Path(options.baseline)
    feeds = make_feeds(options, list(dict.fromkeys([model, other])))
    settings = session_settings(options)
    level = settings.pop("optimization")
    levels = {_MODEL: level}
    if options.baseline:
        unoptimized = options.baseline == _UNOPTIMIZED
        levels = {_BASELINE: "none" if unoptimized else level, **levels}
    files = {_MODEL: model, _BASELINE: other}
    with machine.watched(options, report):
        profiles = profile_together(
            {
                name: {"model": files[name], "feeds": feeds[files[name]], "optimization": level}
                for name, level in levels.items()
            },
            **settings,
            repeat=options.repeat or (100 if options.baseline else 50),
        )
    found = profiles[_MODEL]
    _describe(report, found, options.top)
    if options.baseline:
        _compare(options, report, profiles[_BASELINE], found)
    if not found.steady.empty:
        _advise(report, advise(found, feeds=feeds[model], threads=settings["threads"]))
    _place_beside_bench(report, found)


def _describe(report: Report, found: Profile, top: int) -> None:
    operators = found.by_operator()
    if operators.empty:
        report.conclude(
            "no node is left to run: every output is an input, or a constant that the optimizer "
            "computed."
        )
        return
    nodes = found.by_node().sort_values("median", ascending=False)
    report.add(
        "Time by operator",
        readable(operators[["op", "provider", "nodes", "calls", "median", "q1", "q3", "share"]]),
        operator_plot(found, title="Time by operator"),
    )
    columns = ["name", "op", "median", "share", "gflop_per_s", "gb_per_s", "signature"]
    report.add(f"The {min(top, len(nodes))} slowest nodes", readable(nodes[columns].head(top)))
    if found.model is not None and len(found.model.graph.node) <= MAX_DRAWN:
        drawing = draw_model(found.model, title="The graph that ran", notes=profile_notes(found))
        report.add("The graph that ran, coloured by time", drawing)
    slowest = operators.iloc[0]
    report.conclude(
        f"{found!r}.",
        f"{slowest['op']} takes the most time: {slowest['share']:.0%} of the "
        f"{'launch' if found.devices else 'kernel'} time.",
        *(f"{caveat}." for caveat in found.caveats),
    )


def _advise(report: Report, found: Sequence[Finding]) -> None:
    """Show what to try, the largest share first; nothing to say is said."""
    if not found:
        report.conclude(f"no advice: {len(CHECKS)} checks found nothing ({', '.join(CHECKS)}).")
        return
    rows = [(f.topic, f.bound, _names(f.nodes), f.evidence, f.advice) for f in found]
    columns = ["finding", "saves", "nodes", "evidence", "try"]
    report.add("Advice", pd.DataFrame(rows, columns=columns).set_index("finding"))
    report.conclude(*(f"{finding}." for finding in found[:_SAID]))
    if len(found) > _SAID:
        report.conclude(f"{len(found) - _SAID} smaller findings are in the table of advice.")


def _names(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(nodes[:_NAMED]) + more or "all"


def _place_beside_bench(report: Report, found: Profile) -> None:
    """Show the latencies that ``bench`` measures too, and say why it may find others."""
    if found.latencies is None:
        return
    table = found.latencies.to_frame()
    report.add("Latency without the profiler", table.drop(columns=_SAMPLING, errors="ignore"))
    low, high = map(format_seconds, found.latencies[found.name].quartiles)
    report.conclude(
        f"bench measures the unprofiled latency: half of the runs took {low} to {high} here. The "
        "speed of a machine changes from one command to the next: compare numbers of one command."
    )


def _compare(options: Namespace, report: Report, baseline: Profile, found: Profile) -> None:
    merged = merge_profiles(baseline, found)
    if not merged.empty:
        report.add(
            f"Compared with the baseline, {Path(options.baseline).name}",
            readable(
                merged[["label", "side", "mean_baseline", "mean_candidate"]].head(options.top)
            ),
            comparison_plot(merged, title="Baseline and candidate"),
        )
    report.conclude(*(f"{claim}." for claim in baseline.compare(found).claims))
