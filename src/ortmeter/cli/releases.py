"""Compare releases of ONNX Runtime on the same model: which one made it slower, and where."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence

import pandas as pd

from ortmeter.cli.options import split
from ortmeter.cli.terminal import tell
from ortmeter.discrepancy import max_diff
from ortmeter.plotting.releases import release_plot
from ortmeter.profiling.releases import WHOLE, profile_releases
from ortmeter.report import Report
from ortmeter.runtime.releases import Release, parse_release, prepare
from ortmeter.timing import Comparison
from ortmeter.timing.candidates import Variant
from ortmeter.timing.claims import Claim, enumerate_items
from ortmeter.timing.control import movement
from ortmeter.timing.measurement import format_seconds, rounded
from ortmeter.timing.releases import PROCESSES, ReleaseResults, compare_releases, measure_releases

_BUDGET_S = 30.0
_TOP = 10
_NAMED = 5
_MOVED = ("faster", "slower")
_PROFILED_S = 0.3  # in each process


def add_options(parser: ArgumentParser) -> None:
    """Declare the options of this mode."""
    parser.add_argument(
        "--runtime",
        metavar="RELEASE,RELEASE",
        help="releases of ONNX Runtime to compare, oldest first: 1.24.1, onnxruntime-gpu==1.30.0, "
        "onnxruntime-openvino, a wheel file, nightly, or installed; each gets an environment in "
        f"the cache, see ortmeter env --runtimes (--processes, {PROCESSES}; --budget, "
        f"{_BUDGET_S:g} seconds)",
    )


def is_asked(options: Namespace) -> bool:
    """Whether releases are compared."""
    return options.runtime is not None


def fill(options: Namespace, report: Report, variants: Mapping[str, Variant]) -> None:
    """Fill the report with latencies by release, since when, and the operators that changed."""
    provider = {variant.settings["provider"].name for variant in variants.values()}
    default = "cuda" if provider == {"cuda"} else "cpu"
    releases = [parse_release(text, default) for text in split("--runtime", options.runtime)]
    for release in releases:
        prepare(release, lambda line: tell(f"ortmeter bench: {line}"))
    found = measure_releases(
        releases,
        variants,
        processes=options.processes or PROCESSES,
        repeat=options.repeat,
        budget_s=_BUDGET_S if options.budget is None else options.budget,
        control=True,
    )
    report.add("Releases", _releases_table(releases, found, list(variants)))
    by_name = {release.name: release for release in releases}
    for name, comparison in found.comparisons.items():
        where, several = (f", {name}", f"{name}: ") if len(variants) > 1 else ("", "")
        plots = []
        if len(comparison) > 1:
            plots.append(release_plot(comparison, title=f"Latency by release{where}"))
        report.add(f"Latency{where}", _latency_table(comparison), *plots)
        _conclude(report, comparison, variants[name], by_name, where)
        if moved := movement(comparison.control):
            report.conclude(f"{several}{moved}.")
    for (name, _), reason in found.left_out.items():
        report.conclude(f"left out: {f'{name}, ' if len(variants) > 1 else ''}{reason}.")


def _conclude(
    report: Report,
    comparison: Comparison,
    variant: Variant,
    releases: Mapping[str, Release],
    where: str,
) -> None:
    """Say since when, then profile the two releases that differ most."""
    several = f"{where.removeprefix(', ')}: " if where else ""
    claims = compare_releases(comparison)
    if claims is None:
        report.conclude(*(f"{several}{measured}." for measured in comparison.values()))
        return
    report.conclude(*(f"{several}{sentence}" for sentence in claims.sentences()))
    names = claims.largest.baseline, claims.largest.subject
    slowest = max(comparison[name].median for name in names)
    runs = min(max(int(_PROFILED_S / slowest), 10), 200)
    table = profile_releases(
        [releases[name] for name in names],
        variant,
        processes=next(iter(comparison.values())).processes,
        repeat=runs,
    )
    title = f"Operators of {names[1]} beside {names[0]}, median time in a profiled run{where}"
    report.add(title, table.head(_TOP))
    report.conclude(f"{several}{_operators_sentence(table, claims.largest)}")


def _operators_sentence(table: pd.DataFrame, latency: Claim) -> str:
    names = before, after = latency.baseline, latency.subject
    runs = {name: table[f"{name} (µs)"].to_dict()[WHOLE] for name in names}
    whole = " and ".join(f"{_time(run)} in {name}" for name, run in runs.items())
    verdict = table["verdict"].to_dict()[WHOLE]
    if verdict in _MOVED and verdict != latency.verdict:
        return (
            f"{WHOLE} takes {whole}, and latencies do not say the same: the profiler itself "
            "changed, the table of operators says nothing."
        )
    moved = table[table["verdict"].isin(_MOVED) & (table.index != WHOLE)]
    if moved.empty:
        return f"no operator is shown to be slower or faster; {WHOLE} takes {whole}."
    first, row = moved.index[0], moved.iloc[0]
    others = f"; then {enumerate_items(list(moved.index[1:_NAMED]))}" if len(moved) > 1 else ""
    return (
        f"what changed most: {first}, {_time(row[f'{before} (µs)'])} in {before} and "
        f"{_time(row[f'{after} (µs)'])} in {after}{others}; {WHOLE} takes {whole}."
    )


def _time(microseconds: float) -> str:
    return format_seconds(microseconds * 1e-6)


def _latency_table(comparison: Comparison) -> pd.DataFrame:
    table = comparison.to_frame().rename_axis("release").rename_axis(columns=comparison.how)
    claims = {claim.subject: claim for claim in comparison.speedups()}
    for column in ("ratio", "low", "high"):
        bounds = [getattr(claims.get(name), column, None) for name in comparison]
        table["speedup" if column == "ratio" else column] = [rounded(b, 3) for b in bounds]
    return table


def _releases_table(
    releases: Sequence[Release], found: ReleaseResults, variants: Sequence[str]
) -> pd.DataFrame:
    """Say what each release is made of, and how far its outputs are from those of the first."""
    first = {
        name: next((r.name for r in releases if (name, r.name) in found.outputs), "")
        for name in variants
    }
    table = pd.DataFrame(
        [
            {
                "release": release.name,
                **found.versions[release.name],
                "provider": release.provider or "as asked",
                "largest change of outputs": _largest_change(release.name, found, first),
            }
            for release in releases
        ]
    )
    return table.set_index("release")


def _largest_change(release: str, found: ReleaseResults, first: Mapping[str, str]) -> float | None:
    """Largest absolute difference of the outputs of a release, None where it ran nothing."""
    changes = [
        max_diff(expected, found.outputs[name, release][output]).abs
        for name, reference in first.items()
        if (name, release) in found.outputs
        for output, expected in found.outputs[name, reference].items()
        if output in found.outputs[name, release]
    ]
    return rounded(max(changes, default=None), 3)
