"""Models are cut while a predicate on their graph holds; onnx.reference computes their values."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from ortmeter.attribution.reduction import draw, minimal, quantiles, reduce_model
from ortmeter.runtime.graphs import with_intermediate_outputs

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
# Branches, two outputs of a node, constants, and a body that reads a value and a weight around it.
GRAPH = f"""{HEADER} g (float[4, 6] X) => (float[4, 6] Y, float[4, 3] L)
<float[6] W = {{1, 2, 3, 4, 5, 6}}, int64[2] shape = {{6, 4}}> {{
half = Constant <value = float {{0.5}}> ()
twice = Add (half, half)
A = Mul (X, W)
L, R = Split <axis = 1, num_outputs = 2> (A)
J = Concat <axis = 1> (R, L)
E = Exp (J)
S = ReduceSum <keepdims = 0> (E)
yes = Greater (S, half)
B = If (yes) <
  then_branch = t () => (float[4, 6] T) {{ U = Mul (E, W)  T = Div (U, twice) }},
  else_branch = f () => (float[4, 6] F) {{ F = Neg (J) }}
>
M = Reshape (B, shape)
N = Sqrt (M)
P = Transpose (N)
Q = Add (P, twice)
Y = Sub (Q, A)
}}"""
X = np.linspace(0.1, 1, 24, dtype=np.float32).reshape(4, 6)


def record(model, feeds):
    exposed = with_intermediate_outputs(model)
    names = [output.name for output in exposed.graph.output]
    return dict(zip(names, run(exposed, feeds), strict=True))


def run(model, feeds):
    return ReferenceEvaluator(model).run(None, dict(feeds))


def ops(reduced):
    return [node.op_type for node in reduced.model().graph.node]


@pytest.mark.parametrize("seed", range(10))
def test_every_cut_is_valid_and_computes_the_same_values(seed):
    rng = np.random.default_rng(seed)
    model = onnx.parser.parse_model(GRAPH)
    expected = record(model, {"X": X})
    tried = []

    def holds(reduced):
        if "along axes" in reduced.step or "drawn" in reduced.step:
            return False
        proto = reduced.model()
        onnx.checker.check_model(proto, full_check=True)
        tried.append(reduced)
        for output, got in zip(proto.graph.output, run(proto, reduced.feeds()), strict=True):
            np.testing.assert_array_equal(got, expected[output.name])
        return rng.random() < 0.4

    best = reduce_model(model, {"X": X}, holds, record)
    assert reduce_model(model, {"X": X}, lambda _: False, record).model() == model
    assert len(tried) > 2
    assert model == onnx.parser.parse_model(GRAPH)
    run(best.model(), best.feeds())


@pytest.mark.parametrize(
    "planted", [["Mul"], ["Split"], ["Exp"], ["If"], ["Reshape"], ["Sub"], ["Split", "Sqrt"]]
)
def test_planted_operators_remain_alone(planted):
    best = reduce_model(GRAPH, {"X": X}, lambda reduced: {*planted} <= {*ops(reduced)}, record)
    assert ops(best) == planted


def test_what_follows_from_constants_is_a_weight():
    best = reduce_model(GRAPH, {"X": X}, lambda reduced: "If" in ops(reduced), record)
    assert {tensor.name for tensor in best.model().graph.initializer} == {"W", "twice"}
    assert set(best.feeds()) == {"yes", "E", "J"}  # what both branches read


def test_the_outputs_that_are_not_needed_are_removed():
    def holds(reduced):
        return "Split" in ops(reduced) and "R" in {o.name for o in reduced.model().graph.output}

    best = reduce_model(GRAPH, {"X": X}, holds, record)
    assert [output.name for output in best.model().graph.output] == ["R"]


def test_axes_of_the_same_size_are_shortened_together_then_those_of_an_input():
    text = f"{HEADER} g (float[8, 16] X, float[16, 4] W) => (float[8, 4] Y) {{ Y = MatMul(X, W) }}"
    feeds = {"X": np.ones((8, 16), np.float32), "W": np.ones((16, 4), np.float32)}

    def holds(reduced):
        try:
            (got,) = run(reduced.model(), reduced.feeds())
        except TypeError:  # shapes that do not match
            return False
        return got.shape[1] >= 2 and got.max() >= 3

    best = reduce_model(text, feeds, holds, record)
    assert {name: a.shape for name, a in best.feeds().items()} == {"X": (1, 4), "W": (4, 2)}
    onnx.checker.check_model(best.model(), full_check=True)


def test_weights_are_drawn_from_their_quantiles_inputs_only_where_it_holds():
    rng = np.random.default_rng(0)
    weight = rng.gamma(2, size=(32, 16)).astype(np.float32)
    text = f"{HEADER} g (float[16, 32] X) => (float[16, 16] Y) {{ Y = MatMul(X, V) }}"
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "V"))
    x = rng.standard_normal((16, 32)).astype(np.float32)

    def holds(reduced):
        return "MatMul" in ops(reduced) and np.array_equal(reduced.feeds()["X"], x)

    best = reduce_model(model, {"X": x}, holds, record)
    (tensor,) = best.model().graph.initializer
    got = onnx.numpy_helper.to_array(tensor)
    assert set(best.drawn) == {"V"}
    assert not np.array_equal(got, weight)
    quarters = [np.quantile(array, [0.25, 0.5, 0.75]) for array in (got, weight)]
    np.testing.assert_allclose(*quarters, rtol=0.2)
    assert weight.min() <= got.min() <= got.max() <= weight.max() * 1.00001
    np.testing.assert_array_equal(got, draw("V", got, best.drawn["V"]))


def test_quantiles_of_integers_are_integers_and_those_of_nan_are_finite():
    assert quantiles(np.arange(17)) == list(range(17))
    assert quantiles(np.full(3, np.nan)) == [0.0] * 17


def test_without_values_only_the_last_nodes_are_cut():
    text = f"{HEADER} g (float[3] X) => (float[3] Y) {{ A = Exp(X)  B = Neg(A)  Y = Abs(B) }}"

    best = reduce_model(text, {"X": X[0, :3]}, lambda r: "Neg" in ops(r), lambda *_: {})
    assert ops(best) == ["Exp", "Neg"]


def test_local_functions_are_inlined():
    text = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
    g (float[3] X) => (float[3] Y) { Y = own.twice(X) }
    <domain: "own", opset_import: ["": 21]> twice (x) => (y) { e = Exp(x)  y = Sqrt(e) }"""
    best = reduce_model(text, {"X": X[0, :3]}, lambda reduced: "Sqrt" in ops(reduced), record)
    assert ops(best) == ["Sqrt"]
    assert not best.model().functions


@pytest.mark.parametrize("seed", range(15))
def test_the_smallest_part_is_what_must_remain(seed):
    rng = np.random.default_rng(seed)
    items = list(range(int(rng.integers(1, 60))))
    needed = {*rng.choice(items, min(len(items), int(rng.integers(1, 6))), replace=False).tolist()}
    tried = []

    def holds(kept):
        tried.append(kept)
        return needed <= {*kept}

    assert minimal(items, holds) == sorted(needed)
    assert all(kept == sorted(kept) for kept in tried)


def test_one_item_in_many_takes_two_tries_by_half():
    tried = []
    minimal(list(range(1024)), lambda kept: tried.append(kept) or 700 in kept)
    assert len(tried) <= 20
