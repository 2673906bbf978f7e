"""Layouts: a Reshape that changes nothing, weights as torch stores them."""

from typing import Any

import onnx_ir as ir

from ortmeter.backend.rules.graph_values import dimensions, input_of
from ortmeter.backend.rules.rule import MICROSOFT, known, require


class SameShape:
    """A Reshape that gives the shape that its input has, or had before a Reshape -> nothing."""

    def pattern(self, op: Any, x: Any, shape: Any) -> Any:
        return op.Reshape(x, shape, _outputs=["y"])

    def rewrite(self, op: Any, *, x: ir.Value, y: ir.Value, **_: ir.Value) -> Any:
        shape = dimensions(y)
        for source in (x, input_of(x, "Reshape")):
            if shape is not None and dimensions(source) == shape:
                return op.Identity(source)
        return None


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
