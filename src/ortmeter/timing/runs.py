"""Compare measurements of two runs, which were not interleaved."""

import math

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import LEVEL, Speedup
from ortmeter.timing.measurement import Measurement
from ortmeter.timing.statistics import exponential, welch_log_ratio

__all__ = ["compare_runs"]

#: Beyond this share of drift between two runs, a machine is as good as another one.
MOST_DRIFT = 0.25

# Seconds of a call, for samples that come from a file.
_LEAST, _MOST = 1e-12, 1e9


def compare_runs(
    baseline: Measurement,
    candidate: Measurement,
    *,
    references: tuple[Measurement, Measurement] | None = None,
    name: str = "the baseline",
) -> Speedup:
    """Compare a candidate with samples that another run took.

    Parameters
    ----------
    baseline, candidate : Measurement
        Samples of the other run, and of this one. Their numbers of processes may differ.
    references : tuple of Measurement, optional
        Reference workloads of the other run and of this one, on one machine.
    name : str
        What the claim calls the baseline.

    Returns
    -------
    Speedup
        The ratio, its interval and the verdict. The interval is Welch's, over processes, of the
        latencies or of their ratios to the reference workload of the same round, whichever is
        narrower. It is widened on both sides by how far the machine itself drifted, as the model
        may have followed or not. There is none, and the verdict is undecided, with fewer than 3
        processes in a run, or if the machine drifted by more than 25%.

    Raises
    ------
    InvalidArgumentError
        A sample is no latency: zero, or beyond what a call can take.

    Examples
    --------
    >>> before = Measurement("m", [[2.0], [2.1], [2.0], [2.1], [2.0]])
    >>> after = Measurement("m", [[3.0], [3.1], [3.0], [3.1], [3.1]])
    >>> print(compare_runs(before, after))
    m is 1.50 times slower than the baseline [1.42, 1.59] (99% CI, 5 and 5 processes)
    >>> slower = Measurement("reference", [[2.8], [2.9], [2.8], [2.9], [2.8]])
    >>> compare_runs(before, after, references=(before, slower)).verdict
    'undecided'
    """
    check_latencies(baseline, candidate, *(references or ()))
    ways = [(baseline.seconds, candidate.seconds)]
    if references is not None:
        before, now = (reference.seconds for reference in references)
        if (before.shape, now.shape) == (baseline.seconds.shape, candidate.seconds.shape):
            ways.append((baseline.seconds / before, candidate.seconds / now))
    found = [welch_log_ratio(*way, LEVEL) for way in ways]
    log, half = min(found, key=lambda each: math.inf if each[1] is None else each[1])
    drift = drift_ratio(*references) if references else 1.0
    half = None if half is None or not is_steady(drift) else half + abs(math.log(drift))
    how = f"{baseline.processes} and {candidate.processes} processes"
    return Speedup(candidate.name, name, exponential(log, half, LEVEL, how))


def drift_ratio(before: Measurement, after: Measurement) -> float:
    """Return how many times slower the machine became: the ratio of the reference workloads."""
    check_latencies(before, after)
    return math.exp(-welch_log_ratio(before.seconds, after.seconds, LEVEL)[0])


def check_latencies(*measured: Measurement) -> None:
    """Refuse samples that are no latencies, which a file may hold."""
    for measurement in measured:
        least, most = float(measurement.seconds.min()), float(measurement.seconds.max())
        if not _LEAST <= least <= most <= _MOST:
            raise InvalidArgumentError(
                f"samples of {measurement.name!r} go from {least:g} to {most:g} s. "
                f"Accepted: {_LEAST:g} to {_MOST:g} s"
            )


def is_steady(drift: float) -> bool:
    """Whether two reference workloads are close enough to compare what was timed with them."""
    return max(drift, 1 / drift) <= 1 + MOST_DRIFT
