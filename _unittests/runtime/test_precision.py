"""Conversions to few bits."""

import logging
import os
from collections import Counter

import numpy as np
import onnx
import pytest
from fakes import OVERFLOWS

from ortmeter.dtypes import numpy_dtype
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime import precision
from ortmeter.runtime.models import freeze_inputs, layer_stack, sample_cnn
from ortmeter.runtime.precision import PRECISIONS, convert_precision, cpu_instructions, grids_of
from ortmeter.runtime.sessions import make_session, optimized_model

MODEL = freeze_inputs(*layer_stack("MatMul", [64], [64, 64], 1))
FEEDS = {"A0": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)}
(WEIGHT,) = map(onnx.numpy_helper.to_array, MODEL.graph.initializer)


def types_of(model):
    return Counter(tensor.data_type for tensor in model.graph.initializer)


@pytest.mark.parametrize("name", [n for n in PRECISIONS if n != "bfloat16"])
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


def test_bfloat16_rounds_the_weights_once():
    converted = convert_precision(MODEL, "bfloat16")
    (got,) = map(onnx.numpy_helper.to_array, converted.graph.initializer)
    assert got.dtype == numpy_dtype("bfloat16")
    assert np.array_equal(got, WEIGHT.astype(numpy_dtype("bfloat16")))
    casts = [n.attribute[0].i for n in converted.graph.node if n.op_type == "Cast"]
    assert sorted(casts) == [onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16]
    onnx.checker.check_model(converted)


def test_what_a_calibration_warns_of_is_counted(capfd):
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    for rank in range(30):
        model.graph.initializer.add(name=f"unused{rank}", data_type=1, dims=[1], float_data=[1])
    with pytest.warns(UserWarning, match=r"^ONNX Runtime warned: 30 like .Removing initi") as told:
        convert_precision(model, "QDQ U8S8", [FEEDS])
    assert len(told) == 1
    assert "W:onnxruntime" not in capfd.readouterr().err


def test_other_lines_of_the_standard_error_are_kept(capfd):
    with precision.silenced():
        os.write(2, b"one\ntwo")
    assert capfd.readouterr().err == "one\ntwo"


@pytest.mark.parametrize(
    ("name", "operator"),
    [("QDQ U8S8", "QLinearMatMul"), ("dynamic U8S8", "DynamicQuantizeMatMul")],
)
def test_the_kernels_are_those_of_8_bits(name, operator):
    converted = convert_precision(MODEL, name, [FEEDS])
    nodes = optimized_model(converted, provider="cpu").graph.node
    assert operator in {node.op_type for node in nodes}


@pytest.mark.parametrize(
    ("name", "weights"),
    [("QOperator U8S8", onnx.TensorProto.INT8), ("QOperator U8U8", onnx.TensorProto.UINT8)],
)
def test_the_types_are_those_of_the_name(name, weights):
    converted = convert_precision(MODEL, name, [FEEDS])
    sizes = {t.name: (t.data_type, list(t.dims)) for t in converted.graph.initializer}
    assert (weights, [64, 64]) in sizes.values()


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


def test_channels_have_their_own_scales():
    for form in ("QDQ", "QOperator"):
        sizes = [
            max(t.dims[0] for t in converted.graph.initializer if len(t.dims) == 1)
            for name in ("U8S8", "channels")
            if (converted := convert_precision(MODEL, f"{form} {name}", [FEEDS] * 2))
            and any(len(t.dims) == 1 for t in converted.graph.initializer)
        ]
        assert sizes[-1] == 64


def test_what_is_not_accepted_is_refused():
    with pytest.raises(InvalidArgumentError, match="precision='int8'. Accepted: float16, "):
        convert_precision(MODEL, "int8")
    with pytest.raises(InvalidArgumentError, match="'QDQ U8S8' without samples"):
        convert_precision(MODEL, "QDQ U8S8")
    with pytest.raises(InvalidArgumentError, match="'weights 4 bits': nothing to convert"):
        convert_precision(sample_cnn(size=8), "weights 4 bits")
    with pytest.raises(ModelError):
        convert_precision("no model", "float16")


def test_a_model_that_has_the_operators_already_is_converted():
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[4] X) => (float[4] Z)
    { Y = Cast<to = 1>(X)  Z = Abs(Y) }"""
    assert len(convert_precision(text, "float16").graph.node) > 2


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
        (("avx2", "fma"), [False, False, False, False]),
        (("avx512_vnni", "avx512_bf16"), [True, False, True, False]),
        (("amx_int8", "amx_bf16", "avx_vnni", "avx512_fp16"), [True, True, True, True]),
        (("asimd", "asimddp", "i8mm"), [True, True, False, False]),
    ],
)
def test_instructions_are_read_from_the_flags(monkeypatch, flags, expected):
    monkeypatch.setattr(precision, "cpu_flags", lambda: flags)
    assert list(cpu_instructions().values()) == expected


@pytest.mark.parametrize(
    ("name", "grids"),
    [
        ("float16", ("float16",) * 3),
        ("dynamic channels", (8, 8, None)),
        ("QOperator S8S8", (8, 8, 8)),
        ("weights 8 bits int8", (8, 8, None)),
        ("weights 4 bits", (None, 4, None)),
    ],
)
def test_grids(name, grids):
    assert grids_of(name) == grids
