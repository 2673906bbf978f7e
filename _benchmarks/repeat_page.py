"""Build pages several times on one machine, and count what does not repeat.

``python _benchmarks/repeat_page.py [--builds 3] [--into FOLDER] [--full] [PAGE ...]``: all but two
long ones, unless some are named. What a build should not depend on is disturbed on purpose: the
order of the pages, the memory that is in use and in the caches, the length of the environment. The
records are in ``FOLDER/<build>``; builds that are there are not made again.

Ratios are those of each candidate over the first one. *One build* compares the intervals of two
builds; *joined* compares the interval of all but the last build with that of the last, both with
the variance between builds. Verdicts are those of the answers and predictions.
"""

import collections
import dataclasses
import itertools
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import command
import numpy as np

from ortmeter.evidence import Estimate
from ortmeter.study.records import Record, load_records
from ortmeter.timing import Comparison
from ortmeter.timing.builds import TYPICAL, between_builds, over_builds

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "_doc" / "examples").glob("*/plot_*.py"))
LONG = ("plot_broken", "plot_operators_torch")
GIB = 2**30
KINDS = ("ratios", "one build", "joined", "last build")
# Keep what a page measured at the sizes of a build: ORTMETER_RECORD takes the full ones.
CHILD = """
import runpy, sys
from ortmeter.study.study import Study
start = Study.__init__
def started(self, *args, **params):
    start(self, *args, **params)
    vars(self.args)["record"] = True
Study.__init__ = started
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def build(pages: Sequence[Path], folder: Path, seed: int, *, full: bool) -> None:
    """Run the pages in a random order, each after a disturbance, and keep their records."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    for page in chance.sample(pages, len(pages)):
        if any(folder.glob(f"*/{page.stem}--*.json")):
            continue
        taken = np.ones(chance.randrange(4 * GIB) // 8)
        environment = {
            **os.environ,
            "ORTMETER_RESULTS": str(folder),
            "MPLBACKEND": "agg",
            "MALLOC_TOP_PAD_": str(chance.randrange(64 * 4096)),
            "PADDING": "x" * chance.randrange(8192),
            **({"ORTMETER_RECORD": "1"} if full else {}),
        }
        half = taken[: taken.size // 2].copy()  # what is free is in pieces
        del taken
        called = [sys.executable, *([] if full else ["-c", CHILD]), str(page)]
        subprocess.run(called, env=environment, stdout=subprocess.DEVNULL, check=True)
        del half


def ratios(builds: Sequence[Record]) -> Iterator[tuple[str, list[Comparison], tuple[str, str]]]:
    """Iterate over the ratios that all builds measured: where, comparisons, both names."""
    by_place = [
        {(name, *place.items()): found for name, place, found in record.comparisons()}
        for record in builds
    ]
    for place in set.intersection(*map(set, by_place)):
        found = [own[place] for own in by_place]
        first, *others = found[0]
        for other in others:
            if all({first, other} <= {*one} for one in found):
                yield f"{place}: {other} over {first}", found, (first, other)


def alone(group: Comparison, pair: tuple[str, str], confidence: float = 0.99) -> Estimate:
    """Estimate a ratio from one build."""
    own = Comparison([group[name] for name in pair])
    return own.speedup(*pair, confidence=confidence).estimate


def is_disjoint(where: str, one: Estimate, other: Estimate) -> bool:
    """Tell whether two intervals have nothing in common, and say so."""
    found = one.low > other.high or other.low > one.high
    if found:
        print(f"  disjoint: {where}: {one}, {other}")
    return found


def count_ratios(builds: Sequence[Record], tally: collections.Counter[str]) -> None:
    """Count the intervals of builds that have nothing in common."""
    found = list(ratios(builds))
    between = between_builds([alone(g, pair, TYPICAL) for g in groups] for _, groups, pair in found)
    for where, groups, pair in found:
        each = [alone(group, pair) for group in groups]
        if any(one.interval is None for one in each):
            tally["without interval"] += 1
            continue
        for one, other in itertools.combinations(each, 2):
            tally.update({"pairs": 1, "disjoint": is_disjoint(where, one, other)})
        *before, last = each
        joined, final = over_builds(before, between), over_builds([last], between)
        apart = is_disjoint(f"joined, {where}", joined, final)
        tally.update({"joined": 1, "joined, disjoint": apart})


def verdicts(record: Record) -> Mapping[str, str]:
    """Return the verdict of each sentence of the page, by the name of its finding."""
    return {claim.topic: claim.verdict for claim in record.claims}


def count_verdicts(builds: Sequence[Mapping[str, str]], tally: collections.Counter[str]) -> None:
    """Count the verdicts of two builds that agree, do not decide, or contradict."""
    for one, other in itertools.combinations(builds, 2):
        for name in one.keys() & other.keys():
            both = {one[name], other[name]}
            lesser = [name for name in ("undecided", "negligible") if name in both]
            kind = f"to or from {lesser[0]}" if lesser else "contradict"
            kind = kind if len(both) > 1 else "agree"
            tally[kind] += 1
            if len(both) > 1:
                print(f"  {kind}: {name}: {one[name]}, {other[name]}")


def concluded(page: str, builds: Sequence[Record]) -> list[Mapping[str, str]]:
    """Conclude each build again, with the builds before it."""
    sys.path[:0] = [str(ROOT / "_unittests"), str(ROOT / "_doc")]
    from page_runner import define_page

    study = define_page(page)["study"]
    found = []
    for rank, record in enumerate(builds):
        joined = record.beside(builds[:rank])
        said = study.concluded(joined)
        again = dataclasses.replace(record, answer=said.answer, claims=said.claims)
        found.append(verdicts(again))
    return found


def report(pages: Sequence[str], folders: Sequence[Path]) -> None:
    """Print, page by page and for all of them, what does not repeat."""
    tallies = {name: collections.Counter() for name in KINDS}
    for page in pages:
        builds = [record for folder in folders for record in load_records(page, folder)]
        print(page, flush=True)
        count_ratios(builds, tallies["ratios"])
        single, joined = [verdicts(record) for record in builds], concluded(page, builds)
        count_verdicts(single, tallies["one build"])
        print("  with the builds before:")
        count_verdicts(joined, tallies["joined"])
        decided = [name for name, verdict in single[-1].items() if verdict != "undecided"]
        tallies["last build"]["decided alone"] += len(decided)
        still = sum(joined[-1].get(name, "undecided") != "undecided" for name in decided)
        tallies["last build"]["with the builds before"] += still
    print()
    for name, tally in tallies.items():
        print(f"{name}: " + ", ".join(f"{what} {n}" for what, n in tally.items()))


def main() -> None:
    """Build, then report."""
    given = command.options(__doc__, "pages", builds=3, into=Path(), full=False)
    wanted = given.pages or [page.stem for page in PAGES if page.stem not in LONG]
    pages = [page for page in PAGES if page.stem in wanted]
    into = given.into if given.into.name else Path(tempfile.mkdtemp(prefix="ortmeter-builds-"))
    folders = [into / str(rank) for rank in range(max(given.builds, 2))]
    for seed, folder in enumerate(folders):
        build(pages, folder, seed, full=given.full)
    report([page.stem for page in pages], folders)


if __name__ == "__main__":
    main()
