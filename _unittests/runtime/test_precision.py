"""Conversions to few bits."""

import logging
import os

import numpy as np
import onnx
import onnxruntime
import pytest
from fakes import OVERFLOWS
from onnx.reference import ReferenceEvaluator

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime import precision
from ortmeter.runtime.models import freeze_inputs, layer_stack, sample_cnn
from ortmeter.runtime.precision import PRECISIONS, convert_precision, cpu_instructions
from ortmeter.runtime.sessions import make_session, optimized_model

MODEL = freeze_inputs(*layer_stack("MatMul", [64], [64, 64], 1))
FEEDS = {"A0": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)}
(WEIGHT,) = map(onnx.numpy_helper.to_array, MODEL.graph.initializer)


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_converted_model_is_close_to_float64(name):
    before = MODEL.SerializeToString()
    options = {"reduce_range": True} if OVERFLOWS and name.endswith("channels") else {}
    converted = convert_precision(MODEL, name, [FEEDS], **options)
    assert MODEL.SerializeToString() == before
    assert converted.ByteSize() < 0.6 * MODEL.ByteSize()
    (got,) = make_session(converted, provider="cpu").run(None, FEEDS)
    assert got.dtype == np.float32
    expected = np.maximum(FEEDS["A0"].astype(float) @ WEIGHT.astype(float), 0)
    error = np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2))
    least, most = (1e-5, 1e-3) if name == "float16" else (1e-3, 0.2 if "4 bits" in name else 0.04)
    assert least < error < most


def test_what_a_calibration_warns_of_is_counted(capfd):
    onnxruntime.set_default_logger_severity(2)  # whatever a test before it asked for
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    model.graph.initializer.add(name="unused", data_type=1, dims=[1], float_data=[1])  # no word
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n" if value.name == "A0" else ""
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 3
    with pytest.warns(UserWarning, match=r"^ONNX Runtime warned: 30 like .Expected shape") as told:
        convert_precision(model, "QDQ U8S8", [FEEDS] * 30)
    assert len(told) == 1
    assert "W:onnxruntime" not in capfd.readouterr().err
    with precision.silenced():
        os.write(2, b"one\ntwo")
    assert capfd.readouterr().err == "one\ntwo"  # which is no warning


@pytest.mark.parametrize(
    ("name", "operator"),
    [("QDQ U8S8", "QLinearMatMul"), ("dynamic U8S8", "DynamicQuantizeMatMul")],
)
def test_the_kernels_are_those_of_8_bits(name, operator):
    converted = convert_precision(MODEL, name, [FEEDS])
    nodes = optimized_model(converted, provider="cpu").graph.node
    assert operator in {node.op_type for node in nodes}


@pytest.mark.parametrize(
    ("name", "kind", "shape"),
    [
        ("QDQ U8S8", onnx.TensorProto.INT8, [64, 64]),
        ("QDQ U8U8", onnx.TensorProto.UINT8, [64, 64]),
        ("QDQ channels", onnx.TensorProto.FLOAT, [64]),  # scales
    ],
)
def test_the_types_and_the_scales_are_those_of_the_name(name, kind, shape):
    converted = convert_precision(MODEL, name, [FEEDS])
    assert (kind, shape) in [(t.data_type, [*t.dims]) for t in converted.graph.initializer]


def scale_of(model):
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    return onnx.numpy_helper.to_array(tensors["A0_scale"]).item()


def test_options_are_those_of_the_tool(tmp_path):
    model = freeze_inputs(*layer_stack("MatMul", [64], [64, 64], 2))
    for rank, node in enumerate(model.graph.node):
        node.name = f"node {rank}"
    feeds = [{"A0": 100 * FEEDS["A0"] ** 5}]  # a few values are far from the others
    ranges = {"calibration_cache_path": tmp_path / "ranges.json"}
    left = convert_precision(model, "QDQ U8S8", feeds, nodes_to_exclude=["node 0"], **ranges)
    assert "W0" in {tensor.name for tensor in left.graph.initializer}
    assert "W1" not in {tensor.name for tensor in left.graph.initializer}
    again = convert_precision(model, "QDQ U8S8", feeds, nodes_to_exclude=["node 0"], **ranges)
    assert again == left
    nearest = {"calibrate_method": "Percentile", "extra_options": {"CalibPercentile": 90}}
    whole, part = (
        scale_of(convert_precision(model, "QDQ U8S8", feeds, **x)) for x in ({}, nearest)
    )
    spread = np.ptp(feeds[0]["A0"]) / 255
    assert whole == pytest.approx(spread, rel=1e-5)
    assert part < spread / 4
    for precision_, options in (
        ("QDQ U8S8", {"calibrate_method": "Median"}),
        ("QDQ U8S8", {"blocks": 3}),
        ("dynamic U8S8", {"calibrate_method": "MinMax"}),
        ("float16", {"nodes_to_exclude": []}),
    ):
        with pytest.raises(InvalidArgumentError, match=f"{precision_!r}, options.*Accepted"):
            convert_precision(model, precision_, feeds, **options)


def test_a_tool_that_fails_is_an_error_of_ours():
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    weight = model.graph.initializer.pop()
    sparse = model.graph.sparse_initializer.add(dims=weight.dims)
    sparse.values.CopyFrom(onnx.numpy_helper.from_array(np.float32([1]), weight.name))
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(np.int64([0]), "places"))
    assert np.isfinite(make_session(model, provider="cpu").run(None, FEEDS)[0]).all()
    with pytest.raises(ModelError, match=r"precision='QDQ U8S8': the tool .* failed: Ass"):
        convert_precision(model, "QDQ U8S8", [FEEDS])


def test_what_is_not_accepted_is_refused():
    with pytest.raises(InvalidArgumentError, match="precision='int8'. Accepted: float16, "):
        convert_precision(MODEL, "int8")
    with pytest.raises(InvalidArgumentError, match="'QDQ U8S8' without samples"):
        convert_precision(MODEL, "QDQ U8S8")
    with pytest.raises(InvalidArgumentError, match="'weights 4 bits': nothing to convert"):
        convert_precision(sample_cnn(size=8), "weights 4 bits")
    with pytest.raises(ModelError):
        convert_precision("no model", "float16")


HEAD = '<ir_version: 8, opset_import: ["": {}]>'
RNG = np.random.default_rng(1)
W, SQUARE = (RNG.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
TO_8_BITS = [n for n in PRECISIONS if n != "float16"]


def written(text, opset=17, **weights):
    model = onnx.parser.parse_model(f"{HEAD.format(opset)} {text}")
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def behind_constants(model):
    for tensor in model.graph.initializer:
        model.graph.node.insert(
            0, onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        )
    del model.graph.initializer[:]
    return model


def error_of(model, name, expected, feeds=FEEDS):
    """Convert, run, and compare with float64; U8S8 overflows on a CPU without VNNI."""
    options = {"reduce_range": True} if OVERFLOWS and name in TO_8_BITS[:-4] else {}
    converted = convert_precision(model, name, [feeds], **options)
    (got,) = make_session(converted, provider="cpu").run(None, feeds)
    return converted, np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2))


def bound(name):
    return 0.2 if "4 bits" in name else 0.05


PLAIN = "g (float[8, 64] A0) => (float[8, 64] Y) {"
X = FEEDS["A0"].astype(float)


@pytest.mark.parametrize("name", TO_8_BITS)
def test_weights_behind_constants_are_converted(name):
    """As in every export of Paddle: they were left in float, or an AttributeError came."""
    model = behind_constants(written(f"{PLAIN} P = MatMul(A0, W)  Y = Relu(P) }}", W=W))
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["unused"], value_float=2.0))
    converted, error = error_of(model, name, np.maximum(X @ W.astype(float), 0))
    assert error < bound(name)
    assert converted.ByteSize() < 0.4 * model.ByteSize()


@pytest.mark.parametrize("name", [n for n in TO_8_BITS if n.startswith(("dynamic", "Q"))])
@pytest.mark.parametrize("second", ["Gemm <transB = 1> (P, W)", "MatMul(P, T)"])
def test_a_shared_weight_has_the_scales_of_each_reader(name, second):
    """The tools gave both the channels of the first, and transposed it for both."""
    large = W * np.geomspace(1, 100, 64, dtype=np.float32)  # channels differ
    model = written(
        f"{PLAIN} P = MatMul(A0, W)  T = Transpose <perm = [1, 0]> (W)  Y = {second} }}", W=large
    )
    expected = X @ large.astype(float) @ large.astype(float).T
    assert error_of(model, name, expected)[1] < 0.05


def test_two_lstm_that_share_their_weights_are_converted():
    w, r = (RNG.uniform(-0.3, 0.3, size).astype(np.float32) for size in ((1, 64, 64), (1, 64, 16)))
    text = """g (float[5, 2, 64] A0) => (float[5, 1, 2, 16] Y) {
      P, Q, S = LSTM <hidden_size = 16> (A0, W, R)  U = LSTM <hidden_size = 16> (A0, W, R)
      Y = Add(P, U) }"""
    feeds = {"A0": RNG.standard_normal((5, 2, 64)).astype(np.float32)}
    model = written(text, W=w, R=r)
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    for name in ("dynamic U8S8", "dynamic channels"):
        assert error_of(model, name, expected, feeds)[1] < 0.1


def with_branch(where):
    """One branch of an If has a product, whose weight is in it, in a Constant, or around it."""
    model = written(
        f"""{PLAIN} M = ReduceMax <keepdims = 0> (A0)  c = Greater(M, zero)
      Y = If (c) <then_branch = a () => (float[8, 64] P) {{ P = MatMul(A0, W) }},
        else_branch = b () => (float[8, 64] N) {{ N = Neg(A0) }}> }}""",
        zero=np.float32(0),
    )
    body = model.graph.node[2].attribute[0].g
    assert body.name == "a"
    tensor = onnx.numpy_helper.from_array(W, "W")
    if where == "constant":
        body.node.insert(0, onnx.helper.make_node("Constant", [], ["W"], value=tensor))
    else:
        (body if where == "body" else model.graph).initializer.append(tensor)
    return model


@pytest.mark.parametrize("where", ["body", "constant", "around"])
@pytest.mark.parametrize("name", ["float16", *TO_8_BITS])
def test_weights_of_a_branch_are_converted(where, name):
    model = with_branch(where)
    converted, error = error_of(model, name, X @ W.astype(float))
    assert 1e-5 < error < bound(name)
    assert converted.ByteSize() < 0.6 * model.ByteSize()


@pytest.mark.parametrize("name", ["QDQ channels", "QDQ U8S8"])
def test_a_weight_of_a_branch_and_of_what_is_around_it(name):
    """Names of both are the same: those of the branch get a prefix."""
    model = with_branch("around")
    model.graph.node.append(onnx.helper.make_node("MatMul", ["Y", "W"], ["Z"]))
    model.graph.node.insert(0, onnx.helper.make_node("MatMul", ["A0", "W"], ["V"]))
    model.graph.node.append(onnx.helper.make_node("Add", ["Z", "V"], ["S"]))
    model.graph.output[0].name = "S"
    w = W.astype(float)
    converted, error = error_of(model, name, X @ w @ w + X @ w)
    assert error < 0.05
    assert converted.ByteSize() < 0.8 * model.ByteSize()


def test_a_branch_inside_a_branch_is_converted_and_reads_what_is_around_it():
    """Here V is read as it is, by an Add, and W in the inner branch by a product."""
    model = written(
        f"""{PLAIN} c = Constant <value = bool {{1}}> ()
      Y = If (c) <then_branch = a () => (float[8, 64] P) {{
          K = Add(A0, V)  U = Identity(c)
          P = If (U) <then_branch = d () => (float[8, 64] Q) {{ R = MatMul(K, W) Q = Add(R, V) }},
            else_branch = e () => (float[8, 64] S) {{ S = Neg(K) }}> }},
        else_branch = b () => (float[8, 64] N) {{ N = Neg(A0) }}> }}""",
        V=W[:8] * 2,
        W=SQUARE,
    )
    expected = (X + 2 * W[:8]) @ SQUARE.astype(float) + 2 * W[:8]
    for name in ("QDQ U8S8", "QDQ channels", "dynamic U8S8"):
        converted, error = error_of(model, name, expected)
        assert error < 0.05
        assert converted.ByteSize() < 0.65 * model.ByteSize()


def test_a_branch_that_no_sample_takes_is_left():
    negative = {"A0": -np.abs(FEEDS["A0"])}
    with pytest.raises(InvalidArgumentError, match=r"nothing to convert in this model: nothing"):
        convert_precision(with_branch("body"), "QDQ U8S8", [negative])


def test_a_weight_of_a_branch_in_another_file_is_converted(tmp_path):
    model = with_branch("body")
    (tensor,) = model.graph.node[2].attribute[0].g.initializer
    (tmp_path / "weights").write_bytes(tensor.raw_data)
    onnx.external_data_helper.set_external_data(tensor, "weights", 0, len(tensor.raw_data))
    tensor.ClearField("raw_data")
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    assert error_of(tmp_path / "model.onnx", "dynamic U8S8", X @ W.astype(float))[1] < 0.05


@pytest.mark.parametrize("bias", [W[:1], np.float32(3), np.float32([[-2]])])
@pytest.mark.parametrize("opset", [7, 12, 17])
def test_a_bias_of_any_shape_goes_with_scales_per_channel(bias, opset):
    """It was *the truth value of an array is ambiguous*; scales per channel need opset 13."""
    model = written(f"{PLAIN} Y = Gemm <transB = 1> (A0, W, C) }}", opset, W=W, C=bias)
    converted, error = error_of(model, "QDQ channels", X @ W.T.astype(float) + bias)
    assert error < 0.05
    assert [o.version for o in converted.opset_import if not o.domain] == [max(opset, 13)]


def test_an_opset_that_cannot_be_raised_is_said(monkeypatch):
    def refuse(_model, _target):
        raise RuntimeError("no adapter for Upsample")

    monkeypatch.setattr("onnx.version_converter.convert_version", refuse)
    model = written(f"{PLAIN} Y = MatMul(A0, W) }}", 11, W=W)
    assert convert_precision(model, "dynamic U8S8")  # which needs no other
    with pytest.raises(ModelError, match="needs opset 13, .* opset 11: no adapter for Upsample"):
        convert_precision(model, "QDQ channels", [FEEDS])


def test_weights_that_are_inputs_are_constants_unless_a_sample_feeds_them():
    text = "g (float[8, 64] A0, float[64, 64] W) => (float[8, 64] Y) { Y = MatMul(A0, W) }"
    model = written(text, W=W)
    model.ir_version = 3
    converted, error = error_of(model, "float16", X @ W.astype(float))
    assert error < 1e-3
    assert [value.name for value in converted.graph.input] == ["A0"]
    assert converted.ByteSize() < 0.6 * model.ByteSize()
    fed = convert_precision(model, "float16", [{**FEEDS, "W": W}])
    assert {value.name for value in fed.graph.input} == {"A0", "W"}


@pytest.mark.parametrize("kind", ["dynamic U8S8", "QDQ U8S8"])
def test_a_model_that_is_quantized_already_is_refused(kind):
    """It was a KeyError, an AssertionError, or a model that ONNX Runtime refuses."""
    text = f"{PLAIN} P = MatMul(A0, W)  Q = Relu(P)  Y = MatMul(Q, V) }}"
    quantized = convert_precision(written(text, W=W, V=SQUARE), kind, [FEEDS])
    for name in TO_8_BITS:
        with pytest.raises(
            (ModelError, InvalidArgumentError), match="is already quantized .*Linear"
        ):
            convert_precision(quantized, name, [FEEDS])
    if kind == "QDQ U8S8":  # scales of 16 bits came with opset 19
        (got,) = make_session(convert_precision(quantized, "float16"), provider="cpu").run(
            None, FEEDS
        )
        (expected,) = make_session(quantized, provider="cpu").run(None, FEEDS)
        assert np.abs(got - expected).max() < 0.02 * np.abs(expected).max()
    else:
        with pytest.raises(ModelError, match="'float16': this model is already quantized"):
            convert_precision(quantized, "float16")


def test_what_divides_by_more_than_float16_has_stays_in_float32():
    """Variances of 1e8, as in a trained detector of text, were clamped to 65504."""
    text = """g (float[1, 2, 4, 4] A0) => (float[1, 2, 4, 4] Y) {
      P = Mul(A0, large)  Q = BatchNormalization(P, S, B, M, V)  R = Relu(Q)  Y = Div(R, D) }"""
    variance, large = np.float32([1e8, 4e8]), np.float32(3e4)
    ones = np.ones(2, np.float32)
    weights = {"large": large, "S": ones, "B": 0 * ones, "M": 0 * ones, "V": variance}
    model = written(text, **weights, D=np.float32(262144))
    feeds = {"A0": RNG.uniform(0, 2, (1, 2, 4, 4)).astype(np.float32)}
    expected = feeds["A0"].astype(float) * 3e4 / np.sqrt(variance.reshape(2, 1, 1) + 1e-5) / 262144
    assert error_of(model, "float16", expected, feeds)[1] < 2e-3


def test_the_log_of_the_tools_is_silent_and_comes_back(caplog):
    before = logging.root.manager.disable
    with caplog.at_level(logging.INFO):
        convert_precision(MODEL, "QDQ U8S8", [FEEDS])
        assert caplog.messages == []
        logging.getLogger().warning("back")
    assert caplog.messages == ["back"]
    assert logging.root.manager.disable == before


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), [None, None, None, None]),
        (("avx512_vnni", "avx512_bf16"), [True, False, True, False]),
        (("amx_int8", "amx_bf16", "avx_vnni", "avx512_fp16"), [True, True, True, True]),
        (("asimd", "asimddp", "i8mm"), [True, True, False, False]),
    ],
)
def test_instructions_are_read_from_the_flags(monkeypatch, flags, expected):
    monkeypatch.setattr(precision, "cpu_flags", lambda: flags)
    assert list(cpu_instructions().values()) == expected
