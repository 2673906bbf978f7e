"""Find the initializers and the attributes that differ between two models."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx

from ortmeter.discrepancy import Tolerance, max_diff
from ortmeter.dtypes import float_info, short_name
from ortmeter.errors import ModelError
from ortmeter.evaluator.float64 import FLOATS, TYPE_ATTRIBUTES
from ortmeter.evaluator.node import (
    Node,
    constant_value,
    dense_array,
    initializers,
    opset_versions,
)

#: Names of results of two models that stand for the same.
_Pairs: TypeAlias = Iterable[tuple[str, str]]

#: A sentence, after the largest difference over the largest value; infinite where none says it.
_Change: TypeAlias = tuple[float, str]

_LISTED = 8  # values


def find_changes(
    expected: onnx.ModelProto, got: onnx.ModelProto, results: _Pairs
) -> tuple[str, ...]:
    """Say which initializers and attributes differ by more than a rounding, the largest first.

    Initializers are paired by name, and by rank among the inputs of nodes that are paired: those
    of one operator whose results, or names, are the same.
    """
    sides, values = [], []
    for model in (expected, got):
        imports = opset_versions(model)
        nodes = [Node(node, imports, "") for node in model.graph.node]
        constants = {node.proto.output[0]: node for node in nodes if node.op_type == "Constant"}
        sides.append(nodes)
        # They are read when they are compared.
        values.append({**dict(initializers(model.graph)), **constants})
    writer = {name: node for node in sides[1] for name in node.proto.output if name}
    named = {node.proto.name: node for node in sides[1] if node.proto.name}
    partner = dict(results)
    shared = [(name, name) for name in values[0] if name in values[1]]
    found: list[_Change] = []
    for node in sides[0]:
        names = [partner[name] for name in node.proto.output if name in partner]
        other = writer.get(names[0]) if names else named.get(node.proto.name)
        if other is None or other.operator != node.operator or node.op_type == "Constant":
            continue
        found += _attributes_apart(node, other)
        inputs = zip(node.proto.input, other.proto.input, strict=False)
        shared += [(a, b) for a, b in inputs if a in values[0] and b in values[1]]
    found += (
        change
        for first, second in dict.fromkeys(shared)
        if (change := _values_apart((first, second), values[0][first], values[1][second]))
    )
    return tuple(text for _, text in sorted(found, key=lambda change: change[0], reverse=True))


def _attributes_apart(node: Node, other: Node) -> Iterator[_Change]:
    first, second = (_attributes(one) for one in (node, other))
    for name in dict.fromkeys((*first, *second)):
        old, new = first.get(name), second.get(name)
        if isinstance(old, onnx.GraphProto) or isinstance(new, onnx.GraphProto):
            continue
        is_cast = name in TYPE_ATTRIBUTES and {old, new} <= FLOATS
        if not (is_cast or np.array_equal(np.asarray(old), np.asarray(new))):
            where = " / ".join(dict.fromkeys((node.label, other.label)))
            told = f"{name} of {where} ({node.operator}) is {_text(new)} instead of {_text(old)}"
            yield math.inf, told


def _attributes(node: Node) -> Mapping[str, Any]:
    """Attributes of a node, with the defaults that ONNX gives."""
    known = node.schema.attributes if node.schema else {}
    defaults = {
        name: onnx.helper.get_attribute_value(attribute.default_value)
        for name, attribute in known.items()
        if attribute.default_value.type
    }
    decoded = {n: v.decode() if isinstance(v, bytes) else v for n, v in defaults.items()}
    return {**decoded, **node.attributes}


def _text(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, np.ndarray) and value.size > _LISTED:
        return f"an array of {value.size} values"
    return str(value.tolist() if isinstance(value, np.ndarray) else value)


def _values_apart(names: tuple[str, str], *constants: Any) -> _Change | None:
    """Compare two constants, unless one is not the other rounded: int8, transposed, elsewhere."""
    try:
        first, second = (
            constant_value(one) if isinstance(one, Node) else dense_array(one) for one in constants
        )
    except ModelError:
        return None
    kinds = [short_name(array.dtype) for array in (first, second)]
    limit = Tolerance()
    if kinds[0] != kinds[1]:
        if not all(kind.startswith(("f", "bf")) for kind in kinds):
            return None
        narrow = max((float_info(kind) for kind in kinds), key=lambda info: float(info.eps))
        limit = Tolerance(atol=4 * float(narrow.smallest_subnormal), rtol=float(narrow.eps))
    if first.shape != second.shape and first.size == second.size:
        return None
    error = max_diff(first, second, tolerance=limit, on_mismatch="report")
    if limit.check(error):
        return None
    told = " / ".join(dict.fromkeys(names))
    if max(first.size, second.size) <= _LISTED:
        told += f" is {_text(second)} instead of {_text(first)}"
    elif error.over is None:
        told += f" has the shape {second.shape} instead of {first.shape}"
    else:
        where = f"{error.over.got} instead of {error.over.expected} at {error.over.index}"
        told += f" has {where}, and {error.n_over} of {error.n} values differ"
    largest = error.ranked("abs")
    size = float(largest / error.largest) if error.largest else math.inf
    return size, f"initializer {told}"
