"""Tests of ortmeter.attribution.session."""

from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest

import ortmeter
from ortmeter.attribution import explain_session, intermediates
from ortmeter.attribution import session as attribution_session
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime.feeds import random_feeds
from ortmeter.runtime.models import layer_norm_matmul, sample_cnn

HEADER = '<ir_version: 11, opset_import: ["": 23]>'
SOURCES = ("reference",)


def ulp(error, largest):
    return np.abs(error).max() / np.spacing(np.float32(np.abs(largest).max()))


@pytest.fixture(scope="module")
def norm():
    model = layer_norm_matmul(16)
    return model, random_feeds(model, dims={"a": 2, "b": 3})


def run_every_node(model, feeds):
    """Return the first output of each node, in a session of all of them."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    names = [node.output[0] for node in model.graph.node]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names[:-1])
    return onnxruntime.InferenceSession(watched.SerializeToString()).run(names, feeds)


def test_own_errors_and_effects_against_numpy(norm):
    """A product then a sum: what the product adds to the outputs is its own error."""
    model, feeds = norm
    normed, product, total = (v.astype(np.float64) for v in run_every_node(model, feeds))
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
    assert found.ranking()[0].name == "narrow"
    assert str(found).endswith(
        f"largest effect: narrow (Cast), {found.nodes[1].effect.mean_abs:.3g} alone of "
        f"{found.exposed.mean_abs:.3g} (mean absolute error)"
    )


def test_fused_nodes_are_explained_together():
    model = sample_cnn(size=16)
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
    model = sample_cnn(size=16)
    every = intermediates.with_intermediate_outputs  # an output each: nothing is fused
    monkeypatch.setattr(intermediates, "with_intermediate_outputs", lambda proto, _: every(proto))
    found = explain_session(model, random_feeds(model), provider="cpu", sources=SOURCES)
    assert not found.same_outputs
    assert found.session != found.exposed
    assert "reading its intermediate results changes its outputs" in str(found)
    assert f"the session is {found.session.ulp_at_max:.3g} ulp from float64" in str(found)
    assert f"explained here is {found.exposed.ulp_at_max:.3g} ulp from float64" in str(found)


@pytest.mark.parametrize("expected", ["torch", "reference"])
def test_other_expected_kernels(norm, expected):
    model, feeds = norm
    found = explain_session(model, feeds, expected, provider="cpu")
    session = ortmeter.make_session(model, provider="cpu")
    wanted = ortmeter.evaluator.Evaluator(model, sources=(expected,)).run(None, feeds)
    got = session.run(None, feeds)
    assert found.session == ortmeter.max_diff(wanted, got)
    assert found.outputs.outputs == {"Z": ortmeter.max_diff(wanted[0], got[0])}
    assert len(found.nodes) == 3
    assert found.nodes[-1].total.abs == found.session.abs


def test_casts_of_the_evaluator_are_no_nodes_of_the_session():
    """DequantizeLinear has no float64: a cast follows it, which the session has not."""
    text = f"""{HEADER} g (uint8[4] q, float[4] x) => (float[4] y)
        <float s = {{0.1}}, uint8 z = {{3}}> {{
        [dq] wf = DequantizeLinear(q, s, z)  [mul] b = Mul(wf, x)
        [dyn] d, sc, zp = DynamicQuantizeLinear(b)  [last] y = DequantizeLinear(d, sc, zp)
    }}"""
    feeds = {"q": np.uint8([1, 200, 3, 4]), "x": np.float32([1, 2, 3.3, 4])}
    found = explain_session(text, feeds, provider="cpu", optimization="none", sources=SOURCES)
    names = [(node.name, node.op) for node in found.nodes]
    assert [name for name, _ in names] == ["dq", "mul", "dyn", "last"]
    assert (names[0][1], names[-1][1]) == ("DequantizeLinear", "DequantizeLinear")
    assert all("cast_" not in label for node in found.nodes for label in node.fused)


def test_an_output_may_be_named_twice():
    model = onnx.parser.parse_model(
        f"{HEADER} g (float[3] X) => (float[3] Y) {{ [exp] Y = Exp(X) }}"
    )
    model.graph.output.append(model.graph.output[0])
    feeds = {"X": np.float32([1, 2, 3])}
    found = explain_session(model, feeds, provider="cpu", sources=SOURCES)
    got, _ = ortmeter.make_session(model, provider="cpu").run(None, feeds)
    expected = np.exp(feeds["X"].astype(np.float64))
    assert found.session.abs == pytest.approx(np.abs(got - expected).max())


def test_not_a_number_of_the_session_comes_first():
    text = f"""{HEADER} g (float[3] X) => (float[3] Z) {{
        [exp] E = Exp(X)  [large] L = Mul(E, E)  [zero] Z = Sub(L, L)
    }}"""
    feeds = {"X": np.float32([1, 2, 60])}  # exp(60) fits in float32, its square does not
    found = explain_session(text, feeds, provider="cpu", optimization="none", sources=SOURCES)
    assert found.session.n_nan == 1
    assert found.ranking()[0].name == "large"


def many(n):
    """A chain of n matrix products: each one adds an error of its own."""
    body = " ".join(f"[p{i}] V{i + 1} = MatMul(V{i}, W)" for i in range(n))
    model = onnx.parser.parse_model(
        f"{HEADER} g (float[4, 8] V0) => (float[4, 8] V{n}) {{ {body} }}"
    )
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((8, 8)))[0].astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(turn, "W"))
    return model, {"V0": rng.standard_normal((4, 8)).astype(np.float32)}


def test_effects_are_those_of_numpy():
    """The effect of a node against numpy in float64, for every node of a chain."""
    n = 6
    model, feeds = many(n)
    found = explain_session(model, feeds, provider="cpu", optimization="none", sources=SOURCES)
    assert (found.searched, found.remaining) == (n, ())
    results = [feeds["V0"], *run_every_node(model, feeds)]
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype(np.float64)
    after = [v.astype(np.float64) @ np.linalg.matrix_power(weight, n - i) for i, v in
             enumerate(results)]  # fmt: skip
    for i, node in enumerate(found.nodes):
        assert node.effect.abs == pytest.approx(np.abs(after[i + 1] - after[i]).max(), rel=1e-6)


def test_what_the_budget_leaves_is_told(monkeypatch):
    model, feeds = many(12)
    ticks = iter(range(100))
    clock = SimpleNamespace(perf_counter=lambda: next(ticks))
    monkeypatch.setattr("ortmeter.attribution.search.time", clock)
    found = explain_session(
        model, feeds, provider="cpu", optimization="none", sources=SOURCES, budget_s=50
    )
    left = [name for group in found.remaining for name in group.nodes]
    assert 0 < found.searched < 12
    assert sorted(node.name for node in found.nodes if node.effect is None) == sorted(left)
    assert len(left) == 12 - found.searched
    assert f"{found.searched} of 12 nodes are searched; {len(left)} are not, in " in str(found)
    ranked = found.ranking()
    assert [node.effect is None for node in ranked] == [False] * found.searched + [True] * len(left)
    assert found.to_frame()["effect"].isna().sum() == len(left)
    row = found.remaining[0].to_row()
    assert (row["first"], row["nodes"]) == (left[0], len(found.remaining[0].nodes))
    asked = {"optimization": "none", "sources": SOURCES, "budget_s": 0}
    nothing = explain_session(model, feeds, provider="cpu", **asked)
    assert (nothing.searched, len(nothing.remaining)) == (0, 1)
    assert nothing.remaining[0].effect.abs == nothing.exposed.abs > 0


def test_what_no_output_needs_is_not_computed_again(monkeypatch):
    """The dead node reads Y after the living one does: Y stays there for the search."""
    text = f"""{HEADER} g (float[4, 4] X) => (float[4, 4] Z) {{
        [one] Y = MatMul(X, X)  [two] U = MatMul(Y, X)  [three] Z = MatMul(U, Y)
        [dead] D = MatMul(Y, Y)  [shape] S = Shape(Y)
    }}"""
    feeds = {"X": np.random.default_rng(0).standard_normal((4, 4), np.float32)}
    ran = []
    monkeypatch.setattr(
        attribution_session._SessionWalk,
        "_mixed",
        lambda walk, count, is_late: ran.append(count) or MIXED(walk, count, is_late),
    )
    found = explain_session(text, feeds, provider="cpu", optimization="none", sources=SOURCES)
    rows = {node.name: node for node in found.nodes}
    assert set(rows) == {"one", "two", "three", "dead", "shape"}
    assert rows["dead"].own.abs > 0
    assert rows["dead"].effect.abs == rows["shape"].effect.abs == 0
    assert len(ran) == 2  # three suspects
    assert all(rows[name].effect.abs > 0 for name in ("one", "two", "three"))


MIXED = attribution_session._SessionWalk._mixed


def test_results_that_do_not_fit_are_refused(monkeypatch):
    model, feeds = many(3)
    size = 4 * 8 * 4
    monkeypatch.setattr(intermediates, "half_of_memory", lambda: 2 * 3 * size)
    assert explain_session(model, feeds, provider="cpu", optimization="none").searched == 3
    monkeypatch.setattr(intermediates, "half_of_memory", lambda: 2 * 3 * size - 1)
    with pytest.raises(ModelError, match="results of the nodes take .* Accepted: smaller inputs"):
        explain_session(model, feeds, provider="cpu", optimization="none")


def test_settings_of_the_session_reach_it(monkeypatch):
    model, feeds = many(2)
    asked = []

    def make(*given, **settings):
        asked.append(settings)
        return ortmeter.make_session(*given, **settings)

    for module in (attribution_session, intermediates):
        monkeypatch.setattr(module, "make_session", make)
    settings = {"spinning": "off", "session_options": {"enable_mem_pattern": 0}}
    found = explain_session(model, feeds, provider="cpu", **settings)
    assert found.searched == 2
    assert all(settings.items() <= given.items() for given in asked)
    assert len(asked) == 2


def test_what_is_refused(norm):
    for wrong, told in (
        ({"budget_s": -1}, "budget_s=.*Accepted: a finite number"),
        ({"budget_s": np.nan}, "budget_s=.*Accepted: a finite number"),
        ({"expected": "exact"}, "expected='exact'. Accepted: float64, torch"),
    ):
        with pytest.raises(InvalidArgumentError, match=told):
            explain_session(*norm, provider="cpu", **wrong)
