"""The page on operators in other libraries: planted times of cases and of products; its setting."""

import itertools
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.parser
import pandas as pd
import pytest
from fakes import needs_vnni
from onnx.reference import ReferenceEvaluator
from page_runner import compare, drawn, judge, parse, run_setting

from ortmeter.timing import Comparisons

TORCH, ORT = "torch 2", "onnxruntime"
TIMES = {  # µs of torch and of ONNX Runtime
    "Relu-f32-L1": (1.0, 3.0),
    "Exp-f32-L2": (60.0, 20.0),
    "Exp-f32-L3": (100.0, 100.0),
    "MatMul-square-f32-L2": (40.0, 40.0),
    "Round-f16-L2": (5.0, 400.0),
}
SHAPES = ("1x64x64", "8x64x64", "64x64x64", "512x64x64")
RATIOS = {  # times beside onnxruntime, by shape
    "onnxruntime": (1.0,) * 4,
    "torch": (1.3, 2.0, 2.0, 2.2),
    "oneDNN": (1.2, 0.7, 0.8, 1.0),
    "numpy": (1.2, 1.6, 1.7, 1.9),
    "W as input": (1.0, 2.0, 1.3, 1.08),
    "8 bits dynamic": (0.25, 0.3, 0.3, 0.3),
}


def plant_cases():
    """Times of cases that have these medians."""
    axes = {"threads": (1, 2), "pass": range(2), "process": range(6), "case": TIMES}
    found = pd.DataFrame(itertools.product(*axes.values()), columns=list(axes))
    rng = np.random.default_rng(0)
    for rank, name in enumerate((TORCH, ORT)):
        medians = np.array([TIMES[case][rank] for case in found["case"]])
        found[name] = medians * np.exp(2e-4 * rng.standard_normal(len(found)))
    return {"times": found, "order": [TORCH, ORT]}


def plant(**cases):
    """Products at 100 GFLOP/s in ONNX Runtime, and cases."""
    groups = {}
    for i, shape in enumerate(SHAPES):
        seconds = 2e-11 * np.prod([int(size) for size in shape.split("x")])
        groups[shape] = compare({name: seconds * row[i] for name, row in RATIOS.items()})
    found = Comparisons(groups, "shape")
    return SimpleNamespace(found=found, legend="CPU", provider="cpu", **cases)


def test_the_cases_are_counted_by_family_and_the_largest_loss_comes_first(page):
    data = plant(**plant_cases())
    cells = page["compare"](data)
    assert cells.index[0] == "Round-f16-L2"
    assert cells.loc["Round-f16-L2", "speedup"] == pytest.approx(1 / 80, rel=1e-3)
    found = page["families"](data).T.to_dict("list")
    assert found == {"elementwise": [2, 1, 1], "products": [0, 0, 1]}


def test_the_answer_has_the_wins_of_both_and_the_gains_of_torch(page, monkeypatch):
    sample = judge(page, plant(**plant_cases()))  # a few cases of the catalogue
    assert {sample[name].verdict for name in ("winners", "short")} == {"not measured"}
    monkeypatch.setitem(page, "FAMILY", dict.fromkeys(TIMES))  # now they are all of it
    found = judge(page, plant(**plant_cases()))
    assert found["winners"].verdict == "undecided"  # one of five, and two that may be another
    assert found["winners"].evidence == "torch wins 2 of 5, ONNX Runtime 1"
    assert found["winners"].finding.effect == pytest.approx((3, 80), rel=1e-3)


def test_the_products_are_over_constant_weights(page):
    gains = page["multiply"](plant(), *page["PAIRS"])
    assert list(dict.fromkeys(gain.where["shape"] for gain in gains)) == list(SHAPES)
    for name, row in RATIOS.items():
        if name != "onnxruntime":
            ratios = [gain.ratio for gain in gains if gain.subject == name]
            assert ratios == pytest.approx([1 / x for x in row], rel=0.03)
    assert [*drawn(page["matrix_products"](plant()))] == [*RATIOS][1:]


@needs_vnni
def test_every_candidate_multiplies(page):
    pytest.importorskip("torch")
    made = page["make_candidates"]("3x32x24")  # which compares their results
    assert list(made) == ["onnxruntime", "W as input", "8 bits dynamic", "torch", "oneDNN", "numpy"]


def test_the_setting_makes_weights_constant(tmp_path, monkeypatch):
    model = parse("(float[2, 3] X, float[3, 4] W) => (float[2, 4] Y) { Y = MatMul(X, W) }")
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "W"))
    changed = run_setting("keep_weights_constant", model)["model"]
    assert [given.name for given in changed.graph.input] == ["X"]
    x = np.ones((2, 3), np.float32)
    (got,) = ReferenceEvaluator(changed).run(None, {"X": x})
    np.testing.assert_array_equal(got, x @ w)
