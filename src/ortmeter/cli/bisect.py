"""Releases that commands compare, and the search of the one since which something is bad."""

import math
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ortmeter.cli.options import split
from ortmeter.cli.report import Report
from ortmeter.cli.terminal import tell
from ortmeter.errors import InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.evidence import Estimate
from ortmeter.releases.environments import Release, list_releases, parse_release, prepare
from ortmeter.releases.latency import measure_releases
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.statistics import PROCESSES

_UNDECIDED = 2  # exit code
# Processes of each look at the same two releases: the next ones are for what is undecided.
_LOOKS = (PROCESSES, 2 * PROCESSES, 4 * PROCESSES)
_ERROR = 0.01 / 8


def add_options(
    parser: ArgumentParser,
    title: str = "search, with --runtime 1.20.1..1.32.0",
    effect: str = "it is slow, or its outputs are worse",
) -> None:
    """Declare the options of a search."""
    group = parser.add_argument_group(title)
    group.add_argument(
        "--bisect",
        action="store_true",
        help="compare the two, then halve the releases of the registry between them until the one "
        f"since which {effect}; exit with 2 when none is found",
    )


_VERSION = r"([0-9]{1,9}(?:\.[0-9]{1,9})*)"


@dataclass(frozen=True)
class Onset:
    """What began with a release: ``effect`` takes the last good one and the first bad one."""

    said: str
    is_bad: Callable[[Release], object]
    effect: Callable[[Release, Release], str]


def read_releases(
    options: Namespace, providers: Iterable[Provider]
) -> tuple[list[Release], list[Release]]:
    """List the releases to compare, and those of the range to search with its ends, if any."""
    default = "cuda" if any(one.on_cuda for one in providers) else "cpu"
    found = re.fullmatch(rf"{_VERSION}\.\.{_VERSION}", options.runtime or "")
    if (found is not None) != options.bisect:
        raise InvalidArgumentError(
            f"--runtime {options.runtime or '(none)'}. Accepted: a range, 1.20.1..1.32.0, with "
            "--bisect; another value without it"
        )
    if found:
        between = list_releases(found[1], found[2], default)
        return [between[0], between[-1]], between
    return [parse_release(text, default) for text in split("--runtime", options.runtime)], []


def prepare_all(program: str, releases: Iterable[Release]) -> None:
    """Make the environments of releases, unless the cache has them."""
    for release in releases:
        prepare(release, lambda line: tell(f"{program}: {line}"))


def ask_speed(
    name: str, variant: SessionSpec, first: Release, times: float, budget_s: float = 30.0
) -> Onset:
    """Ask since when it is slow: nearer to the last release, so many times slower, than *first*."""
    limits = {"processes": 2 * PROCESSES, "budget_s": budget_s}
    return Onset(
        f"{name} is slow",
        partial(_is_slow, first, variant, math.sqrt(times), budget_s),
        lambda good, bad: (
            f"{slowdown(good, bad, variant, **limits)} times slower than in {good.name}"
        ),
    )


def _is_slow(
    first: Release, variant: SessionSpec, factor: float, budget_s: float, release: Release
) -> bool:
    times = decide_slowdown(first, release, variant, factor, budget_s=budget_s)
    if (answer := times.exceeds(factor)) is None:
        raise OrtMeterError(
            f"{release.name} is undecided compared with {first.name}: slowdown {times} in "
            f"{times.how}, where {factor:.2f} decides"
        )
    return answer


def ask_outputs(said: str, change: Callable[[Release], str]) -> Onset:
    """Ask since when outputs change: in words, those of a release; empty when it is good."""
    return Onset(said, change, lambda _, bad: change(bad))


def fill(
    program: str, report: Report, releases: Sequence[Release], questions: Iterable[Onset]
) -> int:
    """Answer each question in the first sentences; 2 when there is none, or one has no answer."""
    answers = [
        _answer(program, report, Bisection(releases), *each) for each in enumerate(questions)
    ]
    if not answers:
        told = f"{releases[-1].name} is not shown to be slower than {releases[0].name}, nor worse"
        report.sentences.insert(0, f"nothing to search: {told}. Begin with a better release.")
    return 0 if answers and all(answers) else _UNDECIDED


def _answer(program: str, report: Report, found: "Bisection", rank: int, question: Onset) -> bool:
    """Search, and say what is known, though it is interrupted."""
    told, is_answered = "interrupted", False
    try:
        found.search(partial(_try_release, program, question))
        told, is_answered = question.effect(*found.ends), True
    except OrtMeterError as error:  # the other questions may have an answer
        told = str(error)
    finally:
        good, bad = (end.name for end in found.ends)
        since = f"since {bad}{f', or an earlier release after {good}' if found.between else ''}"
        count = f"{2 + len(found.tried)} environments of {len(found.releases)} releases"
        report.sentences.insert(rank, f"{question.said} {since}: {told} ({count}).")
    return is_answered


def _try_release(program: str, question: Onset, release: Release) -> bool:
    prepare_all(program, [release])
    is_bad = bool(question.is_bad(release))
    tell(f"{program}: {question.said} in {release.name}: {'yes' if is_bad else 'no'}")
    return is_bad


@dataclass
class Bisection:
    """A search between a good release and a bad one; what it knows stays when it is interrupted.

    Parameters
    ----------
    releases : sequence of Release
        Oldest first; the first one is good, the last one bad.
    tried : dict of Release to bool
        Which are bad, beside the two ends; None where it is not decided.

    Examples
    --------
    >>> found = Bisection([Release(f"1.{minor}") for minor in range(20, 33)])
    >>> found.search(lambda release: release.name >= "1.27")
    >>> [end.name for end in found.ends], [release.name for release in found.tried]
    (['1.26', '1.27'], ['1.26', '1.29', '1.28', '1.27'])
    """

    releases: Sequence[Release]
    tried: dict[Release, bool | None] = field(default_factory=dict)

    @property
    def ends(self) -> tuple[Release, Release]:
        """The last release known to be good, and the first one known to be bad."""
        known = {self.releases[0]: False, self.releases[-1]: True, **self.tried}
        good, bad = ([r for r in self.releases if known.get(r) is so] for so in (False, True))
        return good[-1], bad[0]

    @property
    def between(self) -> Sequence[Release]:
        """What is between the two; empty when the first bad release is found."""
        good, bad = map(self.releases.index, self.ends)
        return self.releases[good + 1 : bad]

    def search(self, is_bad: Callable[[Release], object]) -> None:
        """Try the release in the middle until none is left to try.

        Parameters
        ----------
        is_bad : callable
            What it raises ends the search.
        """
        while between := self.between:
            middle = between[len(between) // 2]
            self.tried[middle] = None
            self.tried[middle] = bool(is_bad(middle))


def slowdown(
    good: Release, other: Release, variant: SessionSpec, confidence: float = 0.99, **limits: Any
) -> Estimate:
    """Measure by how many times a release is slower than another one, interleaved.

    Parameters
    ----------
    good, other : Release
        Their environments exist.
    variant : SessionSpec
        Model, inputs and settings.
    confidence : float
        Level of the interval.
    **limits : object
        ``processes``, ``budget_s``... as in :func:`~ortmeter.releases.latency.measure_releases`.

    Returns
    -------
    Estimate
        Latency of *other* over that of *good*.

    Raises
    ------
    ModelError
        One of them does not run the model.
    """
    found = measure_releases([good, other], {"": variant}, precision=None, **limits)
    if found.left_out:
        raise ModelError(". ".join(found.left_out.values()))
    claim = found.comparisons[""].speedup(other.name, good.name, confidence=confidence)
    return claim.estimate


def decide_slowdown(
    good: Release,
    other: Release,
    variant: SessionSpec,
    factor: float,
    error: float = _ERROR,
    **limits: Any,
) -> Estimate:
    """Measure a slowdown until it is above or below a factor, three times at most.

    It is measured in 5 sets of processes; where their interval does not tell, in 10 others, then
    20. A decision is wrong with the probability *error*: by default, those of the eight tries among
    256 releases add up to 1%. The other arguments are those of :func:`slowdown`.
    """
    level = 1 - error / len(_LOOKS)
    for processes in _LOOKS:
        times = slowdown(good, other, variant, level, processes=processes, **limits)
        if times.exceeds(factor) is not None:
            break
    return times
