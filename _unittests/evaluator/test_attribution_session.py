"""Tests of ortmeter.evaluator.attribution_session."""

import numpy as np
import onnx
import onnxruntime
import pytest

import ortmeter
from ortmeter.errors import InvalidArgumentError
from ortmeter.evaluator import attribution_session, explain_session
from ortmeter.runtime.feeds import random_feeds
from ortmeter.runtime.models import layer_norm_matmul

HEADER = '<ir_version: 11, opset_import: ["": 23]>'
SOURCES = ("reference",)


def ulp(error, largest):
    return np.abs(error).max() / np.spacing(np.float32(np.abs(largest).max()))


@pytest.fixture(scope="module")
def norm():
    model = layer_norm_matmul(16)
    return model, random_feeds(model, dims={"a": 2, "b": 3})


def test_own_errors_and_effects_against_numpy(norm):
    """A product then a sum: what the product adds to the outputs is its own error."""
    model, feeds = norm
    exposing = onnx.ModelProto()
    exposing.CopyFrom(model)
    names = [node.output[0] for node in model.graph.node]
    exposing.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names[:-1])
    session = onnxruntime.InferenceSession(exposing.SerializeToString())
    normed, product, total = (v.astype(np.float64) for v in session.run(names, feeds))
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    wide = {name: value.astype(np.float64) for name, value in weights.items()}
    matmul_w, add_b = (wide[node.input[1]] for node in model.graph.node[1:])

    found = explain_session(model, feeds, provider="cpu")
    assert found.same_outputs
    assert found.session == found.exposed
    rows = {node.name: node for node in found.nodes}
    own = product - normed @ matmul_w
    assert rows["matmul"].own.abs == pytest.approx(np.abs(own).max(), rel=1e-6)
    assert rows["add"].own.abs == pytest.approx(np.abs(total - (product + add_b)).max(), rel=1e-6)
    assert rows["matmul"].effect.abs == pytest.approx(np.abs(own).max(), rel=1e-6)
    assert rows["matmul"].effect.ulp_at_max == pytest.approx(ulp(own, total), rel=1e-6)
    moved_by_norm = np.abs(rows["norm"].effect.abs)
    assert 0 < moved_by_norm < 1e-5
    # The last total is the discrepancy of the session, and the effects add up to it.
    assert rows["add"].total.abs == found.session.abs
    effects = sum(node.effect.mean_abs for node in found.nodes)
    assert found.session.mean_abs <= effects * (1 + 1e-6)


def test_a_rounding_to_16_bits_comes_first():
    text = f"""{HEADER} g (float[8, 8] X) => (float[8, 8] Z) {{
        [product] Y = MatMul(X, X)  [narrow] H = Cast<to = 10>(Y)  [wide] W = Cast<to = 1>(H)
        [exp] Z = Tanh(W)
    }}"""
    feeds = {"X": np.random.default_rng(0).standard_normal((8, 8), np.float32)}
    found = explain_session(text, feeds, provider="cpu", optimization="none", sources=SOURCES)
    for by in ("mean", "ulp", "abs"):
        assert found.ranking(by)[0].name == "narrow"
    assert str(found).endswith(
        f"largest effect: narrow (Cast), {found.nodes[1].effect.ulp_at_max:.3g} ulp alone"
    )
    with pytest.raises(InvalidArgumentError, match="by='size'"):
        found.ranking("size")


def test_fused_nodes_are_explained_together():
    model = ortmeter.sample_cnn(size=16)
    feeds = random_feeds(model)
    fused, plain = (
        explain_session(model, feeds, provider="cpu", optimization=level, sources=SOURCES)
        for level in ("all", "none")
    )
    assert fused.same_outputs
    assert plain.same_outputs
    assert [node.name for node in plain.nodes] == [node.name for node in model.graph.node]
    assert not any(node.fused for node in plain.nodes)
    merged = {node.name: node.fused for node in fused.nodes if node.fused}
    missing = {node.name for node in plain.nodes} - {node.name for node in fused.nodes}
    assert missing
    assert {name for names in merged.values() for name in names} == missing


def test_it_is_said_when_another_session_is_explained(monkeypatch):
    model = ortmeter.sample_cnn(size=16)
    monkeypatch.setattr(  # every result becomes an output: nothing is fused
        attribution_session, "_exposing", lambda proto, optimized: EXPOSING(proto, proto)
    )
    found = explain_session(model, random_feeds(model), provider="cpu", sources=SOURCES)
    assert not found.same_outputs
    assert found.session != found.exposed
    assert "reading its intermediate results changes its outputs" in str(found)
    assert f"the session is {found.session.ulp_at_max:.3g} ulp from float64" in str(found)
    assert f"explained here is {found.exposed.ulp_at_max:.3g} ulp away" in str(found)


EXPOSING = attribution_session._exposing


@pytest.mark.parametrize("expected", ["torch", "reference"])
def test_other_expected_kernels(norm, expected):
    model, feeds = norm
    found = explain_session(model, feeds, expected, provider="cpu")
    session = ortmeter.make_session(model, provider="cpu")
    wanted = ortmeter.evaluator.Evaluator(model, sources=(expected,)).run(None, feeds)
    got = session.run(None, feeds)
    assert found.session == ortmeter.max_diff(wanted, got)
    assert len(found.nodes) == 3
    assert found.nodes[-1].total.abs == found.session.abs


def test_graphs_inside_nodes_and_integers():
    text = f"""{HEADER} g (float[4] X, bool c) => (float[4] Z, int64[1] K) {{
        [exp] E = Exp(X)
        [choose] Y = If (c) <
            then_branch = yes () => (float[4] A) {{ A = Mul(E, E) }},
            else_branch = no () => (float[4] B) {{ B = Neg(E) }}
        >
        [size] K = Shape(Y)  [root] Z = Sqrt(Y)
    }}"""
    feeds = {"X": np.float32([1, 2, 3, 4]), "c": np.array(True)}
    found = explain_session(text, feeds, provider="cpu", optimization="none", sources=SOURCES)
    assert [node.name for node in found.nodes] == ["exp", "choose", "size", "root"]
    squared = np.exp(np.float64([1, 2, 3, 4]))
    assert found.nodes[0].total.largest == pytest.approx(squared.max())
    assert found.nodes[2].own.abs == 0
    assert found.same_outputs


def test_not_a_number_of_the_session_comes_first():
    text = f"""{HEADER} g (float[3] X) => (float[3] Z) {{
        [exp] E = Exp(X)  [large] L = Mul(E, E)  [zero] Z = Sub(L, L)
    }}"""
    feeds = {"X": np.float32([1, 2, 60])}  # exp(60) fits in float32, its square does not
    found = explain_session(text, feeds, provider="cpu", optimization="none", sources=SOURCES)
    assert found.session.n_nan == 1
    assert found.ranking()[0].name == "large"


def test_what_is_refused(norm):
    model, feeds = norm
    with pytest.raises(InvalidArgumentError, match="expected='exact'. Accepted: float64, torch"):
        explain_session(model, feeds, "exact", provider="cpu")
