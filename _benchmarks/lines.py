"""Keep results as lines of JSON, so that what was measured is not measured again."""

import datetime as dt
import functools
import json
import math
import multiprocessing
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ortmeter.evidence import Speedup
from ortmeter.machine.environment import environment

RESULTS = Path(__file__).parent / "results"
Line = dict[str, Any]


def read(file: Path | str) -> list[Line]:
    """Return the lines of a file, or of the results of that name, none if there is no file."""
    file = RESULTS / f"{file}.jsonl" if isinstance(file, str) else file
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@functools.cache
def where() -> dict[str, str]:
    """Say which machine and which version of the package give the numbers."""
    here = environment()
    commit = here.commit or f"version {here.packages['ortmeter']}"
    return {"machine": here.hardware, "commit": commit}


def add(file: Path, line: Line) -> None:
    """Add a line, with the machine and the day."""
    file.parent.mkdir(parents=True, exist_ok=True)
    today = dt.datetime.now(dt.UTC).date().isoformat()
    with file.open("a") as out:
        out.write(json.dumps({**line, "date": today, **where()}) + "\n")


def made_by(lines: Iterable[Line]) -> str:
    """Say on which machines, and when, lines were measured."""
    known = [line for line in lines if "machine" in line]
    machines = sorted({line["machine"].partition(" (")[0] for line in known})
    days = sorted({line["date"] for line in known})
    span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{' and '.join(machines)}, {span}"


def grouped(lines: Iterable[Line], *keys: str) -> dict[tuple[Any, ...], list[Line]]:
    """Put together the lines that have the same values."""
    groups = defaultdict(list)
    for line in lines:
        values = (line.get(key) for key in keys)
        groups[tuple(str(v) if isinstance(v, list) else v for v in values)].append(line)
    return dict(groups)


def total(lines: Iterable[Line]) -> Counter[str]:
    """Add up the trials of lines, and what was counted in them."""
    names = ("trials", "intervals", "held", "wrong", "right", "decided", "undecided")
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update({name: line.get(name, 0) for name in (*names, "fails", "alone", "apart")})
    return counts


def spread(lines: Iterable[Line]) -> Line:
    """Return the geometric mean of the ratios of lines, and the one that is farthest from 1."""
    logs = [math.log(line["ratio"]) for line in lines]
    ends = {"ratio": statistics.fmean(logs), "worst": max(logs, key=abs)}
    return {name: round(math.exp(value), 3) for name, value in ends.items()}


class Tally:
    """What was found in the trials of a case."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.widths: list[float] = []

    def add(self, claim: Speedup, ratio: float) -> None:
        """Count a claim on a ratio that is known."""
        says = {"faster": ratio > 1, "slower": False, "negligible": ratio < 1 + claim.min_effect}
        decided = claim.verdict != "undecided"
        told = {"trials": True, "decided": decided, "undecided": not decided}
        if claim.has_interval:
            told |= {"intervals": True, "held": claim.low <= ratio <= claim.high}
            told |= {"apart": not claim.low <= 1 <= claim.high}
            told |= {"wrong": not says.get(claim.verdict, True)}
            told |= {"right": claim.verdict == "faster" and ratio > 1}
            self.widths.append(math.log(claim.high / claim.low) / 2)
        self.counts.update({name: int(value) for name, value in told.items()})

    def line(self, **case: object) -> Line:
        """Return a line of the results."""
        half = round(float(statistics.median(self.widths)), 4) if self.widths else None
        return {**case, **self.counts, "half": half}


def missing(
    done: Mapping[Any, int], cells: Iterable[Hashable], trials: int, chunk: int
) -> Iterator[tuple[Any, int, int]]:
    """List the trials that cells lack, in chunks, those of few trials first."""
    cells = list(cells)
    for last in range(chunk, trials + chunk, chunk):
        for cell in cells:
            first = max(done.get(cell, 0), last - chunk)
            if first < min(last, trials):
                yield cell, first, min(last, trials)


def add_all(
    file: Path, function: Callable[[Any], Line], tasks: Iterable[Any], workers: int
) -> None:
    """Run tasks in processes, add a line for each one."""
    with multiprocessing.Pool(workers) as pool:
        for line in pool.imap(function, tasks):
            add(file, line)
