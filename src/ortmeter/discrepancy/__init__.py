"""Measure how far results are from expected ones, and check tolerances.

``compare`` walks two structures and measures each pair of arrays, ``result`` holds the figures and
the limits. ``models`` runs two models on the same inputs and compares their outputs.
"""

from ortmeter.discrepancy.compare import assert_close, max_diff
from ortmeter.discrepancy.models import ModelDiff, diff
from ortmeter.discrepancy.result import Discrepancy, Tolerance, Verdict

__all__ = [
    "Discrepancy",
    "ModelDiff",
    "Tolerance",
    "Verdict",
    "assert_close",
    "diff",
    "max_diff",
]
