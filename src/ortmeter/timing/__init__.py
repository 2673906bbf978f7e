"""Honest timing: interleaved candidates, raw samples, verdicts with an interval."""

# `loop` measures in one process, `measuring` repeats it in fresh processes. `measurement` has the
# samples of one candidate, `comparison` those of several, `statistics` intervals of ratios.

from ortmeter.timing.comparison import Comparison, Comparisons, speedup
from ortmeter.timing.measurement import Candidate, Measurement, SpawnSpec
from ortmeter.timing.measuring import measure, measure_each

__all__ = [
    "Candidate",
    "Comparison",
    "Comparisons",
    "Measurement",
    "SpawnSpec",
    "measure",
    "measure_each",
    "speedup",
]
