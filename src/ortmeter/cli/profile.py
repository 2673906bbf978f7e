"""Tell where the time of a model goes, and what was optimized."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ortmeter.cli.options import Feeds, add_feeds, add_session, make_feeds, number, thread_count
from ortmeter.cli.tables import MAX_DRAWN, readable
from ortmeter.plotting import comparison_plot, draw_model, operator_plot, profile_notes
from ortmeter.profiling import Profile, merge_profiles, profile
from ortmeter.report import Report

__all__ = ["register", "run"]

_UNOPTIMIZED = "unoptimized"


def register(parser: ArgumentParser) -> None:
    """Declare the options.

    Parameters
    ----------
    parser : ArgumentParser
        Parser of the command.
    """
    parser.add_argument("models", metavar="MODEL", nargs=1, help="ONNX file")
    parser.add_argument(
        "--baseline",
        metavar="MODEL2",
        help=f"{_UNOPTIMIZED} (the same model, without graph optimization) or another ONNX file",
    )
    add_session(parser, several=False)
    add_feeds(parser)
    parser.add_argument("--repeat", type=number(1), default=50, help="runs that are recorded (50)")
    parser.add_argument("--top", type=number(0), default=20, help="nodes in the table (20)")


def run(options: Namespace, report: Report) -> None:
    """Fill the report with the profile, then with what changes from the baseline.

    Parameters
    ----------
    options : Namespace
        Options of the command.
    report : Report
        Report to fill.
    """
    model = Path(options.models[0])
    feeds = make_feeds(options, [model])
    found = _profile(options, model, feeds, options.optimization)
    _describe(report, found, options.top)
    if options.baseline == _UNOPTIMIZED:
        _compare(options, report, _profile(options, model, feeds, "none"), found)
    elif options.baseline:
        other = Path(options.baseline)
        baseline = _profile(options, other, make_feeds(options, [other]), options.optimization)
        _compare(options, report, baseline, found)


def _profile(options: Namespace, model: Path, feeds: Feeds, optimization: str) -> Profile:
    return profile(
        model,
        feeds[model],
        provider=options.provider,
        optimization=optimization,
        threads=thread_count(options.threads),
        repeat=options.repeat,
    )


def _describe(report: Report, found: Profile, top: int) -> None:
    operators = found.by_operator()
    nodes = found.by_node().sort_values("median", ascending=False)
    report.add(
        "Time by operator",
        readable(operators[["op", "provider", "nodes", "calls", "median", "q1", "q3", "share"]]),
        operator_plot(found, title="Time by operator"),
    )
    columns = ["name", "op", "median", "share", "gflop_per_s", "gb_per_s", "signature"]
    report.add(f"The {min(top, len(nodes))} longest nodes", readable(nodes[columns].head(top)))
    if found.model is not None and len(found.model.graph.node) <= MAX_DRAWN:
        drawing = draw_model(found.model, title="The graph that ran", notes=profile_notes(found))
        report.add("The graph that ran, coloured by time", drawing)
    slowest = operators.iloc[0]
    report.conclude(
        f"{found!r}.",
        f"{slowest['op']} takes the most time, {slowest['share']:.0%} of that of the kernels.",
        *found.caveats,
    )


def _compare(options: Namespace, report: Report, baseline: Profile, found: Profile) -> None:
    merged = merge_profiles(baseline, found)
    report.add(
        f"Beside the baseline, {Path(options.baseline).name}",
        readable(merged[["label", "side", "mean_baseline", "mean_candidate"]].head(options.top)),
        comparison_plot(merged, title="Baseline and candidate"),
    )
    before, after = (_median_run(p) for p in (baseline, found))
    report.conclude(
        f"with the profiler on, a run takes {after:.0f} µs, {before:.0f} µs for the baseline."
    )


def _median_run(found: Profile) -> float:
    runs = found.by_iteration()
    return float(runs["duration"][runs["steady"]].median())
