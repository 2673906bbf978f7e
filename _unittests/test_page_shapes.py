"""The page on fixed and free sizes, on planted samples."""

import dataclasses

import numpy as np
import onnx
import pytest
from page_runner import define_page

import ortmeter
from ortmeter.study import to_frame
from ortmeter.study.records import record
from ortmeter.timing import Comparison, Comparisons, Measurement

WAYS = FREE, OVERRIDDEN, FIXED, NO_PATTERN = "free", "overridden", "fixed", "no pattern"
ONE, EACH, TWICE = "one session", "one each", "fixed twice"
FIRST, AGAIN = "first", "second"
MODELS = ("BERT", "ViT")
CASES = ("BERT 16", "BERT 128", "ViT 32", "ViT 144")


@pytest.fixture(scope="module")
def page():
    """Names that the page defines."""
    return define_page("plot_shapes")


def compared(cases, ways, speeds, noise, processes):
    rng = np.random.default_rng(0)
    groups = {}
    for case in cases:
        times = []
        for way in ways:
            drawn = np.exp(noise * rng.standard_normal((processes, 1)) * np.ones(12))
            speed = speeds.get((way, case), speeds.get(way, 1.0))
            times.append(Measurement(way, 1e-2 / speed * drawn))
        groups[case] = Comparison(times)
    return Comparisons(groups, "case")


def conclude(page, speeds, *, blocks=(9, 9), noise=0.002, processes=10):
    """Conclude from speeds by way, or by way and case, 1 by default."""
    how = speeds, noise, processes
    rows = {
        (case, way): {"nodes": 100 if way == FREE else 60, "in blocks": blocks[way == FIXED]}
        for case in CASES
        for way in WAYS[:3]
    }
    data = {
        "facts": to_frame(rows, "case", "way"),
        "runs": compared(CASES, WAYS, *how),
        "turns": compared(MODELS, (ONE, EACH, TWICE), *how),
        "starts": compared(CASES[1::2], WAYS[:3], *how),
        "news": compared(MODELS, (FIRST, AGAIN), *how),
        "legend": "planted",
    }
    made = record("plot_shapes", page["args"], page["provider"], data)
    return page["study"].concluded(dataclasses.replace(made, fast=False))


def verdicts(found):
    return [claim.verdict for claim in found.claims]


@pytest.mark.parametrize(
    ("speeds", "processes", "told", "label"),
    [
        (
            {(FIXED, "ViT 144"): 1.5, TWICE: 1.4},
            10,
            "in each run: at 1x3x144x144 (ViT), 1.50 times faster",
            "fix shapes",
        ),
        ({}, 10, "Leave BERT and ViT dynamic: fixed is as fast within 5%.", "leave dynamic"),
        (
            {},
            1,
            "Leave BERT and ViT dynamic: no gain of 5% is shown.",
            "leave dynamic",
        ),
        (
            {FIXED: 1.3},
            10,
            "Fix the input shape of BERT and a ViT (for 112 pixels) that",
            "fix shapes",
        ),
    ],
)
def test_the_answer_says_which_sizes_to_fix(page, speeds, processes, told, label):
    answer = conclude(page, speeds, processes=processes).answer
    assert told in str(answer)
    assert answer.label == label
    assert ("two fixed models" in str(answer)) == (label == "fix shapes")
    assert len(str(answer).split()) <= 60
    assert [bar.label for bar in answer.bars] != []
    assert answer.warning == ""


def test_a_slower_case_is_told_before_one_fixes_it(page):
    answer = conclude(page, {(FIXED, "BERT 16"): 0.7, (FIXED, "ViT 144"): 1.5}).answer
    assert answer.warning.startswith("Fixed shapes make runs of BERT 16 1.43 times slower")


def test_the_setting_fixes_the_model_of_a_reader(page, tmp_path, monkeypatch):
    answer = conclude(page, {(FIXED, "ViT 144"): 1.5}).answer
    assert answer.command.endswith(" --size 1x3x144x144")
    monkeypatch.chdir(tmp_path)
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[n, 3, h, w] x) => (float[n, 3, h, w] y) { y = Relu(x) }"""
    onnx.save(onnx.parser.parse_model(text), "model.onnx")
    exec(answer.setting, {})  # noqa: S102 - what a reader copies
    session = ortmeter.make_session("fixed.onnx", provider="cpu")
    assert session.get_inputs()[0].shape == [1, 3, 144, 144]


def test_predictions(page):
    assert verdicts(conclude(page, {})) == ["right"] * 5
    slow = {FIXED: 1.5, ONE: 0.8, FIRST: 0.5, (FIXED, "ViT 144"): 0.7, (FIXED, "BERT 128"): 0.7}
    assert verdicts(conclude(page, slow)) == ["wrong"] * 5
    assert verdicts(conclude(page, {}, processes=1)) == ["undecided"] * 5


def test_a_saving_of_nodes_is_bounded_by_their_number(page):
    # 40 nodes of 5 µs are 2% of 10 ms.
    (found, *_) = conclude(page, {FIXED: 1.06}).claims
    assert found.verdict == "right"
    (found, *_) = conclude(page, {FIXED: 1.09}).claims
    assert found.verdict == "wrong"
    assert found.evidence.endswith(", at most 1.07")


def test_beliefs(page):
    found = conclude(page, {FIXED: 1.2}).beliefs.frame["verdict"]
    assert found.to_list() == ["right", "wrong", "wrong", "wrong"]
    found = conclude(page, {FIXED: 6}, blocks=(0, 9)).beliefs.frame["verdict"]
    assert found.to_list() == ["right", "wrong", "right", "right"]
    found = conclude(page, {}).beliefs.frame["verdict"]
    assert found.to_list() == ["wrong", "right", "wrong", "wrong"]


@pytest.mark.parametrize("way", [FREE, OVERRIDDEN])
def test_a_session_that_is_given_sizes_refuses_others(page, way, tmp_path):
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[n] x) => (float[m] y) { s = Shape(x) c = Cast<to = 1>(s) y = Add(x, c) }"""
    onnx.save(onnx.parser.parse_model(text), path := str(tmp_path / "model.onnx"))
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
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[n, 2] x) => (float[n, 2] y) { y = Add(x, x) }"""
    onnx.save(onnx.parser.parse_model(text), path := str(tmp_path / "model.onnx"))
    part = path, {}, [[2, 2]]
    feeds = ortmeter.random_feeds(path, shapes={"x": [2, 2]})
    expected = 2 * feeds["x"].astype(np.float64)
    found = page["check"](part, feeds, expected, tmp_path)
    assert (found["nodes"], found["in blocks"], found["fused"]) == (1, 0, "")
    with pytest.raises(AssertionError):
        page["check"](part, feeds, 1.001 * expected, tmp_path)
