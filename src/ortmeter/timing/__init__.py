"""Honest timing: interleaved candidates, raw samples, verdicts with an interval.

``loop`` measures in this process, ``processes`` in fresh ones; ``measurement`` is what came out of
one candidate, ``comparison`` of several, ``statistics`` the intervals of their ratios.
"""

from ortmeter.timing.comparison import Comparison, Comparisons, Ranking, speedup
from ortmeter.timing.loop import measure, measure_each
from ortmeter.timing.measurement import Candidate, Measurement, Recipe

__all__ = [
    "Candidate",
    "Comparison",
    "Comparisons",
    "Measurement",
    "Ranking",
    "Recipe",
    "measure",
    "measure_each",
    "speedup",
]
