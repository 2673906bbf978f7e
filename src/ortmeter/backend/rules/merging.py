"""Products of the same rows by several weights: queries, keys and values, or gates and values."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.rule import BF16, F16, F32, F64, MICROSOFT, Rule
from ortmeter.backend.rules.values import constant, copy_type, producer, readers_beside, sizes

__all__ = ["MOST_ROWS", "RULES", "MergedProducts", "allow_copies"]

#: Most rows for which it is worth it: with more, each product keeps the device busy.
MOST_ROWS = 64
_MATRIX = 2
_MARK = "ortmeter.weight"
# On a merged product: its part for each weight, by name.
_PARTS = "ortmeter.parts"


def allow_copies(weights: Iterable[ir.Value]) -> None:
    """Mark inputs of a graph as weights that may be copied before it runs.

    Parameters
    ----------
    weights : iterable of onnx_ir.Value
        They are marked in memory: a model that is written does not tell.

    Examples
    --------
    >>> weight = ir.Value(name="W")
    >>> allow_copies([weight])
    >>> dict(weight.meta)
    {'ortmeter.weight': True}
    """
    for value in weights:
        value.meta[_MARK] = True


class MergedProducts:
    """Products of the same rows -> one product by their weights put together, then Split.

    The first of them writes the product and the Split, the others find them.
    """

    def pattern(self, op: Any, x: Any, weight: Any) -> Any:
        """One of the products."""
        return op.FusedMatMul(x, weight, transB=1, _domain=MICROSOFT, _outputs=["y"])

    def rewrite(self, op: Any, *, x: ir.Value, weight: ir.Value, y: ir.Value) -> Any:
        """The weights that are inputs of the graph are put together once, by who feeds them."""
        readers = readers_beside(x, producer(y))
        for node in readers:
            if str(weight.name) in node.meta.get(_PARTS, {}):
                return op.Identity(node.meta[_PARTS][str(weight.name)])
        shape, nodes = sizes(x), [node for node in readers if _is_linear(node, x)]
        if shape is None or np.prod(shape[:-1]) > MOST_ROWS or producer(y) not in nodes:
            return None
        weights = [node.inputs[1] for node in nodes]
        if len(nodes) == 1 or len({id(w) for w in weights}) < len(weights):
            return None
        rows = [(sizes(w) or (0,))[0] for w in weights]
        merged = op.Concat(*weights, axis=0)
        copy_type(merged, weight, (sum(rows), shape[-1]))
        product = op.FusedMatMul(x, merged, transB=1, _domain=MICROSOFT)
        copy_type(product, y, (*shape[:-1], sum(rows)))
        parts = op.Split(
            product,
            op.Constant(value=ir.tensor(np.array(rows, np.int64))),
            axis=len(shape) - 1,
            _outputs=len(rows),
        )
        for part, node in zip(parts, nodes, strict=True):
            copy_type(part, node.outputs[0])
        names = [str(w.name) for w in weights if w is not None]
        producer(product).meta[_PARTS] = dict(zip(names, parts, strict=True))
        return parts[weights.index(weight)]


def _is_linear(node: ir.Node, x: ir.Value) -> bool:
    """Tell whether a node multiplies rows by a weight that may be copied, as torch stores it."""
    if node.op_identifier() != (MICROSOFT, "FusedMatMul", "") or node.inputs[0] is not x:
        return False
    weight, attributes = node.inputs[1], node.attributes
    if weight is None or sizes(weight, rank=_MATRIX) is None:
        return False
    known = constant(weight) is not None or _MARK in weight.meta
    return known and set(attributes) == {"transB"} and attributes.get_int("transB", 0) == 1


#: The rules of this family.
RULES = (
    Rule(
        "MergedProducts",
        "onnxruntime",
        (MergedProducts(),),
        # Measured on CPU for 1 to 512 rows: one product takes as long as several.
        {"cuda": frozenset({F32, F64, F16, BF16})},
    ),
)
