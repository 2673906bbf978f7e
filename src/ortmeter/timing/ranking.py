"""Say which of several candidates is the fastest."""

from collections.abc import Mapping
from dataclasses import dataclass

from ortmeter.errors import InvalidArgumentError
from ortmeter.timing.measurement import Measurement
from ortmeter.timing.verdict import Speedup, enumerate_items, speedup

__all__ = ["Ranking", "rank"]


@dataclass(frozen=True)
class Ranking:
    """The candidates that may be the fastest, and those that are slower.

    Parameters
    ----------
    fastest : str
        The candidate of lowest median.
    leaders : tuple of str
        That candidate and those from which no difference can be claimed, in the order given.
    slower : tuple of Speedup
        For each other candidate, how many times faster the fastest is, in the order given.
    """

    fastest: str
    leaders: tuple[str, ...]
    slower: tuple[Speedup, ...]

    def __str__(self) -> str:
        if len(self.leaders) > 1:
            text = f"no difference can be claimed between {enumerate_items(self.leaders)}"
        else:
            text = f"{self.fastest} is the fastest"
        if not self.slower:
            return text
        beaten = [
            f"{s.ratio:.2f} times faster than {s.baseline} ({s.low:.2f} to {s.high:.2f})"
            for s in self.slower
        ]
        subject = f"; {self.fastest} is " if len(self.leaders) > 1 else ", "
        return f"{text}{subject}{enumerate_items(beaten)}"


def rank(
    results: Mapping[str, Measurement], *, confidence: float = 0.99, min_effect: float = 0.05
) -> Ranking:
    """Compare every candidate to the one with the lowest median.

    Parameters
    ----------
    results : mapping of str to Measurement
        What :func:`~ortmeter.timing.measure` returned.
    confidence, min_effect : float
        As in :func:`~ortmeter.timing.speedup`.

    Returns
    -------
    Ranking
        Its text is a sentence.

    Raises
    ------
    InvalidArgumentError
        There is no measurement.

    Examples
    --------
    >>> import numpy as np
    >>> times = {"a": np.full((1, 9), 1.0), "b": np.full((1, 9), 2.0)}
    >>> print(rank({name: Measurement(name, t) for name, t in times.items()}))
    a is the fastest, 2.00 times faster than b (2.00 to 2.00)
    """
    if not results:
        raise InvalidArgumentError("results is empty. Accepted: at least one measurement")
    first = min(results.values(), key=lambda m: m.median)
    compared = [
        speedup(other, first, confidence=confidence, min_effect=min_effect)
        for other in results.values()
        if other is not first
    ]
    slower = tuple(s for s in compared if s.is_claim)
    beaten = {s.baseline for s in slower}
    return Ranking(first.name, tuple(name for name in results if name not in beaten), slower)
