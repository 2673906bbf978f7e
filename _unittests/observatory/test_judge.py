import dataclasses
import math

import numpy as np
import onnx.parser
import pandas as pd

from ortmeter.observatory.accuracy import out_of_bound
from ortmeter.observatory.case import Case
from ortmeter.observatory.judge import Judge, digest
from ortmeter.runtime.providers import resolve_provider

_SCALED = "f32[] S = 0.015625, T[] Z = 128, f32[] R = 0.00390625"


def sqrt(size: int) -> Case:
    return Case("Sqrt", "Y = Sqrt(X)", f"T[{size}] X = positive")


def judge(case: Case) -> Judge:
    return Judge(case.prepared(resolve_provider("cpu")))


def judge_of(case: Case, name: str, values: object) -> Judge:
    """Judge by values written here, alone."""
    made = judge(case)
    made.reference.outputs[name][:] = values
    made.reference = dataclasses.replace(made.reference, evaluation=None)
    return made


def test_infinities_of_the_type_of_the_output_match():
    case = Case("Cast", "Y = Cast<to = 10>(X)", "T[3] X", outputs="f16 Y")
    found = judge_of(case, "Y", [1e5, -1e5, 1])
    wrong = found.errors({"Y": np.float16([np.inf, 65504, 1])})
    assert (wrong["mismatched"], wrong["ulp"]) == (1, 0)


def test_nan_and_shapes_that_differ_are_findings():
    exact = judge(sqrt(4))
    y = exact.reference.outputs["Y"].astype(np.float32)
    for got, count in ((y, 0), (np.where(np.arange(4) == 1, np.nan, y), 1), (y[None], 4)):
        found = exact.errors({"Y": got.astype(np.float32)})
        assert found["mismatched"] == count
        assert len(out_of_bound(pd.DataFrame([found]))) == bool(count)


def test_integers_are_compared_exactly():
    case = Case("ArgMax", "Y = ArgMax<axis = 1, keepdims = 0>(X)", "T[6,5] X", outputs="i64 Y")
    exact = judge(case)
    expected = np.argmax(case.feeds()["X"], axis=1)
    for got, told in (
        (expected, [0, 0, 0]),
        (expected + (np.arange(6) == 2), [1, math.inf, 0.166667]),
    ):
        found = exact.errors({"Y": got})
        assert [found[name] for name in ("largest", "bound", "differing")] == told
    # float64 does not tell these apart
    large = np.int64([2**53 + 1, 2**62 + 1])
    exact = judge_of(Case("Abs", "Y = Abs(X)", "T[2] X", type="i64"), "Y", large)
    assert [exact.errors({"Y": large - k})["bound"] for k in (0, 1)] == [0, math.inf]


def test_a_quantized_result_may_be_off_by_one():
    case = Case(
        "QLinearSigmoid", "Y = com.microsoft.QLinearSigmoid(X, S, Z, R, Z)",
        f"T[8] X, {_SCALED}", "", "u8",
    )  # fmt: skip
    exact = judge(case)
    x = (case.feeds()["X"].astype(np.float64) - 128) / 64
    codes = np.clip(np.rint(256 / (1 + np.exp(-x))) + 128, 0, 255).astype(np.uint8)
    moved = [np.where(codes < 200, codes + k, codes - k).astype(np.uint8) for k in range(3)]
    assert [exact.errors({"Y": y})["bound"] for y in moved] == [0, 1, 2]


def test_a_quotient_is_off_by_one_near_the_middle_of_two_integers_only():
    case = Case(
        "QuantizeLinear", "Y = QuantizeLinear(X, S, Z)",
        "f32[4] X = 0.3 0.5 1.5000001 -2.2, f32[] S = 1, T[] Z = 128", "", "u8",
    )  # fmt: skip
    exact = judge(case)
    codes = np.uint8([128, 128, 130, 126])  # halves to even
    assert exact.errors({"Y": codes})["bound"] == 0
    assert exact.errors({"Y": codes + np.uint8([0, 1, 0, 0])})["bound"] == 1
    assert exact.errors({"Y": codes - np.uint8([0, 0, 1, 0])})["bound"] == 1
    assert exact.errors({"Y": codes + np.uint8([0, 0, 0, 1])})["bound"] == math.inf  # truncated


def test_the_order_of_equal_or_unsorted_elements_does_not_count():
    case = Case(
        "TopK", "Y, I = TopK<axis = 1, sorted = 0>(X, K)", "T[4,9] X, i64[1] K = 3",
        outputs="T Y, i64 I",
    )  # fmt: skip
    exact = judge(case)
    x = case.feeds()["X"]
    places = np.argsort(-x, axis=1, kind="stable")[:, :3]
    shuffled = places[:, [1, 2, 0]]
    right = {"Y": np.take_along_axis(x, shuffled, 1), "I": shuffled}
    assert exact.errors(right)["bound"] == 0
    wrong = {**right, "I": shuffled[:, ::-1]}
    assert exact.errors(wrong)["bound"] == math.inf


def test_without_reference_bits_are_still_compared():
    text = """<ir_version: 8, opset_import: ["": 17, "unknown": 1]>
        g (float[2] X) => (float[2] Y) { Y = unknown.Something(X) }"""
    variant = sqrt(2).prepared(resolve_provider("cpu"))
    exact = Judge(type(variant)(onnx.parser.parse_model(text), variant.feeds, variant.settings, {}))
    found = exact.errors({"Y": np.ones(2, np.float32)})
    assert found["reference"] == "none"
    assert math.isnan(found["ulp"])
    assert math.isnan(found["bound"])
    assert found["bits"] == digest({"Y": np.ones(2, np.float32)})


def test_digests_tell_bits_types_shapes_and_names_apart_but_not_nan():
    one = np.float32([1, np.nan])
    other_nan = one.view(np.uint32) ^ np.uint32([0, 1])
    assert digest({"Y": one}) == digest({"Y": other_nan.view(np.float32)})
    big = np.array([2**62, 2**62 + 1])
    others = [one[::-1], one[None], one.astype(np.float64), one.view(np.int32), big, big[::-1]]
    assert len({digest({"Y": array}) for array in (one, *others)}) == 7
    assert digest({"Z": one}) != digest({"Y": one})


def test_a_wrong_result_needs_two_judges_that_agree(monkeypatch):
    case = sqrt(4)
    y = np.sqrt(case.feeds()["X"].astype(np.float64))
    wrong = np.float32(y) + np.float32([0, 0, 0.5, 0])
    both = judge(case).errors({"Y": wrong})
    assert both["judges"] == "our kernel on torch and onnx.reference agree"
    assert both["bound"] > 1e5
    assert judge(case).errors({"Y": np.float32(y)})["judges"] == ""
    # Another value of one of them: nobody is blamed.
    monkeypatch.setattr("onnx.reference.ops.op_sqrt.Sqrt._run", lambda _self, x: (np.cbrt(x),))
    apart = judge(case).errors({"Y": wrong})
    assert apart["judges"] == "judges disagree, our kernel on torch and onnx.reference"
    assert math.isnan(apart["bound"])
    assert math.isnan(apart["mismatched"])
    assert out_of_bound(pd.DataFrame([apart])).empty


def test_the_only_judge_is_named():
    case = Case(
        "QLinearSigmoid", "Y = com.microsoft.QLinearSigmoid(X, S, Z, R, Z)",
        f"T[2] X = 128, {_SCALED}", "", "u8",
    )  # fmt: skip
    found = judge(case).errors({"Y": np.uint8([0, 0])})  # 255, of 1 / 2 in float
    assert found["bound"] > 1
    assert found["judges"] == "our definition is the only judge"
