"""Write the table of the methodology: what was tried, how often intervals held, on what machine.

``python _benchmarks/methodology_table.py`` reads what ``verdict_coverage.py``,
``trace_coverage.py``, ``real_aa.py`` and ``ways_aa.py`` keep in ``_benchmarks/results``, and writes
``_doc/methodology_coverage.csv``, which ``_doc/methodology_details.rst`` shows. No number is typed.
``--cases`` prints a line per case of each file; 1 if one FAILS: it holds the ratio in less than 98%
or is wrong in more than 1%, beyond what luck gives once in a hundred cases.
"""

import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import command
import lines
import numpy as np
import real_aa
from scipy.stats import binom

TABLE = Path(__file__).parent.parent / "_doc" / "methodology_coverage.csv"
KINDS = {"runs": "two runs, drawn samples", "builds": "several builds, drawn samples"}
Row = tuple[str, str, str, str]


def share(counts: Counter[str], what: str, of: str = "intervals") -> float:
    """Return a share of the intervals or of the trials."""
    return counts[what] / max(counts[of], 1)


def drawn() -> Iterator[Row]:
    """Say how often intervals of drawn samples hold the ratio."""
    by_kind = defaultdict(list)
    for line in lines.read("verdict_coverage"):
        one = line["kind"] == "in turn" and line["processes"] == 1
        kind = "one process" if one else "several processes"
        by_kind[KINDS.get(line["kind"], f"{kind}, drawn samples")].append(line)
    for what, own in by_kind.items():
        apart = ["sessions", "effect", "processes", "repeat"]  # ratios and noises together
        apart += ["name"] if what in KINDS.values() else []
        cases = [lines.total(group) for group in lines.grouped(own, *apart).values()]
        trials = f"{len(cases)} cases of {min(c['trials'] for c in cases):,} trials or more"
        together, by = lines.total(own), lines.made_by(own)
        for name, said, worst, ends in (
            ("held", "the interval holds the ratio", min, "at least"),
            ("wrong", "the verdict is wrong", max, "at most"),
        ):
            end = f"{worst(share(c, name) for c in cases):.1%} {ends}"
            yield f"{what}: {said}", trials, f"{share(together, name):.2%}, {end}", by
        if what == KINDS["builds"]:
            alone = [share(c, "alone", "trials") for c in cases]
            ends = f"{min(alone):.0%} to {max(alone):.0%}"
            yield f"{what}: the interval of one build holds the ratio", trials, ends, by
        power = [line for line in own if line["ratio"] == 1.1 and line.get("sessions") == 0.02]
        for (processes,), group in lines.grouped(power, "processes").items():
            text = f"a ratio of 1.10, sessions that differ by 2%, {processes} processes: faster"
            counts, by = lines.total(group), lines.made_by(power)
            right = f"{share(counts, 'right', 'trials'):.0%}"
            yield text, f"{counts['trials']:,} trials", right, by


def measured() -> Iterator[Row]:
    """Say the same of traces of a machine, of real models, and of each way to measure."""
    for (name,), own in sorted(lines.grouped(lines.read("trace_coverage"), "trace").items()):
        counts, what = lines.total(own), f"trace, {name}: the interval holds the ratio"
        held = f"{share(counts, 'held'):.2%}"
        yield what, f"{counts['trials']:,} trials", held, lines.made_by(own)
    kept = lines.read("real_aa")
    for what, where, found, goal in real_aa.summary(kept):
        if "disturbed" not in where:
            yield what, f"{where}; must be {goal}" if goal else where, found, lines.made_by(kept)
    each = {"measure_operators": "each operator"}
    ways = [{**line, "what": each.get(line["way"], line["what"])} for line in lines.read("ways_aa")]
    for (way, what), own in lines.grouped(ways, "way", "what").items():
        wrong = f"{sum(line['wrong'] for line in own)}"
        yield f"{way}, {what}: wrong", f"{len(own)} comparisons", wrong, lines.made_by(own)


#: What makes a case in each file of results.
CASES = {
    "verdict_coverage": ("kind", "name", "sessions", "effect", "processes", "repeat", "ratio"),
    "trace_coverage": ("trace", "ratio", "ms", "sessions"),
    "real_aa": ("kind", "model"),
    "ways_aa": ("way", "model", "what"),
}


def outcome(line: lines.Line) -> str:
    """Say what a comparison of a model with its copy found."""
    said = "undecided" if line.get("undecided") else "right"
    return str(line.get("verdict", "wrong" if line.get("wrong") else said))


def cases(name: str) -> Iterator[lines.Line]:
    """Yield what a file says of each of its cases."""
    for case, own in lines.grouped(lines.read(name), *CASES[name]).items():
        row = dict(zip(CASES[name], case, strict=True))
        counts = lines.total(own)
        trials, given = counts["trials"], counts["intervals"]
        if not trials:
            found = ", ".join(f"{n} {what}" for what, n in Counter(map(outcome, own)).items())
            yield {**row, "runs": len(own), "found": found, **lines.spread(own)}
            continue
        row |= {what: f"{share(counts, what):.2%}" for what in ("held", "wrong", "apart")}
        row |= {what: f"{counts[what] / trials:.1%}" for what in ("undecided", "intervals")}
        row["half-width"] = np.median([line["half"] or np.nan for line in own])
        few = binom.cdf(counts["held"], given, 0.98) < 0.01
        failed = few or binom.sf(counts["wrong"] - 1, given, 0.01) < 0.01
        yield {**row, "trials": trials, "": "FAILS" if failed else ""}


if __name__ == "__main__":
    if command.options(__doc__, cases=False).cases:
        tables = {name: list(cases(name)) for name in CASES}
        for name, rows in tables.items():
            command.show(rows, name)
        sys.exit(any(row.get("") for rows in tables.values() for row in rows))
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("what", "how often it was tried", "found", "machine, date"))
        writer.writerows([*drawn(), *measured()])
