"""Matrix products: by weights as torch stores them, by several weights at once."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortmeter.backend.rules.graph_values import (
    constant,
    dimensions,
    producer,
    readers_beside,
    sizes,
    typed,
    vector,
)
from ortmeter.backend.rules.rule import MICROSOFT, known, require

#: Most rows for which it should be worth it: with more, each product keeps the device busy. On CPU
#: one product takes as long as several, for 1 to 512 rows.
MOST_ROWS = 64
_MARK = "ortmeter.weight"
# On a merged product: its part for each weight, by name.
_PARTS = "ortmeter.parts"


class TransposedWeight:
    """``x @ transpose(weight)`` -> FusedMatMul, which reads the weight as torch stores it.

    ONNX Runtime has this fusion, but first folds the transposition of a weight that it holds: with
    it a session of 256 MiB of weights took 632 MiB more, with FusedMatMul 264.
    """

    def pattern(self, op: Any, x: Any, weight: Any) -> Any:
        return op.MatMul(x, op.Transpose(weight, perm=[1, 0]))

    def rewrite(self, op: Any, *, x: ir.Value, weight: ir.Value) -> Any:
        shape = known(dimensions(x), "the shape of the rows is not known")
        require(len(shape) > 1, "a vector is multiplied: the kernel takes matrices")
        return op.FusedMatMul(x, weight, transB=1, _domain=MICROSOFT)


def allow_copies(weights: Iterable[ir.Value]) -> None:
    """Mark inputs of a graph, in memory, as weights that may be copied before it runs."""
    for value in weights:
        value.meta[_MARK] = True


class MergedProducts:
    """Products of the same rows -> one product by their weights put together, then Split.

    The first of them writes the product and the Split, the others find them. The weights that are
    inputs of the graph are put together once, by who feeds them.
    """

    def pattern(self, op: Any, x: Any, weight: Any) -> Any:
        return op.FusedMatMul(x, weight, transB=1, _domain=MICROSOFT, _outputs=["y"])

    def rewrite(self, op: Any, *, x: ir.Value, weight: ir.Value, y: ir.Value) -> Any:
        readers = readers_beside(x, producer(y))
        for node in readers:
            if str(weight.name) in node.meta.get(_PARTS, {}):
                return op.Identity(node.meta[_PARTS][str(weight.name)])
        nodes = [node for node in readers if _is_linear(node, x)]
        require(producer(y) in nodes, "the weight may not be copied")
        if len(nodes) == 1:
            return None
        shape = known(sizes(x), "the number of rows is not known")
        rows = int(np.prod(shape[:-1]))
        require(rows <= MOST_ROWS, f"{rows} rows: above {MOST_ROWS}, each product is large enough")
        weights = [node.inputs[1] for node in nodes]
        require(len({id(w) for w in weights}) == len(weights), "two products have the same weight")
        columns = [(sizes(w) or (0,))[0] for w in weights]
        merged = typed(op.Concat(*weights, axis=0), weight, (sum(columns), shape[-1]))
        product = op.FusedMatMul(x, merged, transB=1, _domain=MICROSOFT)
        product = typed(product, y, (*shape[:-1], sum(columns)))
        cuts = vector(op, *columns)
        parts = op.Split(product, cuts, axis=len(shape) - 1, _outputs=len(columns))
        for part, node in zip(parts, nodes, strict=True):
            typed(part, node.outputs[0])
        names = [str(w.name) for w in weights if w is not None]
        producer(product).meta[_PARTS] = dict(zip(names, parts, strict=True))
        return parts[weights.index(weight)]


def _is_linear(node: ir.Node, x: ir.Value) -> bool:
    """Whether a node multiplies rows by a weight that may be copied, as torch stores it."""
    if node.op_identifier() != (MICROSOFT, "FusedMatMul", "") or node.inputs[0] is not x:
        return False
    weight, attributes = node.inputs[1], node.attributes
    if weight is None or sizes(weight, rank=2) is None:
        return False
    copied = constant(weight) is not None or _MARK in weight.meta
    return copied and set(attributes) == {"transB"} and attributes.get_int("transB", 0) == 1
