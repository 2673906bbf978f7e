"""Tests of ortmeter.attribution.optimizers."""

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest

from ortmeter.attribution import optimizers
from ortmeter.attribution.optimizers import explain_optimization, find_failing
from ortmeter.attribution.result import differing
from ortmeter.discrepancy import Tolerance
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.feeds import random_feeds
from ortmeter.runtime.models import layer_norm_matmul

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


def run_without(model, feeds, names, level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL):
    """Run a session without our code; the keyword of ONNX Runtime is another way to disable."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, disabled_optimizers=names
    )
    return session.run(None, feeds)


@pytest.fixture(scope="module")
def normalized():
    """A batch normalization that a rule fuses, and a Gelu that an optimizer fuses."""
    text = f"""{HEADER} g (float[1,3,8,8] X, float[16,16] M) =>
    (float[1,4,6,6] Z, float[16,16] P) {{
        [conv] C = Conv(X, W)  [bn] N = BatchNormalization(C, S, B, E, V)  [relu] Z = Relu(N)
        [product] Q = MatMul(M, M)
        half = Constant<value_float = 0.5>()  one = Constant<value_float = 1.0>()
        root = Constant<value_float = 1.4142135>()
        [div] D = Div(Q, root)  [erf] F = Erf(D)  [add] A = Add(F, one)
        [mul] T = Mul(Q, A)  [last] P = Mul(T, half) }}"""
    model = onnx.parser.parse_model(text)
    generator = np.random.default_rng(0)
    sizes = {"W": (4, 3, 3, 3)} | dict.fromkeys("SBEV", (4,))
    for name, shape in sizes.items():
        array = np.abs(generator.normal(size=shape)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model, random_feeds(model)


def test_optimizers_are_a_minimal_set(normalized):
    model, feeds = normalized
    found = explain_optimization(model, feeds, provider="cpu")
    assert found.level == "basic"
    levels = found.optimizers
    assert levels["ConvBNFusion"] == "basic"
    assert levels["GeluFusionL1"] == "basic"

    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = run_without(model, feeds, None, level)

    def restores(names):
        got = run_without(model, feeds, list(names))
        return all(map(np.array_equal, expected, got))

    assert restores(levels)
    for name in levels:
        assert not restores(set(levels) - {name})
    assert str(found).endswith("without them, the outputs are the same as without optimization")


def test_a_lower_level_runs_fewer_optimizers_and_what_is_close_enough_needs_no_search(normalized):
    model, feeds = normalized
    found = explain_optimization(model, feeds, provider="cpu", optimization="basic")
    assert list(found.levels) == ["basic"]
    assert set(found.optimizers.values()) == {"basic"}
    found = explain_optimization(model, feeds, provider="cpu", tolerance=Tolerance(atol=1e-2))
    assert (found.level, found.n_candidates, found.optimizers) == (None, 0, {})
    assert str(found) == "no optimization changes the outputs"


def test_a_search_ends_with_its_time(normalized):
    model, feeds = normalized
    found = explain_optimization(model, feeds, provider="cpu", budget_s=1e-9)
    assert (found.level, found.optimizers) == ("basic", {})
    assert {"ConvBNFusion", "Level1_RuleBasedTransformer"} & set(found.undecided)
    assert not differing(found.remaining)
    assert f"the time was up when {len(found.undecided)} of {found.n_candidates} " in str(found)
    found = explain_optimization(model, feeds, provider="cpu", budget_s=0)
    assert str(found) == "the outputs change from level basic on; optimizers are not searched"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"budget_s": -1}, "budget_s"),
        ({"budget_s": np.nan}, "budget_s"),
        ({"optimization": "none"}, "'none'"),
    ],
)
def test_what_is_refused(asked, told):
    with pytest.raises(InvalidArgumentError, match=told):
        explain_optimization(layer_norm_matmul(4), {}, provider="cpu", **asked)


def test_a_session_that_differs_from_itself_concludes_nothing(monkeypatch):
    runs = itertools.count()
    monkeypatch.setattr(optimizers, "run_session", lambda *_: {"Y": np.float32([next(runs)])})
    found = explain_optimization(layer_norm_matmul(4), {}, provider="cpu")
    assert found.optimizers == {}
    assert "nothing can be concluded" in str(found)


#: A fusion that is wrong in some releases (microsoft/onnxruntime#31980): a scale without axes, and
#: one that is broader than what it scales.
NORMALIZED = """<ir_version: 10, opset_import: ["": 17]> g (float[N] x) => (float[M] y)
<float two = {2}, float eps = {0.00001}, SCALE> {
mn = ReduceMean <axes = [-1], keepdims = 1> (x)  ct = Sub (x, mn)
sq = Pow (ct, two)  vr = ReduceMean <axes = [-1], keepdims = 1> (sq)  ve = Add (vr, eps)
sd = Sqrt (ve)  nm = Div (ct, sd)  y = Mul (nm, scale) }"""


# A layer normalization of one axis, with a scalar scale: two fusions take it, each wrongly.
LAYER_NORM = f"{NORMALIZED.replace('y = Mul', 'p = Mul')[:-1]} y = Add (p, one) }}".replace(
    "SCALE", "float scale = {2}, float one = {1}"
)


@pytest.mark.parametrize(
    ("text", "sizes", "scale", "bias"),
    [
        (NORMALIZED.replace("SCALE", "float scale = {2}"), ("4", "4"), 2, 0),
        (NORMALIZED.replace("SCALE", "float[2] scale = {1, 2}"), ("1,1", "1,2"), [1, 2], 0),
        (LAYER_NORM, ("4", "4"), 2, 1),
    ],
)
def test_the_fusions_that_make_a_model_fail_are_found(text, sizes, scale, bias):
    model = onnx.parser.parse_model(
        text.replace("[N]", f"[{sizes[0]}]").replace("[M]", f"[{sizes[1]}]")
    )
    feeds = random_feeds(model)
    names = find_failing(model, feeds, provider="cpu")
    if not names and run_without(model, feeds, []):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} runs it")
    d = feeds["x"] - feeds["x"].mean(-1, keepdims=True)
    expected = scale * d / np.sqrt((d**2).mean(-1, keepdims=True) + 1e-5) + bias
    np.testing.assert_allclose(run_without(model, feeds, names)[0], expected, rtol=1e-5, atol=1e-6)
    for name in names:  # none of them can go
        with pytest.raises(Exception, match=r"scale|Invalid model"):
            run_without(model, feeds, [n for n in names if n != name])


def test_a_model_that_runs_or_never_does_has_no_such_fusion():
    runs = layer_norm_matmul(4)
    feeds = random_feeds(runs, dims={"a": 2, "b": 3})
    assert find_failing(runs, feeds, provider="cpu") == []
    model = onnx.parser.parse_model(f"{HEADER} g (float[2] X) => (float[3] Y) {{ Y = Abs (X) }}")
    model.graph.node[0].op_type = "Missing"
    assert find_failing(model, {"X": np.zeros(2, np.float32)}, provider="cpu") == []
