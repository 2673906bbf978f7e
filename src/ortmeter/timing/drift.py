"""A fixed small work timed beside the candidates: it says how much the machine itself drifts."""

import functools
import math
import timeit
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ortmeter.timing.measurement import Candidate, Measurement, format_seconds

__all__ = ["Drift", "drift"]

#: Beyond this share, the machine was not steady.
STEADY = 0.05

# Products of this size run on one thread whatever the threads of the BLAS are, in the first cache.
_SIZE, _PRODUCTS = 48, 80
_WINDOWS, _ROUNDS_OF_A_WINDOW = 10, 10
# Standard deviation of normal samples over their median distance from the median of ten.
_NORMAL = 1.7


@functools.cache
def make_reference() -> Candidate:
    """Make the reference workload: 80 products of two float32 matrices of 48 x 48."""
    left = np.linspace(-1, 1, _SIZE * _SIZE, dtype=np.float32).reshape(_SIZE, _SIZE)
    right, out = left.T.copy(), np.empty_like(left)

    def multiply() -> None:
        for _ in range(_PRODUCTS):
            np.matmul(left, right, out=out)

    return Candidate(multiply, flop=2.0 * _PRODUCTS * _SIZE**3)


@functools.cache
def pace() -> float:
    """Time the reference workload when this process first asks: the median of 100 runs, in s."""
    runs = timeit.repeat(make_reference().function, number=1, repeat=_WINDOWS * _ROUNDS_OF_A_WINDOW)
    return float(np.median(runs))


@dataclass(frozen=True)
class Drift:
    """How much the machine itself drifted, seen by the reference workload.

    Parameters
    ----------
    low, high : float
        Least and largest median of a part of the measurement, in seconds.
    noise : float
        Share by which they differ once in a hundred on a steady machine, since samples vary.

    Examples
    --------
    >>> print(Drift(200e-6, 204e-6))
    the machine drifted by 2% during the measurement (a fixed product on the CPU: 200 µs to 204 µs)
    """

    low: float
    high: float
    noise: float = 0.0

    @property
    def share(self) -> float:
        """Relative distance of the two, 0.02 for 2%."""
        return self.high / self.low - 1 if self.low > 0 else math.inf

    @property
    def is_steady(self) -> bool:
        """Whether latencies can be compared with those of another run."""
        return self.share <= max(STEADY, self.noise)

    @property
    def finding(self) -> str:
        """What happened, without what to trust."""
        span = f"{format_seconds(self.low)} to {format_seconds(self.high)}"
        if STEADY < self.share <= self.noise:
            return (
                f"the machine did not drift beyond the noise (a fixed product on the CPU: {span})"
            )
        return (
            f"the machine drifted by {self.share:.0%} during the measurement (a fixed product on "
            f"the CPU: {span})"
        )

    def __str__(self) -> str:
        if self.is_steady:
            return self.finding
        return f"{self.finding}: trust the comparison of candidates, not their latencies"


def drift(reference_workload: Measurement | None) -> Drift | None:
    """Compare the medians of the parts of a measurement: its processes, or ten parts of one.

    Parameters
    ----------
    reference_workload : Measurement, optional
        That of a :class:`~ortmeter.timing.Comparison`.

    Returns
    -------
    Drift or None
        None without one, or when there are too few rounds for two parts.

    Examples
    --------
    >>> drift(Measurement("reference", [[1.0] * 50 + [1.5] * 50])).share
    0.5
    """
    if reference_workload is None:
        return None
    parts = min(
        _WINDOWS // reference_workload.processes, reference_workload.repeat // _ROUNDS_OF_A_WINDOW
    )
    windows = [w for row in reference_workload.seconds for w in np.array_split(row, max(parts, 1))]
    medians = [float(np.median(window)) for window in windows]
    if len(medians) == 1:
        return None
    return Drift(min(medians), max(medians), _noise(windows, medians))


def _noise(windows: Sequence[npt.NDArray[np.float64]], medians: Sequence[float]) -> float:
    """Return how far the two most distant medians are apart by luck, once in a hundred."""
    from scipy.special import ndtri

    away = [np.abs(x / m - 1) for x, m in zip(windows, medians, strict=True) if m > 0]
    if not away:
        return 0.0
    deviation = _NORMAL * float(np.median(np.concatenate(away)))
    error = math.sqrt(math.pi / 2 / min(map(len, windows))) * deviation  # of a median
    pairs = math.comb(len(windows), 2)
    return math.expm1(float(ndtri(1 - 0.005 / pairs)) * math.sqrt(2) * error)
