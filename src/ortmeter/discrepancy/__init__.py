"""How far results are from the expected ones, and whether that is close enough.

``compare`` measures, ``result`` holds the figures, ``verdict`` judges them against a tolerance,
``text`` describes arrays in one line.
"""

from ortmeter.discrepancy.compare import max_diff
from ortmeter.discrepancy.result import Difference, Discrepancy
from ortmeter.discrepancy.text import string_diff, string_type
from ortmeter.discrepancy.verdict import Tolerance, Verdict, assert_close

__all__ = [
    "Difference",
    "Discrepancy",
    "Tolerance",
    "Verdict",
    "assert_close",
    "max_diff",
    "string_diff",
    "string_type",
]
