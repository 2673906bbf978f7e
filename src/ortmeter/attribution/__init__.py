"""Find which node makes two results differ.

``session`` compares an evaluator with a session: ``search`` bisects their nodes. ``optimizers``
finds the graph optimizations that change the outputs of a session, ``alignment`` where two graphs
part (``matching`` pairs the results that ``intermediates`` reads, ``entering`` opens bodies,
``changes`` compares initializers and attributes), ``reduction`` the smallest model that still shows
it, ``nonfinite`` the nodes that make NaN and infinities.
"""

from ortmeter.attribution.alignment import Aligned, Alignment, align
from ortmeter.attribution.matching import Result
from ortmeter.attribution.nonfinite import NonFinite
from ortmeter.attribution.optimizers import (
    OptimizerExplanation,
    explain_optimization,
)
from ortmeter.attribution.reduction import Reduced, reduce_model
from ortmeter.attribution.result import SessionExplanation, SessionGroup, SessionNode
from ortmeter.attribution.session import explain_session

__all__ = [
    "Aligned",
    "Alignment",
    "NonFinite",
    "OptimizerExplanation",
    "Reduced",
    "Result",
    "SessionExplanation",
    "SessionGroup",
    "SessionNode",
    "align",
    "explain_optimization",
    "explain_session",
    "reduce_model",
]
