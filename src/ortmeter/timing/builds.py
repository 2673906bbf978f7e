"""A ratio measured again in other builds: an interval that holds how far builds differ."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ortmeter.evidence import Estimate
from ortmeter.timing.statistics import exponential, student

# How far the logarithm of a ratio moves from a build to the next, in the median of the ratios of
# this site, and what this is worth: so many differences between builds that were seen.
_PRIOR_SD, _PRIOR_DOF = 0.015, 4
_LEAST = 0.001
# Most ratios move little and some move much: Student's distribution has their tails.
_TAIL = 2.5
_STEPS = 30  # which converge
#: Level of intervals that show a standard error: at 99%, few processes make them much wider.
TYPICAL = 0.5


def between_builds(ratios: Iterable[Sequence[Estimate]]) -> float:
    """Estimate the variance of the logarithm of a ratio between builds, over ratios of one kind.

    The variance inside a build, known from its interval, is subtracted from what is seen. Precise
    ratios count for more, and those that move much for less: it is the scale of Student's
    distribution, whose tails hold them. A few builds tell little: the estimate is drawn towards
    what this site saw.

    Parameters
    ----------
    ratios : iterable of sequences of Estimate
        The estimates of each ratio, one per build, at the level :data:`TYPICAL`.

    Returns
    -------
    float
        Variance, of the logarithm.
    """
    seen = []
    for builds in filter(lambda known: len(known) > 1, map(_logs, ratios)):
        logs, within = np.transpose(builds)
        share = 1 - 1 / len(logs)
        seen += [(share, (log - logs.mean()) ** 2 / share, within.mean()) for log in logs]
    between = _PRIOR_SD**2
    if not seen:
        return between
    shares, squares, inside = np.transpose(seen)
    weights = shares * (between / (inside + between)) ** 2
    for _ in range(_STEPS):
        tails = (_TAIL + 1) / (_TAIL + squares / (inside + between))
        total = _PRIOR_DOF * _PRIOR_SD**2 + weights @ (tails * squares - inside)
        between = max(float(total / (_PRIOR_DOF + weights.sum())), _LEAST**2)
    return between


def over_builds(builds: Sequence[Estimate], between: float) -> Estimate:
    """Estimate a ratio from the builds that measured it.

    A random effect of the build is added to what each interval holds. How far this ratio moves is
    estimated from its own builds and from the other ratios, as differential expression does for
    genes (Smyth, *Linear models and empirical Bayes methods*, 2004).

    Parameters
    ----------
    builds : sequence of Estimate
        One per build, at one level; those without interval do not count.
    between : float
        Variance between builds, see :func:`between_builds`.

    Returns
    -------
    Estimate
        The ratio, and an interval at the level of the builds.
    """
    logs, within = np.transpose(_logs(builds))
    weights = 1 / (within + between)
    mean = float(weights @ logs / weights.sum())
    freedom = _TAIL + len(logs) - 1
    scale = (_TAIL + float(weights @ (logs - mean) ** 2)) / freedom
    half = student(freedom, builds[0].confidence) * math.sqrt(scale / weights.sum())
    return exponential(mean, half, builds[0].confidence, "")


def _logs(builds: Sequence[Estimate]) -> list[tuple[float, float]]:
    """Return the logarithm of each ratio that has an interval, and its variance."""
    known = [b for b in builds if b.low is not None and b.high is not None]
    return [
        (math.log(b.value), (math.log(b.high / b.low) / 2 / student(math.inf, b.confidence)) ** 2)
        for b in known
        if b.low and b.high
    ]
