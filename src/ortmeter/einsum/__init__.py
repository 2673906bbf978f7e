"""Einsum on ONNX: read an equation, plan its steps, write them as a model."""

from ortmeter.einsum._candidates import EinsumCandidate
from ortmeter.einsum.contract import einsum
from ortmeter.einsum.emit import einsum_model
from ortmeter.einsum.errors import EinsumError
from ortmeter.einsum.parse import Equation, parse_equation
from ortmeter.einsum.plan import decompose_einsum
from ortmeter.einsum.result import EinsumPlan
from ortmeter.einsum.search import EinsumSearch, optimize_einsum
from ortmeter.einsum.steps import Step

__all__ = [
    "EinsumCandidate",
    "EinsumError",
    "EinsumPlan",
    "EinsumSearch",
    "Equation",
    "Step",
    "decompose_einsum",
    "einsum",
    "einsum_model",
    "optimize_einsum",
    "parse_equation",
]
