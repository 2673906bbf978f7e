"""Operators that ONNX lacks, beside the operators of ONNX that they stand for, not optimized."""

import dataclasses
import importlib

import numpy as np
import onnxruntime as ort
import pytest
from later_opsets import outputs_of

from ortmeter.observatory.catalogue import catalogue

_SPLIT = "N = Constant<value_ints = [{0},{0},{0}]>()"
_DIGITS = (
    "M = Constant<value = uint8 {{15}}>() K = Constant<value = uint8 {{4}}>() "
    'L = BitwiseAnd(W, M) H = BitShift<direction = "RIGHT">(W, K) '
    "A = Constant<value_ints = [3]>() LA = Unsqueeze(L, A) HA = Unsqueeze(H, A) "
    "D = Concat<axis = 3>(LA, HA)"
)
_PRODUCT = (
    "DS = Constant<value_ints = [1024,{0},{1}]>() SS = Constant<value_ints = [1024,{0},1]>() "
    "WS = Constant<value_ints = [1024,512]>() E = Constant<value_float = {2}>() "
    "R = Reshape(D, DS) C = Cast<to = 1>(R) Z = Sub(C, E) SF = Cast<to = 1>(S) "
    "SR = Reshape(SF, SS) V = Mul(Z, SR) VR = Reshape(V, WS) VT = Transpose(VR) "
    "XF = Cast<to = 1>(X) P = MatMul(XF, VT) Y = CastLike(P, X)"
)
_READ = "{0}f = DequantizeLinear({0}, S{0}, Z{0})"
_X, _W, _A = map(_READ.format, "XWA")
_WRITE = "Y = QuantizeLinear(R, SY, ZY)"
_HEADS = "q_num_heads = 8, kv_num_heads = {}"
_PAST = f"Y, PK, PV = Attention<{_HEADS.format(2)}>({{}}, V, , A, B)"
_ANGLES = "I = Constant<value_ints = [255]>() O = Constant<value_ints = [0]>() J = Unsqueeze(I, O)"
_ROOT = (
    "A = Constant<value_ints = [-1]>() E = Constant<value_float = 1e-12>() Q = Mul(T, T) "
    "M = ReduceMean(Q, A) P = Add(M, E) R = Sqrt(P) D = Div(T, R) Y = Mul(D, S)"
)

# Start of the name of cases -> nodes, in the opset that has them all.
_OPSET = 23
_STANDS_FOR = {
    # activations
    "Gelu-contrib": (
        "R = Constant<value_float = 1.4142135>() O = Constant<value_float = 1.0>() "
        "H = Constant<value_float = 0.5>() A = Div(X, R) E = Erf(A) P = Add(E, O) M = Mul(X, P) "
        "Y = Mul(M, H)"
    ),
    "QuickGelu-f": (
        "K = Constant<value_float = 1.702>() A = Mul(X, K) G = Sigmoid(A) Y = Mul(X, G)"
    ),
    "FastGelu-f": 'Y = Gelu<approximate = "tanh">(X)',
    "BiasGelu": "A = Add(X, B) Y = Gelu(A)",
    # products
    "FusedMatMul": (
        "V = Transpose<perm = [0,1,3,2]>(Z) P = MatMul(X, V) K = Constant<value_float = 0.125>() "
        "Y = Mul(P, K)"
    ),
    "FusedGemm": "P = Gemm<transB = 1>(X, W, B) Y = Relu(P)",
    "CDist": (
        "I = Constant<value_ints = [1]>() J = Constant<value_ints = [0]>() "
        "K = Constant<value_ints = [2]>() A = Unsqueeze(X, I) B = Unsqueeze(Z, J) D = Sub(A, B) "
        "Y = ReduceL2<keepdims = 0>(D, K)"
    ),
    **{
        f"MatMulNBits-4-bits-by-{block}": f"{_DIGITS} {_PRODUCT}".format(512 // block, block, 8.0)
        for block in (16, 32, 64, 128, 256)
    },
    "MatMulNBits-8-bits-by-32": f"D = Identity(W) {_PRODUCT}".format(16, 32, 128.0),
    # attention
    "RotaryEmbedding-contrib-halves": "Y = RotaryEmbedding<interleaved = 0>(X, C, S, I)",
    "RotaryEmbedding-contrib-interleaved": "Y = RotaryEmbedding<interleaved = 1>(X, C, S, I)",
    "GroupQueryAttention-64-rows": (
        f"Y, PK, PV = Attention<{_HEADS.format(2)}, is_causal = 1>(Q, K, V)"
    ),
    "GroupQueryAttention-one-row-after-255-f": _PAST.format("Q, K"),
    "GroupQueryAttention-one-row-after-255-rotary": (
        f"{_ANGLES} QR = RotaryEmbedding<num_heads = 8>(Q, C, S, J) "
        f"KR = RotaryEmbedding<num_heads = 2>(K, C, S, J) {_PAST.format('QR, KR')}"
    ),
    "MultiHeadAttention-causal-with-bias": (
        f"{_SPLIT.format(512)} QB, KB, VB = Split(B, N) QA = Add(Q, QB) KA = Add(K, KB) "
        f"VA = Add(V, VB) Y = Attention<{_HEADS.format(8)}, is_causal = 1>(QA, KA, VA)"
    ),
    "Attention-contrib": (
        f"P = MatMul(X, W) A = Add(P, B) {_SPLIT.format(256)} Q, K, V = Split<axis = -1>(A, N) "
        "Y = Attention<q_num_heads = 4, kv_num_heads = 4>(Q, K, V)"
    ),
    # normalizations
    "EmbedLayerNormalization": (
        "A = Gather(W, I) C = Gather(Q, J) D = Add(A, P) E = Add(C, D) "
        "Y = LayerNormalization<epsilon = 1e-12>(E, G, B)"
    ),
    "SkipLayerNormalization-128-rows": (
        "A = Add(X, Z) D = Add(A, C) Y = LayerNormalization<epsilon = 1e-12>(D, S, B)"
    ),
    "SkipLayerNormalization-one-row": (
        "A = Add(X, Z) Y = LayerNormalization<epsilon = 1e-12>(A, S)"
    ),
    "SkipSimplifiedLayerNormalization": f"T = Add(X, Z) {_ROOT}",
    # integers
    "DynamicQuantizeMatMul": (
        "Q, S, Z = DynamicQuantizeLinear(X) Xf = DequantizeLinear(Q, S, Z) "
        f"{_W} P = MatMul(Xf, Wf) Y = Add(P, B)"
    ),
    "MatMulIntegerToFloat": f"{_X} {_W} P = MatMul(Xf, Wf) Y = Add(P, B)",
    "QGemm": (
        f"{_X} {_W} P = Gemm<transB = 1>(Xf, Wf) Cf = Cast<to = 1>(C) K = Mul(SX, SW) "
        f"D = Mul(Cf, K) R = Add(P, D) {_WRITE}"
    ),
    "QLinearAdd": f"{_X} {_A} R = Add(Xf, Af) {_WRITE}",
    "QLinearMul": f"{_X} {_A} R = Mul(Xf, Af) {_WRITE}",
    "QLinearSigmoid": f"{_X} R = Sigmoid(Xf) {_WRITE}",
    "QLinearSoftmax": f"{_X} R = Softmax<axis = 1>(Xf) {_WRITE}",
    "QLinearGlobalAveragePool": f"{_X} R = GlobalAveragePool(Xf) {_WRITE}",
    "QLinearAveragePool": (
        f"{_X} R = AveragePool<kernel_shape = [3,3], pads = [1,1,1,1]>(Xf) {_WRITE}"
    ),
    "QLinearConcat": (
        f"{_X} Af = DequantizeLinear(A, SY, ZY) R = Concat<axis = 1>(Xf, Af) {_WRITE}"
    ),
    "NhwcMaxPool": (
        "A = Transpose<perm = [0,3,1,2]>(X) "
        "M = MaxPool<kernel_shape = [3,3], strides = [2,2]>(A) Y = Transpose<perm = [0,2,3,1]>(M)"
    ),
}
_CONTRIBUTED = [name for name, case in catalogue().items() if "com.microsoft" in case.body]
_COMPARED = [name for name in _CONTRIBUTED if not name.startswith("Inverse")]
# Of the largest output. Sums of products that are rounded to int8 first are apart.
_TOLERANCES = {"float16": 4e-3, "float32": 1e-5, "int8-sums": 1e-2}


def _run(case, level="ORT_ENABLE_ALL"):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    return list(outputs_of(case, options).values())


def _difference(got, expected):
    """Return the largest difference: in codes, or as a share of the largest output."""
    assert got.shape == expected.shape
    error = np.abs(got.astype(float) - expected.astype(float)).max()
    return error if got.dtype.kind in "iu" else error / np.abs(expected.astype(float)).max()


def _limit(name, got):
    if got.dtype.kind in "iu":
        return 0 if "MaxPool" in name else 1
    return _TOLERANCES["int8-sums" if "int8-sums" in name else got.dtype.name]


def test_each_contributed_operator_is_compared_once():
    found = {name: [key for key in _STANDS_FOR if name.startswith(key)] for name in _COMPARED}
    assert not {name: keys for name, keys in found.items() if len(keys) != 1}
    assert {key for keys in found.values() for key in keys} == {*_STANDS_FOR}


@pytest.mark.parametrize("name", _COMPARED)
def test_an_operator_gives_what_it_stands_for(name):
    case = catalogue()[name]
    body = next(body for key, body in _STANDS_FOR.items() if name.startswith(key))
    got = _run(case)
    expected = _run(dataclasses.replace(case, body=body, opset=_OPSET), "ORT_DISABLE_ALL")
    for one, other in zip(got, expected, strict=True):
        limit = _limit(name, one)
        assert _difference(one, other) <= limit
        # Outputs that differ are told apart.
        assert _difference(one, np.roll(other, 1)) > limit


def test_inverse():
    case = catalogue()["Inverse-f32-L1"]
    (got,) = _run(case)
    x = case.feeds()["X"].astype(float)
    residual = np.abs(x @ got - np.eye(8)).max()
    assert residual <= 1e-5 * np.linalg.cond(x).max()


def _useless(output):
    """Say why an output would hide errors."""
    if not np.isfinite(output.astype(float)).all():
        return "not finite"
    if output.size > 1 and np.ptp(output.astype(float)) == 0:
        return "constant"
    if output.dtype in (np.int8, np.uint8) and output.size > 1:
        limits = np.iinfo(output.dtype)
        if np.isin(output, (limits.min, limits.max)).mean() > 0.1:
            return "saturated"
        if len(np.unique(output)) < 30:
            return "of few values"
    return ""


_OF_NETWORKS = ("reductions", "products", "layers", "attention", "quantized", "learning")


@pytest.mark.parametrize("module", _OF_NETWORKS)
def test_outputs_are_worth_a_comparison(module):
    cases = importlib.import_module(f"ortmeter.observatory.catalogue.{module}").CASES
    found = {case.name: [*map(_useless, _run(case))] for case in cases}
    assert not {name: why for name, why in found.items() if any(why)}


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (np.float32([1, np.nan]), "not finite"),
        (np.zeros(4), "constant"),
        (np.uint8([0] * 20 + [*range(80)]), "saturated"),
        (np.uint8([1, 2, 3] * 10), "of few values"),
        (np.arange(100, dtype=np.uint8), ""),
    ],
)
def test_useless_outputs_are_found(output, why):
    assert _useless(output) == why
