"""Kinds of operators, of ONNX Runtime and of torch."""

import functools
import re
from collections.abc import Mapping

from ortmeter.operators.registry import known_operators

__all__ = ["KINDS", "kind_of"]

#: Kinds of operators, with what the names have of those that no family declares, as those of torch;
#: the first that fits wins.
KINDS: Mapping[str, str] = {
    "convolution": r"conv(?!ert)",
    "trees": r"treeensemble",
    "attention": r"attention|softmax|bmm",
    "matrix product": r"matmul|gemm|linear|addmm|::mm$",
    "normalization": r"norm",
    "movement": (
        r"concat|cat$|reshape|transpose|reorder|split|chunk|slice|select|shape|view|cast|::to$|"
        r"gather|squeeze|flatten|expand|permute|contiguous|copy|clone|identity|memcpy"
    ),
    "elementwise": (
        r"elu|silu|swish|sigmoid|tanh|erf|exp|log|sqrt|add|sub|mul|div|pow|neg|abs|clip|clamp|where"
    ),
    "other": "",
}


def kind_of(operator: str, *, computed: bool = False) -> str:
    """Say of which kind an operator is.

    Parameters
    ----------
    operator : str
        ``aten::linear`` or ``MatMul``.
    computed : bool
        Whether no input is a constant: such a product is one of attention.

    Returns
    -------
    str
        One of :data:`KINDS`.

    Examples
    --------
    >>> kind_of("aten::batch_norm"), kind_of("FusedConv"), kind_of("MatMul", computed=True)
    ('normalization', 'convolution', 'attention')
    """
    name = operator.lower()
    guesses = (kind for kind, names in KINDS.items() if re.search(names, name))
    kind = _declared().get(operator) or next(guesses)
    return "attention" if kind == "matrix product" and computed else kind


@functools.cache
def _declared() -> Mapping[str, str]:
    return {operator.name: operator.kind for operator in known_operators()}
