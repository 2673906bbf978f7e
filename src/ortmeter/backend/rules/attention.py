"""Attention of the standard, recognized in the products that eager attention computes."""

from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from ortmeter.backend.rules.rule import BF16, F16, F32, Rule
from ortmeter.backend.rules.values import (
    SWAP,
    copy_type,
    dimensions,
    from_operator,
    read_once,
    scalar,
)

__all__ = ["RULES", "EagerAttention", "Scores", "read_scores"]

# Exchanges the positions and the features of the keys.
_TRANSPOSED = (0, 1, 3, 2)
# The same after SWAP.
_MERGED = (0, 2, 3, 1)


class EagerAttention:
    """``softmax(q @ transpose(k) [* scale] [+ mask]) @ v`` -> Attention.

    Scores that are capped stay: on CPU the kernel takes longer to cap than the nodes do.

    Parameters
    ----------
    widened : bool
        Whether the weights of 16 bits are computed in 32 bits, as the kernel does.
    """

    def __init__(self, *, widened: bool) -> None:
        self.widened = widened

    def pattern(self, op: Any, scores: Any, v: Any) -> Any:
        """The axes are the batch, the heads, the positions and the features of a head."""
        wide = op.Cast(scores, to=int(F32)) if self.widened else scores
        weights = op.Softmax(wide, axis=-1)
        narrow = op.Cast(weights, _allow_other_attributes=True) if self.widened else weights
        return op.MatMul(narrow, v)

    def rewrite(self, op: Any, *, scores: ir.Value, v: ir.Value) -> Any:
        """Split the keys into heads again when the transposition was merged."""
        found = read_scores(scores)
        if found is None or found.scale <= 0 or found.softcap:
            return None
        queries, keys, values = (dimensions(x, rank=4) for x in (found.q, found.k, v))
        if queries is None or keys is None or values is None or found.q.dtype != v.dtype:
            return None
        if found.merged:
            keys = tuple(keys[axis] for axis in SWAP)
        if not queries[:2] == keys[:2] == values[:2]:
            return None
        if found.mask and not _covers(dimensions(found.mask), (*queries[:3], keys[2])):
            return None
        k = _swapped(op, found.k, keys) if found.merged else found.k
        inputs = (found.q, k, v, found.mask) if found.mask else (found.q, k, v)
        return op.Attention(*inputs, scale=found.scale)


@dataclass(frozen=True)
class Scores:
    """What the scores of an attention are computed from.

    Parameters
    ----------
    q, k : onnx_ir.Value
        Queries and keys.
    merged : bool
        Whether the transposition of the keys is merged with that of their split into heads.
    scale : float
        Factor of the products.
    softcap : float
        Bound of the scaled products, 0 for none.
    mask : onnx_ir.Value, optional
        What is added at the end.
    """

    q: ir.Value
    k: ir.Value
    merged: bool
    scale: float = 1.0
    softcap: float = 0.0
    mask: ir.Value | None = None


def read_scores(scores: ir.Value) -> Scores | None:
    """Tell what scores are computed from, by nodes whose results nothing else reads.

    Parameters
    ----------
    scores : onnx_ir.Value
        What a softmax is applied to.

    Returns
    -------
    Scores or None
        None when they are no scores of an attention.
    """
    for inner, mask in _operands(scores, "Add"):
        found = _capped(inner)
        if found is not None:
            return replace(found, mask=mask)
    return _capped(scores)


def _capped(scores: ir.Value) -> Scores | None:
    for bounded, cap in _operands(scores, "Mul"):
        tanh = _inner(bounded, "Tanh")
        for inner, divisor in _operands(tanh.inputs[0], "Div") if tanh else ():
            found, limit = _scaled(inner), scalar(cap)
            if found is not None and limit and limit > 0 and scalar(divisor) == limit:
                return replace(found, softcap=limit)
    return _scaled(scores)


def _scaled(scores: ir.Value) -> Scores | None:
    for operator, power in (("Mul", 1), ("Div", -1)):
        for inner, scale in _operands(scores, operator):
            found, factor = _product(inner), scalar(scale)
            if found is not None and factor:
                return replace(found, scale=factor**power)
    return _product(scores)


def _product(scores: ir.Value) -> Scores | None:
    for queries, keys in _operands(scores, "MatMul"):
        transpose = _inner(keys, "Transpose")
        perm = tuple(transpose.attributes["perm"].as_ints()) if transpose else ()
        if transpose and transpose.inputs[0] and perm in {_TRANSPOSED, _MERGED}:
            return Scores(queries, transpose.inputs[0], perm == _MERGED)
    return None


def _inner(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Give the node that computes a value which nothing else reads."""
    return from_operator(value, op_type) if value is not None and read_once(value) else None


def _operands(value: ir.Value | None, op_type: str) -> list[tuple[ir.Value, ir.Value]]:
    """Give the inputs of the node that computes a value, in both orders when it has no order."""
    node = _inner(value, op_type)
    first, second = node.inputs if node else (None, None)
    if first is None or second is None:
        return []
    both = [(first, second), (second, first)]
    return both if op_type in {"Add", "Mul"} else both[:1]


def _swapped(op: Any, value: ir.Value, shape: tuple[int | str, ...]) -> ir.Value:
    swapped: ir.Value = op.Transpose(value, perm=SWAP)
    copy_type(swapped, value, shape)
    return swapped


def _covers(mask: tuple[int | str, ...] | None, scores: tuple[int | str, ...]) -> bool:
    """Tell whether a mask needs no broadcast but over the batch and the heads.

    A mask with fewer columns than keys is padded by Attention, not broadcast.
    """
    if mask is None or mask[-2:] != scores[-2:] or len(mask) > len(scores):
        return False
    return all(dim in {1, size} for dim, size in zip(mask[-3::-1], scores[-3::-1], strict=False))


_TYPES = {"cpu": frozenset({F32, F16}), "cuda": frozenset({F32, F16, BF16})}

#: The rules of this family.
RULES = (
    Rule(
        "EagerAttention",
        "default",
        tuple(EagerAttention(widened=widened) for widened in (False, True)),
        _TYPES,
        opset=23,
    ),
)
