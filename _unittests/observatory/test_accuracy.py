import math

import numpy as np
import onnx.parser
import pandas as pd
import pytest

from ortmeter.observatory.accuracy import (
    COLUMNS,
    Judge,
    accuracy_changes,
    bits_changed,
    comparable_errors,
    digest,
    measure_errors,
    out_of_bound,
    time_and_accuracy,
)
from ortmeter.observatory.case import Case
from ortmeter.observatory.matrix import Contender
from ortmeter.runtime.providers import resolve_provider
from ortmeter.runtime.releases import INSTALLED, parse_release

# A process of this environment that answers with the outputs of a file, or dies.
SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
for line in sys.stdin:
    question = json.loads(line)
    arguments = question["arguments"]
    if question["do"] == "open":
        with np.load(arguments["arrays"]) as file:
            x = file[arguments["feeds"]["X"]]
        if x.shape == (3,):
            sys.exit(3)
        told = {"answer": None}
        if x.shape == (5,):
            told = {"error": "no such operator"}
    else:
        y = np.sqrt(x.astype(np.float64)).astype(x.dtype)
        for _ in range(MOVED):
            y[-1:] = np.nextafter(y[-1:], x.dtype.type(np.inf))
        np.savez(arguments["file"], y)
        told = {"answer": {"Y": "arr_0"}}
    print(json.dumps(told), flush=True)
"""


def sqrt(size: int, kind: str = "f32") -> Case:
    return Case("Sqrt", "Y = Sqrt(X)", f"T[{size}] X", f"of {size}", kind, values={"X": "positive"})


def judge(case: Case) -> Judge:
    return Judge(case.prepared(resolve_provider("cpu")))


@pytest.fixture
def contender(tmp_path):
    def make(moved: int) -> Contender:
        script = tmp_path / f"moved_{moved}.py"
        script.write_text(SCRIPT.replace("MOVED", str(moved)))
        return Contender(f"moved {moved}", parse_release(INSTALLED), script)

    return make


def test_an_output_moved_by_some_ulp_is_told_so(contender):
    cases = {"sixteen": sqrt(16), "halves": sqrt(8, "f16")}
    found = measure_errors([contender(0), contender(40)], cases)
    assert tuple(found.columns) == COLUMNS
    for case in cases:
        rounded, moved = (found.loc[case, f"moved {k}"] for k in (0, 40))
        assert rounded["ulp"] <= 0.5
        assert 39.4 <= moved["ulp"] <= 40.6
        assert rounded["bound"] <= 1
        assert 39 <= moved["bound"] <= 81
        share = 1 / len(cases[case].feeds()["X"])
        assert (rounded["differing"], moved["differing"]) == (0, share)
        assert rounded["bits"] != moved["bits"]
    assert out_of_bound(found).index.tolist() == [(case, "moved 40") for case in cases]
    assert bits_changed(found).tolist() == [False, True] * 2


def test_a_case_that_a_contender_lacks_or_dies_of_is_left_out(contender):
    cases = {"dies": sqrt(3), "refused": sqrt(5), "runs": sqrt(4)}
    found = measure_errors([contender(1)], cases)
    assert found.index.tolist() == [("runs", "moved 1")]


def test_the_installed_release_is_within_the_bounds():
    cases = {
        "sum": Case("ReduceSum", "Y = ReduceSum(X, A)", "T[4,1000] X, i64[1] A", values={"A": 1}),
        "product": Case("Gemm", "Y = Gemm<alpha = 0.5>(X, W, B)", "T[9,33] X, T[33,7] W, T[7] B"),
    }
    found = measure_errors([Contender("installed", parse_release(INSTALLED))], cases)
    assert (found["bound"] > 0).all()
    assert out_of_bound(found).empty
    assert (found["reference"] == "float64").all()


def test_infinities_of_the_type_of_the_output_match():
    case = Case("Cast", "Y = Cast<to = 10>(X)", "T[3] X", outputs="f16 Y", values={"X": "normal"})
    found = judge(case)
    found.reference.outputs["Y"][:] = [1e5, -1e5, 1]
    wrong = found.errors({"Y": np.float16([np.inf, 65504, 1])})
    assert (wrong["mismatched"], wrong["abs"]) == (1, 0)


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
    right, wrong = (
        exact.errors({"Y": expected}),
        exact.errors({"Y": expected + (np.arange(6) == 2)}),
    )
    assert (right["abs"], right["bound"], right["differing"]) == (0, 0, 0)
    assert (wrong["abs"], wrong["bound"], wrong["differing"]) == (1, math.inf, 1 / 6)


def test_a_quantized_result_may_be_off_by_one():
    case = Case(
        "QuantizeLinear", "Y = QuantizeLinear(X, S, Z)", "f32[8] X, f32[] S, T[] Z", "", "u8",
        values={"S": 1 / 32, "Z": 128},
    )  # fmt: skip
    exact = judge(case)
    codes = np.clip(np.rint(case.feeds()["X"] * 32) + 128, 0, 255).astype(np.uint8)
    near = np.where(codes < 254, codes + 1, codes - 1).astype(np.uint8)
    far = np.where(codes < 254, codes + 2, codes - 2).astype(np.uint8)
    assert [exact.errors({"Y": y})["bound"] for y in (codes, near, far)] == [0, 1, 2]


def test_the_order_of_equal_or_unsorted_elements_does_not_count():
    case = Case(
        "TopK", "Y, I = TopK<axis = 1, sorted = 0>(X, K)", "T[4,9] X, i64[1] K",
        outputs="T Y, i64 I", values={"K": 3},
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


def table(ulp, largest, releases=("a", "b", "c")):
    index = pd.MultiIndex.from_product([["case"], releases], names=["case", "contender"])
    return pd.DataFrame({"ulp": ulp, "largest": largest}, index)


@pytest.mark.parametrize(
    ("ulp", "largest", "expected"),
    [
        ([0.8, 3.2, 3.3], [0.7, 0.7, 0.7], [("b", "ulp", 4.0)]),
        ([3.0, 0.4, 0.3], [1.0, 0.4, 0.3], [("b", "ulp", 0.5 / 3)]),
        ([0.2, 0.5, 0.0], [0.2, 0.5, 0.0], []),  # both are correct roundings
        ([84e3, 84e3, 4e3], [4.0, 4.0, 1.5], [("c", "largest", 1.5 / 4)]),
        ([1e5, 9e5, 9e5], [1.0, 1.0, 1.1], []),  # one element near zero
        ([np.nan] * 3, [np.nan] * 3, []),
        ([1.0, np.nan, 4.0], [1.0, np.nan, 4.0], [("c", "ulp", 4.0)]),
    ],
)
def test_accuracy_changes(ulp, largest, expected):
    found = accuracy_changes(table(ulp, largest))
    got = [(index[1], row["unit"], row["error_ratio"]) for index, row in found.iterrows()]
    assert got == [(name, unit, pytest.approx(ratio)) for name, unit, ratio in expected]


def test_time_and_accuracy_of_the_same_contenders():
    errors = table([0.5, 0.9, 3.6], [0.5, 0.5, 0.5])
    index = pd.MultiIndex.from_tuples(
        [(1, "case", "b"), (1, "case", "c"), (2, "case", "c"), (2, "other", "c")],
        names=["threads", "case", "contender"],
    )
    cells = pd.DataFrame(
        {
            "baseline": ["a", "b", "a", "b"],
            "speedup": [2.0, 8.0, 1.0, 3.0],
            "verdict": ["faster", "faster", "undecided", "faster"],
        },
        index,
    )
    found = time_and_accuracy(cells, errors)
    assert found.index.tolist() == [(1, "case", "c")]
    assert found[["speedup", "error_before", "error_after"]].to_numpy().tolist() == [[8, 0.9, 3.6]]
    assert comparable_errors(errors)["unit"].unique().tolist() == ["ulp"]
