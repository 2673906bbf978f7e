"""Find the first bad release in few tries, and decide whether one is slower in few processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ortmeter.errors import ModelError, OrtMeterError
from ortmeter.evidence import Estimate
from ortmeter.releases.environments import Release
from ortmeter.releases.latency import ReleaseResults, measure_releases
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.statistics import PROCESSES

# Processes of each look at the same two releases: the next ones are for what is undecided.
_LOOKS = (PROCESSES, 2 * PROCESSES, 4 * PROCESSES)
_ERROR = 0.01 / 8


@dataclass
class Bisection:
    """A search between a good release and a bad one; what it knows stays when it is interrupted.

    Parameters
    ----------
    releases : sequence of Release
        Oldest first; the first one is good, the last one bad. Nightly builds are those that have
        an index.
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
        """Try the release in the middle, nightly builds last, until none is left to try.

        Parameters
        ----------
        is_bad : callable
            What it raises ends the search.
        """
        while between := self.between:
            left = [release for release in between if not release.index] or between
            middle = left[len(left) // 2]
            self.tried[middle] = None
            self.tried[middle] = bool(is_bad(middle))


def measure_pair(
    good: Release, other: Release, variant: SessionSpec, **limits: Any
) -> ReleaseResults:
    """Measure two releases in turn, see :func:`~ortmeter.releases.latency.measure_releases`.

    Raises
    ------
    ModelError
        One of them does not run the model.
    """
    found = measure_releases([good, other], {"": variant}, precision=None, **limits)
    if found.left_out:
        raise ModelError(". ".join(found.left_out.values()))
    return found


def slowdown(
    good: Release, other: Release, variant: SessionSpec, confidence: float = 0.99, **limits: Any
) -> Estimate:
    """Measure by how many times a release is slower than another one, in turn.

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
    found = measure_pair(good, other, variant, **limits).comparisons[""]
    return found.speedup(other.name, good.name, confidence=confidence).estimate


def is_slower(
    good: Release, other: Release, variant: SessionSpec, factor: float, budget_s: float
) -> bool:
    """Decide whether a release is more than so many times slower than another one.

    It is measured in 5 sets of processes; where their interval does not tell, in 10 others, then
    20. The errors of the three add up to 0.125%, those of the eight tries among 256 releases to 1%.

    Parameters
    ----------
    good, other, variant
        As in :func:`slowdown`.
    factor : float
        Ratio of the latencies that decides.
    budget_s : float
        Seconds at most for each of the three.

    Returns
    -------
    bool
        Whether it is slower.

    Raises
    ------
    OrtMeterError
        Nothing is decided after the last processes, or a release does not run the model.
    """
    times = decide_slowdown(good, other, variant, factor, budget_s=budget_s)
    if (answer := times.exceeds(factor)) is None:
        raise OrtMeterError(
            f"{other.name} is undecided beside {good.name}: slowdown {times} in {times.how}, where "
            f"{factor:.2f} decides"
        )
    return answer


def decide_slowdown(
    good: Release,
    other: Release,
    variant: SessionSpec,
    factor: float,
    error: float = _ERROR,
    **limits: Any,
) -> Estimate:
    """Measure a slowdown until it is above or below a factor, three times at most.

    A decision is wrong with the probability *error*; the other arguments are those of
    :func:`slowdown`.
    """
    level = 1 - error / len(_LOOKS)
    for processes in _LOOKS:
        times = slowdown(good, other, variant, level, processes=processes, **limits)
        if times.exceeds(factor) is not None:
            break
    return times
