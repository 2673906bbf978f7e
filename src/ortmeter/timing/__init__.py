"""Honest timing: interleaved candidates, raw samples, verdicts with an interval.

``measurement`` says what was measured, ``loop`` measures in this process, ``fresh`` in fresh ones,
``verdict`` compares two measurements, ``ranking`` several, ``table`` makes a frame of them.
"""

from ortmeter.timing.loop import measure
from ortmeter.timing.measurement import Candidate, Measurement, Recipe
from ortmeter.timing.ranking import Ranking, rank
from ortmeter.timing.table import in_milliseconds, to_frame
from ortmeter.timing.verdict import Speedup, speedup, summarize

__all__ = [
    "Candidate",
    "Measurement",
    "Ranking",
    "Recipe",
    "Speedup",
    "in_milliseconds",
    "measure",
    "rank",
    "speedup",
    "summarize",
    "to_frame",
]
