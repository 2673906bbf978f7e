"""Run an ONNX graph node by node with replaceable kernels, and find which node differs.

``evaluation`` has the evaluator. ``compiler`` turns graphs and functions into a ``plan``, a list of
steps over numbered slots. ``kernels`` chooses the kernel of a ``node``, from the ``sources`` or the
user. ``values`` converts values between libraries and devices.

``attribution`` compares two evaluators to find the kernels responsible for a discrepancy,
``attribution_session`` compares an evaluator with a session, ``attribution_search`` bisects their
nodes, and ``float64`` writes their reference model. ``optimizers`` finds the graph optimizations
that change the outputs of a session, ``alignment`` where two graphs part (``matching`` pairs the
results that ``exposing`` reads), and ``program`` the step of a program of torch that its model does
otherwise.
"""

from ortmeter.evaluator.alignment import Aligned, Alignment, align
from ortmeter.evaluator.attribution import attribute
from ortmeter.evaluator.attribution_result import (
    Attribution,
    NodeAttribution,
    SessionExplanation,
    SessionGroup,
    SessionNode,
)
from ortmeter.evaluator.attribution_session import explain_session
from ortmeter.evaluator.evaluation import Evaluator
from ortmeter.evaluator.float64 import to_float64
from ortmeter.evaluator.kernels import KNOWN_ERRORS
from ortmeter.evaluator.matching import Result
from ortmeter.evaluator.optimizers import (
    OptimizerEffect,
    OptimizerExplanation,
    explain_optimization,
)
from ortmeter.evaluator.program import ProgramExplanation, ProgramStep, explain_program

__all__ = [
    "KNOWN_ERRORS",
    "Aligned",
    "Alignment",
    "Attribution",
    "Evaluator",
    "NodeAttribution",
    "OptimizerEffect",
    "OptimizerExplanation",
    "ProgramExplanation",
    "ProgramStep",
    "Result",
    "SessionExplanation",
    "SessionGroup",
    "SessionNode",
    "align",
    "attribute",
    "explain_optimization",
    "explain_program",
    "explain_session",
    "to_float64",
]
