"""A fixed small work timed beside the candidates: it says how much the machine itself moved."""

import functools
import math
from dataclasses import dataclass

import numpy as np

from ortmeter.timing.measurement import Candidate, Measurement, format_seconds

__all__ = ["Movement", "movement"]

#: Beyond this share, the machine was not steady.
STEADY = 0.05

# Products of this size run on one thread whatever the threads of the BLAS are, in the first cache.
_SIZE, _PRODUCTS = 48, 80
_WINDOWS, _ROUNDS_OF_A_WINDOW = 10, 10


@functools.cache
def control_candidate() -> Candidate:
    """Make the control: 80 products of two matrices of 48 rows and columns, in float32."""
    left = np.linspace(-1, 1, _SIZE * _SIZE, dtype=np.float32).reshape(_SIZE, _SIZE)
    right, out = left.T.copy(), np.empty_like(left)

    def multiply() -> None:
        for _ in range(_PRODUCTS):
            np.matmul(left, right, out=out)

    return Candidate(multiply, flop=2.0 * _PRODUCTS * _SIZE**3)


@dataclass(frozen=True)
class Movement:
    """How much the machine itself moved, seen by its control.

    Parameters
    ----------
    low, high : float
        Least and largest median of a part of the measurement, in seconds.

    Examples
    --------
    >>> print(Movement(200e-6, 204e-6))
    the machine moved by 2% during the measurement (a fixed product on the CPU: 200 µs to 204 µs)
    """

    low: float
    high: float

    @property
    def share(self) -> float:
        """Relative distance of the two, 0.02 for 2%."""
        return self.high / self.low - 1 if self.low > 0 else math.inf

    @property
    def is_steady(self) -> bool:
        """Whether latencies can be compared with those of another run."""
        return self.share <= STEADY

    def __str__(self) -> str:
        span = f"{format_seconds(self.low)} to {format_seconds(self.high)}"
        text = (
            f"the machine moved by {self.share:.0%} during the measurement (a fixed product on the "
            f"CPU: {span})"
        )
        if self.is_steady:
            return text
        return f"{text}: trust the comparison of candidates, not their latencies"


def movement(control: Measurement | None) -> Movement | None:
    """Compare the medians of the parts of a measurement: its processes, or ten parts of one.

    Parameters
    ----------
    control : Measurement, optional
        ``Comparison.control``.

    Returns
    -------
    Movement or None
        None without a control, or when there are too few rounds for two parts.

    Examples
    --------
    >>> movement(Measurement("control", [[1.0] * 50 + [1.5] * 50])).share
    0.5
    """
    if control is None:
        return None
    parts = min(_WINDOWS // control.processes, control.repeat // _ROUNDS_OF_A_WINDOW)
    windows = [w for row in control.seconds for w in np.array_split(row, max(parts, 1))]
    medians = [float(np.median(window)) for window in windows]
    return Movement(min(medians), max(medians)) if len(medians) > 1 else None
