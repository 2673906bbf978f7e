"""Rewriting rules of the optimisation levels, a family in each module.

A rule says where it holds: the first opset that has the operator it writes, and the element types
of its kernel on each provider. ``RULES`` holds all of them, by name, in the order they are applied:
each one may feed those that follow.
"""

from types import MappingProxyType

from ortmeter.backend.rules import (
    activation,
    attention,
    flattening,
    group_query,
    heads,
    masks,
    matmul,
    merging,
    normalization,
    packing,
    partial_rotary,
    reshape,
    rotary,
    scaling,
)
from ortmeter.backend.rules.rule import Fusion, Rule

__all__ = ["RULES", "Fusion", "Rule"]

_FAMILIES = (
    reshape,
    flattening,
    normalization,
    rotary,
    partial_rotary,
    attention,
    heads,
    scaling,
    masks,
    activation,
    matmul,
    merging,
    group_query,
    packing,
)

#: Every rule, by name: those of ``default`` first.
RULES = MappingProxyType(
    {
        rule.name: rule
        for stage in ("default", "onnxruntime")
        for family in _FAMILIES
        for rule in family.RULES
        if rule.stage == stage
    }
)
