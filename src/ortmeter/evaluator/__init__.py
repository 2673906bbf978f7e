"""Walk an ONNX graph, each node on a kernel that can be swapped, and find which one differs.

``evaluation`` is the evaluator; ``attribution`` uses two of them to find the kernels responsible
for a discrepancy, ``attribution_session`` one beside a whole session; ``float64`` writes the model
that is their reference; ``known_errors`` says which sources are wrong for which operators.

``_compiler`` turns graphs and functions into a ``_plan``, a list of steps over numbered slots
(``_names``) with what each one frees. ``_kernels`` chooses the kernel of a node among the sources:
``torch_kernels`` through ``_torch_source``, ``_ort_source``, ``_reference_source``,
``_schema_bodies``; ``_swaps`` holds those of the user. ``_values`` says how values travel.
"""

from ortmeter.evaluator.attribution import attribute
from ortmeter.evaluator.attribution_result import Attribution, NodeAttribution
from ortmeter.evaluator.attribution_session import (
    SessionExplanation,
    SessionNode,
    explain_session,
)
from ortmeter.evaluator.evaluation import Evaluator
from ortmeter.evaluator.float64 import to_float64
from ortmeter.evaluator.known_errors import KNOWN_ERRORS

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
