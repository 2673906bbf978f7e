"""The setting, the views and the sessions of the page on fixed and dynamic shapes."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from page_runner import compare, parse, run_setting

import ortmeter
from ortmeter.study import to_frame
from ortmeter.timing import Comparisons

WAYS = FREE, OVERRIDDEN, FIXED = "free", "overridden", "fixed"
CASES = ("ViT 32", "ViT 144")
TIMES = {FREE: 4.0, OVERRIDDEN: 2.0, FIXED: 1.0}


@pytest.fixture(scope="module")
def data():
    """Samples whose medians are known; the sessions of the largest size alone are created."""
    facts = to_frame(
        {
            (case, way): {"nodes": nodes, "error": 0.0, "load (ms)": load}
            for case, load in zip(CASES, (np.nan, 7.0), strict=True)
            for way, nodes in zip(WAYS, (100, 90, 80), strict=True)
        },
        "case",
        "way",
    )
    compared = Comparisons(dict.fromkeys(CASES, compare(TIMES)), "case")
    return SimpleNamespace(facts=facts, runs=compared, legend="planted")


def test_the_setting_fixes_the_model_of_a_reader():
    model = parse("(float[n, 3, h, w] x) => (float[n, 3, h, w] y) { y = Relu(x) }")
    fixed = run_setting("fix_shape", model)["saved"]["fixed.onnx"]
    session = ortmeter.make_session(fixed, provider="cpu")
    assert session.get_inputs()[0].shape == [1, 3, 144, 144]


def test_only_sessions_that_were_created_are_in_the_table(page, data):
    table = page["graphs"](data)
    assert list(table.index) == [("ViT 144", way) for way in WAYS]
    assert table["nodes"].to_list() == [100, 90, 80]
    assert table["load (ms)"].to_list() == [7, 7, 7]


def test_the_speedups_that_are_drawn_are_over_the_dynamic_model(page, data):
    ax = page["speedups"](data)
    ratios = [bars.lines[0].get_ydata().tolist() for bars in ax.containers]
    assert ratios == [pytest.approx([4.0, 4.0], rel=0.01), pytest.approx([2.0, 2.0], rel=0.01)]


@pytest.mark.parametrize("way", [FREE, OVERRIDDEN])
def test_a_session_that_is_given_sizes_refuses_others(page, way, tmp_path):
    model = parse("(float[n] x) => (float[m] y) { s = Shape(x) c = Cast<to = 1>(s) y = Add(x, c) }")
    onnx.save(model, path := str(tmp_path / "model.onnx"))
    sizes = {OVERRIDDEN: {"n": 3}}.get(way, {})
    optimized = str(tmp_path / "optimized.onnx")
    execution = "CPUExecutionProvider"
    run = page["open_runs"]([(path, sizes, [[3]])], execution, optimized=optimized)
    assert len(run()) == 1
    nodes = [node.op_type for node in onnx.load(optimized).graph.node]
    assert nodes == (["Add"] if sizes else ["Shape", "Cast", "Add"])
    session = page["open_runs"]([(path, sizes, [[3]])], execution, creates=True)()
    if sizes:
        with pytest.raises(Exception, match="Got: 4 Expected: 3"):
            session.run(None, {"x": np.zeros(4, np.float32)})
    else:
        assert session.run(None, {"x": np.zeros(4, np.float32)})[0].tolist() == [4.0] * 4


def test_a_difference_stops_the_page(page, tmp_path):
    model = parse("(float[n, 2] x) => (float[n, 2] y) { y = Add(x, x) }")
    onnx.save(model, path := str(tmp_path / "model.onnx"))
    part = path, {}, [[2, 2]]
    feeds = ortmeter.random_feeds(path, shapes={"x": [2, 2]})
    expected = 2 * feeds["x"].astype(np.float64)
    assert page["check"](part, feeds, expected, tmp_path)["nodes"] == 1
    with pytest.raises(AssertionError):
        page["check"](part, feeds, 1.001 * expected, tmp_path)
