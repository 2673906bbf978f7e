"""Find the operators of a quantized graph that run in float, and what keeps them from int8.

A quantized graph has conversions around operators in float. ONNX Runtime makes one operator on
integers of an operator and the conversions around it, when it has one for these types.
"""

from collections.abc import Collection, Mapping, Sequence

import onnx

from ortmeter.runtime.graphs import readers_of

__all__ = ["REASONS", "float_operators"]

CONVERSIONS = frozenset(["DequantizeLinear", "QuantizeLinear"])
_PRODUCTS = {"Conv", "ConvTranspose", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul"}
_SUMS = frozenset(["Add", "Mul"])

_CLOSED = "between quantized inputs and a quantized output"
_OPEN = "whose inputs are quantized, and not the output"
_WEIGHTS = "whose weights are dequantized in each run"
#: What keeps an operator in float -> what to try.
REASONS: Mapping[str, str] = {
    _CLOSED: "unsigned activations: quantize_static(activation_type=QuantType.QUInt8)",
    _OPEN: "quantize the output too, so that both conversions can be fused with it",
    _WEIGHTS: "quantize the inputs too (quantize_dynamic or quantize_static), or keep float32",
}


def float_operators(
    nodes: Sequence[onnx.NodeProto],
) -> dict[str, tuple[list[str], list[str]]]:
    """Group the operators in float beside a conversion by what keeps them so.

    Parameters
    ----------
    nodes : sequence of onnx.NodeProto
        Nodes of the graph that ran.

    Returns
    -------
    dict of str to (list of str, list of str)
        For each of :data:`REASONS` that is found, names of the operators, and of the conversions
        around them.

    Examples
    --------
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4, 8] X, int8[8, 8] W, float s) => (float[4, 8] Y) {
    ...   [weights] F = DequantizeLinear (W, s)  [product] Y = MatMul (X, F) }''')
    >>> float_operators(model.graph.node)
    {'whose weights are dequantized in each run': (['product'], ['weights'])}
    """
    made = {o: n for n in nodes if n.op_type == "DequantizeLinear" for o in n.output}
    readers = readers_of(nodes)
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for node in nodes:
        after = [reader for output in node.output for reader in readers[output]]
        if reason := _reason(node, made, {reader.op_type for reader in after}):
            names, around = groups.setdefault(reason, ([], []))
            names.append(node.name)
            around += [made[name].name for name in node.input if name in made]
            around += [reader.name for reader in after if reader.op_type in CONVERSIONS]
    return groups


def _reason(node: onnx.NodeProto, made: Collection[str], after: Collection[str]) -> str | None:
    """Return what keeps a node in float, None when it has nothing to do with conversions."""
    closed = after == {"QuantizeLinear"}
    if node.op_type in _SUMS:
        return _CLOSED if closed and set(node.input) <= set(made) else None
    if node.op_type not in _PRODUCTS or not set(node.input) & set(made):
        return None
    if node.input[0] not in made:
        return _WEIGHTS
    return _CLOSED if closed else _OPEN
