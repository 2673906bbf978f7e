"""``ortmeter bench --cold``: the start of each candidate, each time in a fresh process."""

import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ortmeter.cli.conversion import Conversion, in_a_file_name
from ortmeter.cli.report import Report, Rows, speedup_rows
from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Speedup, Speedups
from ortmeter.plotting.cold import cold_plot
from ortmeter.study.writer import by_verdict
from ortmeter.timing.candidates import SessionSpec
from ortmeter.workloads.optimized import level_of, saved_start, shorter_starts
from ortmeter.workloads.startup import (
    FIRST,
    IMPORT,
    RESULT,
    SESSION,
    STEADY,
    ColdStart,
    cold_start,
    peak_memory,
)

_PROCESSES, _BUDGET_S = 10, 60.0
_TOGETHER = 0.99  # level at which the intervals of a phase hold
_JUDGED = (RESULT, SESSION, FIRST, STEADY)


def add_options(parser: ArgumentParser) -> None:
    """Declare the options of a cold start."""
    parser.add_argument(
        "--cold",
        action="store_true",
        help="time the start in fresh processes: import, session, first run, second run, steady "
        f"run, and their memory (--processes, {_PROCESSES}; --budget, {_BUDGET_S:g} seconds)",
    )
    group = parser.add_argument_group("start")
    group.add_argument(
        "--save-optimized",
        action="store_true",
        help="add candidates that load the model already optimized by onnxruntime",
    )
    group.add_argument(
        "--shorten",
        action="store_true",
        help="add candidates that start in other ways: without optimization, already optimized, in "
        "ORT format, weights in a file of their own, not packed, or packed in the file",
    )


def read_cold(options: Namespace) -> "ColdStarts | None":
    """Read the options of a cold start; None if it is not asked for."""
    if not options.cold:
        return None
    if options.repeat is not None:
        raise InvalidArgumentError(
            "--repeat is for interleaved runs. Accepted with --cold: --processes"
        )
    budget_s = _BUDGET_S if options.budget is None else options.budget
    return ColdStarts(options.processes or _PROCESSES, budget_s)


@contextmanager
def other_starts(
    report: Report, variants: Mapping[str, SessionSpec], kept: Conversion, *, shorten: bool
) -> Iterator[Mapping[str, SessionSpec]]:
    """Add the candidates that start in other ways; their files live as long as this block."""
    start = shorter_starts if shorten else saved_start
    candidates = dict(variants)
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        for rank, (name, variant) in enumerate(variants.items()):
            place = Path(folder, str(rank))
            place.mkdir()
            prefix = "" if kept.file is None else f"{kept.file.stem}-"
            if prefix and len(variants) > 1:
                prefix += f"{in_a_file_name(name)}-"
            for way, other in start(variant, place, prefix).items():
                candidates[way if len(variants) == 1 else f"{name}, {way}"] = other
            if prefix:
                kept.keep_files(report, place)
        if len(candidates) == len(variants):
            raise InvalidArgumentError(
                "--save-optimized: no candidate is optimized, there is nothing to save. Accepted: "
                "optimization basic, extended, layout or all"
            )
        yield candidates
    levels = set(map(level_of, variants.values()))
    if shared := sorted(levels & {"layout", "all"}):
        report.conclude(
            f"a model saved at level {' or '.join(shared)} is for CPUs like this one: save it at "
            "level extended to run it elsewhere."
        )


class ColdStarts(NamedTuple):
    """Starts of each candidate in fresh processes."""

    processes: int
    budget_s: float

    def fill(self, report: Report, variants: Mapping[str, SessionSpec]) -> int:
        """Fill the report with the phases of each start, their memory and verdicts."""
        starts = cold_start(variants, processes=self.processes, budget_s=self.budget_s)
        times = starts.to_frame().rename_axis(columns=starts.times.how)
        several = len(starts.names) > 1
        plot = partial(cold_plot, starts, title="Time to the first result")
        report.add("Cold start", times if several else times.droplevel("candidate"), plot)
        if several:
            claims = {phase: starts.times[phase].speedups(together=_TOGETHER) for phase in _JUDGED}
            placed = [claim.at(phase=phase) for phase, told in claims.items() for claim in told]
            report.add("Speedup over the first", Rows.of(speedup_rows(placed)))
            report.conclude(*(f"{phase}: {_beside_first(told)}." for phase, told in claims.items()))
        else:
            report.conclude(_sentence(starts))
        report.conclude(
            "files were in the page cache: after a boot, they are read from the disk first."
        )
        return 0


def _beside_first(claims: Speedups) -> str:
    """Say which candidates are faster than the first, and which are not, as the table does."""
    if len(claims) == 1:
        return str(claims[0])
    first = claims[0]
    words = {verdict: f"{verdict} than {first.baseline}" for verdict in ("faster", "slower")}
    words |= {"negligible": f"within {first.min_effect:.0%}", "undecided": "undecided"}
    return by_verdict(sorted(claims, key=lambda claim: -claim.ratio), words, _ratio)


def _ratio(claim: Speedup) -> str:
    shown = claim.reversed if claim.verdict == "slower" else claim
    return f"{shown.ratio:.2f} times {shown.brackets}" if claim.has_interval else "no interval"


def memory_table(variants: Mapping[str, SessionSpec]) -> Rows:
    """Measure by how much a fresh process grows to create each session and run it once."""
    rows = ((name, peak_memory(variant)) for name, variant in variants.items())
    return Rows(("candidate", "peak growth (MiB)"), tuple(rows))


def _sentence(starts: ColdStart) -> str:
    (name,) = starts.names
    result, steady = (starts.typical(name, phase) for phase in (RESULT, STEADY))
    parts = (f"{phase} {starts.typical(name, phase).seconds}" for phase in (IMPORT, SESSION, FIRST))
    sure = " (99% CI)" if result.interval else ""
    return (
        f"{name}: the first result takes {result.seconds}{sure}, of which {', '.join(parts)}; "
        f"a steady run takes {steady.seconds}."
    )
