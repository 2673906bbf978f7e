"""Constant nodes: their value is known before anything runs."""

from typing import Any

import numpy as np

from ortmeter.errors import ModelError
from ortmeter.evaluator._node import Node

__all__ = ["constant_value", "is_constant"]

# The value of each form of Constant, and its type when the attribute holds Python values.
_TYPES: dict[str, Any] = {
    "value": None,
    "sparse_value": None,
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": object,
    "value_strings": object,
}


def is_constant(node: Node) -> bool:
    """Tell whether a node is a Constant."""
    return node.op_type == "Constant" and node.domain == ""


def constant_value(node: Node) -> np.ndarray:
    """Read the value of a Constant, in any of its forms."""
    given = {name: value for name, value in node.attributes.items() if name in _TYPES}
    if len(given) != 1:
        raise ModelError(
            f"{node} has the values {', '.join(given) or 'none'}. Accepted: exactly one of "
            + ", ".join(_TYPES)
        )
    ((name, value),) = given.items()
    return np.asarray(value, _TYPES[name])
