"""Search the release since which something is slow or wrong, for ``bench`` and ``operators``."""

import math
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from ortmeter.cli.report import Report
from ortmeter.cli.terminal import tell
from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.releases.bisection import Bisection, is_slower, slowdown
from ortmeter.releases.environments import Release, list_releases, prepare
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.statistics import PROCESSES

_UNDECIDED = 2  # exit code


def add_options(parser: ArgumentParser) -> None:
    """Declare the options of a search."""
    group = parser.add_argument_group("search, with --runtime 1.20.1..1.32.0")
    group.add_argument(
        "--bisect",
        action="store_true",
        help="compare the two, then halve the releases of the registry between them until the one "
        "since which it is slow, or its outputs are worse; exit with 2 when none is found",
    )
    group.add_argument(
        "--index-url", metavar="URL", help="then halve the nightly builds of this index too"
    )


@dataclass(frozen=True)
class Question:
    """What began with a release: ``effect`` takes the last good one and the first bad one."""

    said: str
    is_bad: Callable[[Release], object]
    effect: Callable[[Release, Release], str]


def read_range(options: Namespace, provider: str) -> list[Release]:
    """List the releases of ``--runtime A..B``, which goes with ``--bisect``; none without it."""
    found = re.fullmatch(r"(\d+(?:\.\d+)*)\.\.(\d+(?:\.\d+)*)", options.runtime or "")
    if (found is not None) != options.bisect or (options.index_url and not found):
        raise InvalidArgumentError(
            f"--runtime {options.runtime or '(none)'}. Accepted: a range, 1.20.1..1.32.0, with "
            "--bisect, and with --index-url; another value without them"
        )
    return list_releases(found[1], found[2], provider, options.index_url or "") if found else []


def ask_speed(
    name: str, variant: SessionSpec, first: Release, times: float, budget_s: float = 30.0
) -> Question:
    """Ask since when it is slow: nearer to the last release, so many times slower, than *first*."""
    limits = {"processes": 2 * PROCESSES, "budget_s": budget_s}
    return Question(
        f"{name} is slow",
        lambda release: is_slower(first, release, variant, math.sqrt(times), budget_s),
        lambda good, bad: (
            f"{slowdown(good, bad, variant, **limits)} times slower than in {good.name}"
        ),
    )


def ask_outputs(said: str, change: Callable[[Release], str]) -> Question:
    """Ask since when outputs change: in words, those of a release; empty when it is good."""
    return Question(said, change, lambda _, bad: change(bad))


def fill(
    options: Namespace, report: Report, releases: Sequence[Release], questions: Iterable[Question]
) -> int:
    """Answer each question in the first sentences; 2 when there is none, or one has no answer."""
    answers = [
        _answer(options, report, Bisection(releases), *each) for each in enumerate(questions)
    ]
    if not answers:
        told = f"{releases[-1].name} is not shown to be slower than {releases[0].name}, nor worse"
        report.sentences.insert(0, f"nothing to search: {told}. Begin with a better release.")
    return 0 if answers and all(answers) else _UNDECIDED


def _answer(
    options: Namespace, report: Report, found: Bisection, rank: int, question: Question
) -> bool:
    """Search, and say what is known, though it is interrupted."""
    told, is_answered = "interrupted", False
    try:
        found.search(partial(_try, f"ortmeter {options.command}", question))
        told, is_answered = question.effect(*found.ends), True
    except OrtMeterError as error:  # the other questions may have an answer
        told = str(error)
    finally:
        count = f"{2 + len(found.tried)} environments of {len(found.releases)} releases"
        report.sentences.insert(rank, f"{question.said} {_since(found)}: {told} ({count}).")
    return is_answered


def _try(program: str, question: Question, release: Release) -> bool:
    prepare(release, lambda line: tell(f"{program}: {line}"))
    is_bad = bool(question.is_bad(release))
    tell(f"{program}: {question.said} in {release.name}: {'yes' if is_bad else 'no'}")
    return is_bad


def _since(found: Bisection) -> str:
    good, bad = (end.name for end in found.ends)
    return f"since {bad}" + (f", or an earlier release after {good}" if found.between else "")
