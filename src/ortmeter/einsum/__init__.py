"""Einsum on ONNX: parse an equation, plan its steps, and write them as a model."""

from ortmeter.einsum.emit import einsum_model
from ortmeter.einsum.parse import EinsumError
from ortmeter.einsum.plan import EinsumPlan, decompose_einsum
from ortmeter.einsum.search import EinsumCandidate, EinsumSearch, optimize_einsum
from ortmeter.einsum.steps import Step

__all__ = [
    "EinsumCandidate",
    "EinsumError",
    "EinsumPlan",
    "EinsumSearch",
    "Step",
    "decompose_einsum",
    "einsum_model",
    "optimize_einsum",
]
