"""Honest timing: interleaved candidates, raw samples, verdicts with an interval.

``measuring`` repeats in fresh processes what ``loop`` does in one; ``measurement`` is what came out
of one candidate, ``comparison`` of several, ``statistics`` the intervals of their ratios.
"""

from ortmeter.timing.comparison import Comparison, Comparisons, Ranking, speedup
from ortmeter.timing.measurement import Candidate, Measurement, Recipe
from ortmeter.timing.measuring import measure, measure_each

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
