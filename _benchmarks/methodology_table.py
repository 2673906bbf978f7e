"""Write the table of the methodology: what was tried, how often intervals held, on what machine.

``python _benchmarks/methodology_table.py`` reads what ``verdict_coverage.py``,
``trace_coverage.py``, ``real_aa.py`` and ``ways_aa.py`` keep in ``_benchmarks/results``, and writes
``_doc/methodology_coverage.csv``, which ``_doc/methodology.rst`` shows. No number is typed.
"""

import csv
from collections import Counter, defaultdict
from pathlib import Path

import lines
import real_aa

TABLE = Path(__file__).parent.parent / "_doc" / "methodology_coverage.csv"
KINDS = {
    "runs": "two runs, drawn samples",
    "builds": "several builds, drawn samples",
}
Row = tuple[str, str, str, str]


def read(name: str) -> list[dict]:
    """Return the lines of a script."""
    return lines.read(lines.RESULTS / f"{name}.jsonl")


def pooled(kept: list[dict], *keys: str) -> dict[tuple, Counter[str]]:
    """Add up the trials of what has the same keys."""
    groups: dict[tuple, Counter[str]] = defaultdict(Counter)
    for line in kept:
        numbers = ("trials", "intervals", "held", "wrong", "right", "alone")
        groups[tuple(str(line.get(key)) for key in keys)].update(
            {n: line.get(n, 0) for n in numbers}
        )
    return groups


def share(counts: Counter[str], what: str, of: str = "intervals") -> float:
    """Return a share of the intervals or of the trials."""
    return counts[what] / max(counts[of], 1)


def drawn() -> list[Row]:
    """Say how often intervals of drawn samples hold the ratio."""
    rows = []
    by_kind = defaultdict(list)
    for line in read("verdict_coverage"):
        one = line["kind"] == "in turn" and line["processes"] == 1
        kind = "one process" if one else "several processes"
        by_kind[KINDS.get(line["kind"], f"{kind}, drawn samples")].append(line)
    for what, own in by_kind.items():
        apart = ["sessions", "effect", "processes", "repeat"]  # ratios and noises together
        cases = list(pooled(own, *apart, *(["name"] if what in KINDS.values() else [])).values())
        trials = f"{len(cases)} cases of {min(c['trials'] for c in cases):,} trials or more"
        together = Counter()
        for counts in cases:
            together.update(counts)
        held = f"{share(together, 'held'):.2%}, {min(share(c, 'held') for c in cases):.1%} at least"
        wrong = (
            f"{share(together, 'wrong'):.2%}, {max(share(c, 'wrong') for c in cases):.1%} at most"
        )
        rows += [
            (f"{what}: the interval holds the ratio", trials, held, lines.made_by(own)),
            (f"{what}: the verdict is wrong", trials, wrong, lines.made_by(own)),
        ]
        if what == KINDS["builds"]:
            alone = [share(c, "alone", "trials") for c in cases]
            ends = f"{min(alone):.0%} to {max(alone):.0%}"
            rows.append((f"{what}: that of one build does", trials, ends, lines.made_by(own)))
        power = [line for line in own if line["ratio"] == 1.1 and line.get("sessions") == 0.02]
        for (processes,), counts in pooled(power, "processes").items():
            text = f"a ratio of 1.10, sessions that differ by 2%, {processes} processes: faster"
            found = f"{share(counts, 'right', 'trials'):.0%}"
            rows.append((text, f"{counts['trials']:,} trials", found, lines.made_by(power)))
    return rows


def traces() -> list[Row]:
    """Say how often intervals hold the ratio on the noise of a machine."""
    kept = read("trace_coverage")
    return [
        (
            f"trace, {name}: the interval holds the ratio",
            f"{counts['trials']:,} trials",
            f"{share(counts, 'held'):.2%}",
            lines.made_by([line for line in kept if line["trace"] == name]),
        )
        for (name,), counts in sorted(pooled(kept, "trace").items())
    ]


def real() -> list[Row]:
    """Say what was found with real models."""
    kept = read("real_aa")
    return [
        (what, f"{where}; must be {goal}" if goal else where, found, lines.made_by(kept))
        for what, where, found, goal in real_aa.summary(kept)
        if "disturbed" not in where
    ]


def ways() -> list[Row]:
    """Say how often each way to measure is wrong of two copies, or of a known ratio."""
    groups = defaultdict(list)
    for line in read("ways_aa"):
        groups[line["way"], line["what"]].append(line)
    return [
        (
            f"{way}, {what}: wrong",
            f"{len(own)} comparisons",
            f"{sum(line['wrong'] for line in own)}",
            lines.made_by(own),
        )
        for (way, what), own in groups.items()
    ]


if __name__ == "__main__":
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("what", "how often it was tried", "found", "machine, date"))
        writer.writerows([*drawn(), *traces(), *real(), *ways()])
