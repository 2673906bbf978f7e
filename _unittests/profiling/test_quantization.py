import onnx
import pytest

from ortmeter.profiling.quantization import REASONS, float_operators

# Names say what each node is; X and Z are quantized, F and G are in float.
IN = "[from] F = DequantizeLinear (X, s)"
WEIGHTS = "[weights] G = DequantizeLinear (W, s)"
PRODUCT = "[product] P = MatMul (F, G)"
CASES = {
    "closed": ([IN, WEIGHTS, PRODUCT, "[to] Y = QuantizeLinear (P, s)"], 0, "from weights to"),
    "open": ([IN, WEIGHTS, PRODUCT, "[after] Y = Exp (P)"], 1, "from weights"),
    # A second reader in float: the product cannot be on integers only.
    "two readers": (
        [IN, WEIGHTS, PRODUCT, "[to] Y = QuantizeLinear (P, s)", "[after] E = Exp (P)"],
        1,
        "from weights to",
    ),
    "weights": ([WEIGHTS, "[product] P = MatMul (R, G)", "[after] Y = Exp (P)"], 2, "weights"),
    "sum": (
        [IN, WEIGHTS, "[product] P = Add (F, G)", "[to] Y = QuantizeLinear (P, s)"],
        0,
        "from weights to",
    ),
}


def nodes(*lines):
    text = f"g (int8[4, 4] X, int8[4, 4] W, float[4, 4] R, float s) => (Y) {{ {' '.join(lines)} }}"
    return onnx.parser.parse_graph(text).node


@pytest.mark.parametrize(("lines", "reason", "around"), CASES.values(), ids=CASES)
def test_each_reason(lines, reason, around):
    ((found, (names, conversions)),) = float_operators(nodes(*lines)).items()
    assert found == list(REASONS)[reason]
    assert names == ["product"]
    assert conversions == around.split()


@pytest.mark.parametrize(
    "lines",
    [
        ["[product] Y = MatMul (R, R)"],
        # On integers already.
        ["[product] P = QLinearAdd (X, s, z, W, s, z, s, z)", "[to] Y = DequantizeLinear (P, s)"],
        # A sum in float of one quantized tensor.
        [IN, "[sum] P = Add (F, R)", "[to] Y = QuantizeLinear (P, s)"],
    ],
)
def test_what_has_no_reason_to_be_on_integers(lines):
    assert float_operators(nodes(*lines)) == {}
