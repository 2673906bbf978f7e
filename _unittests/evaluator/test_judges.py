"""Judges that share no code, on the attention of ONNX."""

import numpy as np
import onnx.parser
import pytest

from ortmeter.discrepancy import max_diff
from ortmeter.evaluator import kernels
from ortmeter.evaluator.float64 import exact_feeds, to_float64
from ortmeter.evaluator.judges import agree, doubt_of_node, evaluated, is_suspect

RNG = np.random.default_rng(0)
FEEDS = {name: RNG.standard_normal((1, 2, 3, 4)).astype(np.float32) for name in "QKV"}
FEEDS["M"] = RNG.standard_normal((3, 3)).astype(np.float32)
CAP = 0.5


def attention(mode, opset=23, **options):
    given = ", ".join(f"{name} = {value}" for name, value in options.items())
    shapes = {n: ", ".join(map(str, x.shape)) for n, x in FEEDS.items()}
    inputs = ", ".join(f"float[{shapes[name]}] {name}" for name in "QKVM")
    return onnx.parser.parse_model(f"""<ir_version: 11, opset_import: ["": {opset}]>
        g ({inputs}) => (float[a, b, c, d] Y, float[e, f, g, h] S) {{ [att] Y, , , S = Attention
        <qk_matmul_output_mode = {mode}, {given}> (Q, K, V, M) }}""")


def by_hand(mode, cap=CAP):
    """Follow the figure of ONNX: product, softcap, mask, softmax."""
    q, k, v, mask = (FEEDS[name].astype(np.float64) for name in "QKVM")
    product = q @ np.swapaxes(k, -1, -2) / 2
    capped = cap * np.tanh(product / cap) if cap else product
    shares = np.exp(capped + mask)
    shares /= shares.sum(-1, keepdims=True)
    return shares @ v, (product, capped, capped + mask, shares)[mode]


@pytest.mark.parametrize("opset", [23, 24, 25])
@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("cap", [0.0, CAP])
def test_each_output_of_attention_is_that_of_onnx(mode, opset, cap):
    model = attention(mode, opset, softcap=cap)
    double = to_float64(model)
    found = evaluated(double, exact_feeds(model, double, FEEDS))
    for got, expected in zip(found.outputs.values(), by_hand(mode, cap), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-7)  # of its scale


def test_judges_that_share_no_code(monkeypatch):
    """What onnx.reference has wrong is passed over; were it not known, judges would disagree."""
    model = attention(0, softcap=CAP)
    known = evaluated(model, FEEDS)
    assert (known.name, known.second()) == ("the function in ONNX", None)
    product = by_hand(0)[1].astype(np.float32)
    error = max_diff(product, product + 1)
    assert doubt_of_node(model, FEEDS, "att", error, ("reference",)) == (
        "att has only one judge, the function in ONNX"
    )
    monkeypatch.setattr(kernels, "KNOWN_ERRORS", ())
    first = evaluated(model, FEEDS)
    second = first.second()
    assert (first.name, second.name) == ("onnx.reference", "the function in ONNX")
    assert not agree(first.outputs["S"], second.outputs["S"], error)
    assert agree(first.outputs["Y"], second.outputs["Y"], error)
    assert doubt_of_node(model, FEEDS, "att", error, ("reference",)) == (
        "judges of att disagree, so it is not blamed: onnx.reference and the function in ONNX give "
        "different values"
    )
    assert doubt_of_node(attention(1, softcap=CAP), FEEDS, "att", error, ("reference",)) == ""


@pytest.mark.parametrize(
    ("got", "expected"),
    [([1, 2], False), ([1, 2 + 1e-3], False), ([1, 2.1], True), ([1, np.nan], True)],
)
def test_what_is_more_than_roundings(got, expected):
    assert is_suspect(max_diff(np.float32([1, 2]), np.float32(got))) is expected


@pytest.mark.parametrize(
    ("second", "got", "expected"),
    [
        ([1, 2], [1, 3], True),
        ([1, 2.2], [1, 3], True),
        ([1, 3], [1, 3], False),
        ([1, 2.5], [1, 3], False),
        ([1, np.nan], [1, 3], False),
        ([1, np.nan], [1, np.nan], False),
        ([1, 2 + 1e-7], [1, np.nan], True),
    ],
)
def test_judges_agree_if_they_are_closer_to_each_other(second, got, expected):
    first = np.float64([1, 2])
    error = max_diff(first, np.float64(got))
    assert agree(first, np.float64(second), error) is expected
