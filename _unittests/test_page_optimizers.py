"""The page on graph optimizers, on planted samples."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from page_runner import define_page

import ortmeter
from ortmeter.study import to_frame
from ortmeter.study.records import record
from ortmeter.timing import Comparison, Comparisons, Measurement

MODELS = CNN, BERT, EAGER, VIT = "CNN dynamo", "BERT dynamo", "BERT eager TorchScript", "ViT dynamo"
TOOLS = ("onnxsim", "onnxslim", "onnxscript", "onnx_ir", "ort_fusions", "transformers")
KEEP = (
    "Keep your graph unless you measure a gain: no graph optimizer is shown to speed up runs by 5% "
    "(CNN, BERT, ViT)."
)
LEVELS, SKIP = ("none", "basic", "extended", "all"), "no skip fusion"
PATHS = dict.fromkeys(MODELS[1:], "Softmax IsNaN Where MatMul")


@pytest.fixture(scope="module")
def page():
    """Names that the page defines."""
    return define_page("plot_optimizers")


def compared(speeds, noise, processes):
    rng = np.random.default_rng(0)
    groups = {}
    for model in MODELS:
        times = []
        for way in (*LEVELS, SKIP, *TOOLS):
            drawn = np.exp(noise * rng.standard_normal((processes, 1)) * np.ones(12))
            speed = speeds.get((way, model), speeds.get(way, 1.0))
            times.append(Measurement(way, 1e-3 / speed * drawn))
        groups[model] = Comparison(times)
    return Comparisons(groups, "model")


def planted(page, speeds, *, loads=2.0, fused=(("ort_fusions", BERT),), noise=0.002, processes=10):
    """Make a record from speeds by way, or by way and model, 1 by default."""
    rows = {
        (model, way): {"fused": "3 Attention" if (way, model) in fused else "3 BiasGelu"}
        for model in MODELS
        for way in (*LEVELS, SKIP, *TOOLS)
    }
    data = {
        "times": compared(speeds, noise, processes),
        "starts": compared(dict.fromkeys(TOOLS, loads), noise, processes),
        "facts": to_frame(rows, "model", "way"),
        "paths": PATHS,
        "legend": "planted",
    }
    made = record("plot_optimizers", page["args"], page["provider"], data)
    return dataclasses.replace(made, fast=False)


def conclude(page, speeds, **others):
    return page["study"].concluded(planted(page, speeds, **others))


def verdicts(found):
    return [claim.verdict for claim in found.claims]


@pytest.mark.parametrize(
    ("speeds", "processes", "told", "label"),
    [
        ({SKIP: 1.2}, 10, "Disable SkipLayerNormFusion: runs are up to 1.20 times faster", SKIP),
        (
            {"onnxslim": 1.3},
            10,
            "Rewrite with onnxslim: runs are up to 1.30 times faster",
            "onnxslim",
        ),
        (
            {},
            10,
            f"{KEEP} To load 4 of 4 models sooner: ",
            "no tool",
        ),
        ({SKIP: 1.2}, 1, f"{KEEP} Of 3", "no tool"),
    ],
)
def test_the_answer_says_what_to_run(page, speeds, processes, told, label):
    found = conclude(page, speeds, processes=processes).answer
    assert str(found).startswith(told)
    assert found.label == label
    assert bool(found.setting) == (processes == 10)
    assert len(str(found).split()) <= 60
    assert "Of 3 attentions, ort_fusions (onnxscript) fuses 1, onnxruntime." in str(found)
    assert "onnxruntime.transformers 0 (its log tells what stops it)." in str(found)
    assert found.command.endswith(" --cold") == ("To load " in str(found))
    assert 2 <= len(found.bars) <= 5


@pytest.mark.parametrize("speeds", [{SKIP: 1.5}, {"onnxscript": 1.5}, {}])
def test_the_setting_runs_as_it_stands(page, speeds, tmp_path, monkeypatch):
    model = ortmeter.sample_cnn(size=8)
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "model.onnx")
    copied = {}
    exec(conclude(page, speeds).answer.setting, copied)  # noqa: S102 - what a reader copies
    feeds = ortmeter.random_feeds(model, seed=0)
    session = copied.get("session") or ortmeter.make_session("rewritten.onnx", provider="cpu")
    (got,) = session.run(None, feeds)
    (expected,) = ortmeter.make_session(model, provider="cpu").run(None, feeds)
    assert np.allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_the_worst_level_is_told(page):
    slow = conclude(page, {("extended", BERT): 0.8}).answer.warning
    told = "Worst of 12 pairs: model BERT dynamo: extended is 1.25 times slower than basic ["
    assert told in slow
    assert not conclude(page, {}).answer.warning


def test_predictions(page):
    rising = {"none": 0.5, "basic": 0.6, "extended": 0.8}
    assert verdicts(conclude(page, rising))[:4] == ["right"] * 4
    falling = {"basic": 1.5, "onnxsim": 0.7, ("ort_fusions", BERT): 1.5}
    assert verdicts(conclude(page, falling, loads=0.5))[:4] == ["wrong"] * 4
    assert verdicts(conclude(page, rising, processes=1))[:4] == ["undecided"] * 4
    # Attention is compared only where one of the two tools fuses it.
    same = (("ort_fusions", BERT), ("transformers", BERT))
    assert verdicts(conclude(page, rising, fused=same))[3] == "undecided"


def test_beliefs(page):
    found = conclude(page, {"onnxsim": 1.2, "onnxslim": 1.1}).beliefs.frame["verdict"]
    assert found.to_dict() == {
        "onnxsim#51": "right",
        "onnxsim#268": "wrong",
        "optimum#1744": "right",
        "#10359": "right",
        "#21208": "right",
        "#23864": "wrong",
    }
    fused = [("transformers", name) for name in (BERT, EAGER, VIT)]
    found = conclude(page, {"onnxsim": 0.8}, fused=fused).beliefs.frame["verdict"]
    assert found.to_list() == ["wrong", "right", "wrong", "wrong", "wrong", "right"]


def test_the_nodes_around_attention_are_beside_those_that_are_expected(page):
    data = SimpleNamespace(**planted(page, {}).data)
    table = page["stops"](data)
    assert table.loc[BERT, "from Softmax"] == PATHS[BERT]
    assert table["ort_fusions"].to_list()[1:] == [True, False, False]
    assert list(table.index) == ["expected", *PATHS]
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[2, 4] X, float[4] S) => (float[2, 4] Y, int64[2] Z) {
      A = Softmax(X)  Z = Shape(A)  B = IsNaN(A)  C = Where(B, X, A)
      D = Add(C, X)  Y = LayerNormalization(D, S) }""")
    assert page["walk_down"](model) == "Softmax IsNaN Where Add LayerNormalization"


@pytest.mark.slow
def test_what_is_expected_is_fused(page, monkeypatch):
    """The nodes that the page calls expected are those that transformers fuses."""
    monkeypatch.setitem(page, "rng", np.random.default_rng(0))
    model = page["export"]("BERT eager TorchScript")
    assert page["walk_down"](model) == page["EXPECTED"]
    found = page["rewrite_model"](model, "transformers", **page["HEADS"])
    assert "Attention" in {node.op_type for node in found.graph.node}
