"""Run an ONNX graph node by node with replaceable kernels, and find which node differs.

``evaluation`` is the evaluator: ``compiler`` turns graphs and functions into a ``plan``, a list of
steps over numbered slots with what each one frees; ``kernels`` chooses what runs a node, among the
``sources`` or what the user swaps; ``node`` is what they know of it, ``values`` how values travel.

``attribution`` uses two evaluators to find the kernels responsible for a discrepancy,
``attribution_session`` one beside a whole session; ``float64`` writes the model that is their
reference.
"""

from ortmeter.evaluator.attribution import attribute
from ortmeter.evaluator.attribution_result import (
    Attribution,
    NodeAttribution,
    SessionExplanation,
    SessionNode,
)
from ortmeter.evaluator.attribution_session import explain_session
from ortmeter.evaluator.evaluation import Evaluator
from ortmeter.evaluator.float64 import to_float64
from ortmeter.evaluator.kernels import KNOWN_ERRORS

__all__ = [
    "KNOWN_ERRORS",
    "Attribution",
    "Evaluator",
    "NodeAttribution",
    "SessionExplanation",
    "SessionNode",
    "attribute",
    "explain_session",
    "to_float64",
]
