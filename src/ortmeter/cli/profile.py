"""Show where the time of a model goes, and what was optimized."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ortmeter.cli.inputs import add_feeds, make_feeds
from ortmeter.cli.options import add_session, number, session_settings
from ortmeter.plotting import comparison_plot, draw_model, operator_plot, profile_notes
from ortmeter.profiling import Profile, merge_profiles, profile_together
from ortmeter.report import MAX_DRAWN, Report, readable

_UNOPTIMIZED = "unoptimized"
_MODEL, _BASELINE = "the model", "the baseline"


def register(parser: ArgumentParser) -> None:
    parser.add_argument("models", metavar="MODEL", nargs=1, help="ONNX file")
    parser.add_argument(
        "--baseline",
        metavar="MODEL2",
        help=f"{_UNOPTIMIZED} (the same model without graph optimization) or another ONNX file",
    )
    add_session(parser, several=False)
    add_feeds(parser)
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
    profiles = profile_together(
        {
            name: {"model": files[name], "feeds": feeds[files[name]], "optimization": level}
            for name, level in levels.items()
        },
        **settings,
        repeat=options.repeat or (100 if options.baseline else 50),
    )
    _describe(report, profiles[_MODEL], options.top)
    if options.baseline:
        _compare(options, report, profiles[_BASELINE], profiles[_MODEL])


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
