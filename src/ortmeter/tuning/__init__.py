"""Find the fastest setting of a model that is safe, prove it, and write it."""

# `space` lists what can be set, `guard` refuses what changes the outputs, `race` times what is left
# with the clock of `waves`, `tuner` does this in one straight line, `files` keeps the result.

from ortmeter.tuning.tuner import Tuning, tune

__all__ = ["Tuning", "tune"]
