"""A kernel that is wrong is found, whatever its place; what is not a kernel is not blamed."""

import contextlib
import weakref

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from ortmeter import make_session, max_diff
from ortmeter.attribution import kernels as attribution
from ortmeter.attribution.kernels import attribute
from ortmeter.errors import (
    FeedError,
    InvalidArgumentError,
    ModelError,
    ProviderUnavailableError,
)
from ortmeter.evaluator.values import Memory
from ortmeter.runtime.models import layer_norm_matmul
from ortmeter.runtime.providers import usable_providers

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
# Twelve nodes, a branch that joins, operators of several kinds.
CHAIN = f"""{HEADER}
chain (float[b, 8] X) => (float[b, 8] Z)
<float[8, 8] w0, float[8, 8] w1, float[8] scale, float[8] shift> {{
[n0] a = MatMul (X, w0)
[n1] b = Add (a, shift)
[n2] c = Sigmoid (b)
[n3] d = Mul (b, c)
[n4] e = LayerNormalization <axis = -1> (d, scale, shift)
[n5] f = MatMul (e, w1)
[n6] g = Tanh (f)
[n7] h = Add (g, X)
[n8] i = Softmax <axis = -1> (h)
[n9] j = Mul (i, h)
[n10] k = Exp (j)
[n11] Z = Sub (k, g)
}}"""


def chain(dtype="float"):
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(CHAIN.replace("float[", f"{dtype}["))
    shapes = {"w0": (8, 8), "w1": (8, 8), "scale": (8,), "shift": (8,)}
    kind = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    del model.graph.initializer[:]
    for name, shape in shapes.items():
        values = rng.uniform(0.3, 0.8, shape).astype(kind)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model, {"X": rng.standard_normal((5, 8)).astype(kind)}


EXPRESSIONS = {
    "n0": np.matmul,
    "n2": lambda x: 1 / (1 + np.exp(-x)),
    "n3": np.multiply,
    "n6": np.tanh,
    "n9": np.multiply,
    "n10": np.exp,
    "n11": np.subtract,
}


def wrong(name, error=1e-3):
    """Return a kernel of that node whose results are off by a share of their size.

    It depends on the column: a normalization would correct a factor that they share.
    """
    factors = 1 + error * np.cos(np.arange(8))
    return lambda *inputs: (EXPRESSIONS[name](*inputs) * factors).astype(inputs[0].dtype)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_planted_error_is_ranked_first(name):
    model, feeds = chain()
    assert len(model.graph.node) == 12
    found = attribute(model, feeds, candidate={f"node:{name}": wrong(name)}, provider="cpu")
    assert [node.name for node in found.nodes] == [f"n{i}" for i in range(12)]
    first, second, *_ = found.ranking()
    assert first.name == name
    assert second.only_change.abs == 0
    # Alone, it explains everything; without it, nothing is left.
    assert first.only_change.abs == found.change.abs > 1e-5
    assert first.all_but_change.abs == 0
    assert first.local_change.rel == pytest.approx(1e-3, rel=0.01)
    assert (first.baseline, first.candidate) == ("torch", "callable")


@pytest.mark.parametrize("name", ["n0", "n6", "n11"])
def test_a_planted_error_stands_out_of_the_differences_between_libraries(name):
    model, feeds = chain()
    ort = dict.fromkeys([node.op_type for node in model.graph.node], "ort")
    candidate = {**ort, f"node:{name}": wrong(name)}
    found = attribute(model, feeds, candidate=candidate, provider="cpu")
    first, second, *_ = found.ranking()
    assert first.name == name
    assert first.only_change.mean_abs > 100 * second.only_change.mean_abs
    assert {node.candidate for node in found.nodes} == {"ort", "callable"}


def test_the_figures_are_those_of_runs_made_elsewhere():
    """The candidate of the middle node is a session of ONNX Runtime, the others are numpy."""
    text = f"""{HEADER} g (float[n, 16] X, float[16, 16] W) => (float[n, 16] Z) {{
    [exp] Y = Exp (X)  [product] P = MatMul (Y, W)  [abs] Z = Abs (P) }}"""
    rng = np.random.default_rng(1)
    feeds = {n: rng.standard_normal((16, 16)).astype(np.float32) for n in "XW"}
    found = attribute(text, feeds, "reference", {"MatMul": "ort"}, provider="cpu")
    product = found.nodes[1]
    y = np.exp(feeds["X"])
    one = f"{HEADER} g (float[n, 16] Y, float[16, 16] W) => (float[n, 16] P) {{ P = MatMul(Y, W) }}"
    (p,) = make_session(one, provider="cpu").run(None, {"Y": y, "W": feeds["W"]})
    assert product.local_change == max_diff([y @ feeds["W"]], [p])
    assert product.only_change == found.change == max_diff([np.abs(y @ feeds["W"])], [np.abs(p)])


def test_types_of_16_bits():
    model, feeds = chain("float16")
    found = attribute(model, feeds, candidate={"node:n6": wrong("n6", 0.01)}, provider="cpu")
    assert found.ranking()[0].name == "n6"
    assert found.change.dtype_got == "f16"
    # A node without kernel keeps that of the other side.
    x = np.random.default_rng(0).standard_normal((1, 3, 16)).astype(ml_dtypes.bfloat16)
    product = attribute(layer_norm_matmul(16, dtype="bfloat16"), {"X": x}, provider="cpu").nodes[1]
    assert (product.baseline, product.candidate) == ("torch", "torch")
    assert product.only_change.abs == 0


def test_what_a_node_with_graphs_executes_is_swapped_with_it():
    text = f"""{HEADER} g (float[n] X, bool c) => (float[n] Z) {{
    [before] Y = Abs (X)
    [choice] W = If (c) <
      then_branch = yes () => (float[n] T) {{ [inner] T = Exp (Y) }},
      else_branch = no () => (float[n] E) {{ [other] E = Neg (Y) }}>
    [after] Z = Sqrt (W) }}"""
    feeds = {"X": np.float32([1, 2, 3]), "c": np.array(True)}
    biased = {"node:inner": lambda x: np.exp(x) * np.float32(1.001)}
    found = attribute(text, feeds, candidate=biased, provider="cpu")
    assert [node.name for node in found.nodes] == ["before", "choice", "after"]
    first = found.ranking()[0]
    assert (first.name, first.op) == ("choice", "If")
    assert first.local_change.rel == pytest.approx(1e-3, rel=0.01)
    assert first.all_but_change.abs == 0


def test_local_functions_sequences_and_integers():
    text = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
    g (float[n] X) => (float[n] Z, int64[k] I, seq(float[n]) S) {
    [zero] zero = Constant <value_int = 0> ()
    [call] Y = own.twice (X)
    [list] S = SequenceConstruct (Y, X)
    [best] I = ArgMax <keepdims = 1> (Y)
    [last] Z = SequenceAt (S, zero) }
    <domain: "own", opset_import: ["": 21]> twice (x) => (y) { [sum] y = Add (x, x) }"""
    feeds = {"X": np.float32([1, 3, 2])}
    wrong_sum = {"node:sum": lambda x, y: (x + y) * np.float32([1.5, 1, 2])}
    found = attribute(text, feeds, candidate=wrong_sum, provider="cpu")
    assert [node.name for node in found.nodes] == ["call", "list", "best", "last"]
    assert found.ranking()[0].op == "own.twice"
    assert found.change.n == 3 + 1 + 6


@pytest.mark.parametrize("wrong_exp", [lambda y: y * np.float32([np.nan, 1]), lambda y: y[:-1]])
def test_nan_and_another_shape_outrank_everything(wrong_exp):
    text = f"""{HEADER} g (float[n] X) => (float[m] Z) {{
    [far] Y = Abs (X)  [last] Z = Exp (Y) }}"""
    candidate = {"node:far": lambda x: 9 * np.abs(x), "node:last": lambda x: wrong_exp(np.exp(x))}
    found = attribute(text, {"X": np.float32([1, 2])}, candidate=candidate, provider="cpu")
    assert [node.name for node in found.ranking()] == ["last", "far"]
    assert found.change.n_nan or not found.change.same_structure


def test_identical_kernels_run_once_more_at_most():
    """Two kernels that agree in both runs change nothing: the model is not run again for them."""
    calls = []
    model, feeds = chain()
    counting = {"node:n2": lambda x: calls.append(1) or (1 / (1 + np.exp(-x))).astype(x.dtype)}
    attribute(model, feeds, baseline=counting, candidate={}, provider="cpu")
    # Both walks, each with the other side beside it.
    assert len(calls) == 4


def test_a_swap_runs_what_follows_alone():
    calls = []

    def biased(rank):
        return lambda x: calls.append(rank) or np.abs(x) * np.float32(1.01)

    nodes = "\n".join(f"[n{i}] y{i + 1} = Abs (y{i})" for i in range(10))
    text = f"{HEADER} g (float[n] y0) => (float[n] y10) {{ {nodes} }}"
    candidate = {f"node:n{i}": biased(i) for i in range(10)}
    found = attribute(text, {"y0": np.float32([1, 2])}, "reference", candidate, provider="cpu")
    assert len(found.nodes) == 10
    # Beside the baseline, the candidate, alone; then one more each time that one before it is not
    # swapped.
    assert [calls.count(i) for i in range(10)] == [4 + i for i in range(10)]


def test_results_are_not_kept():
    """While a node runs, only what it reads and the outputs of whole runs are alive."""
    made, most = [], []

    def watched(x):
        most.append(sum(result() is not None for result in made))
        result = np.abs(x)
        made.append(weakref.ref(result))
        return result

    nodes = "\n".join(f"[n{i}] y{i + 1} = Abs (y{i})" for i in range(20))
    text = f"{HEADER} g (float[n] y0) => (float[n] y20) {{ {nodes} }}"
    kernels = {"Abs": watched}
    feeds, sources = {"y0": np.ones(4, np.float32)}, ("reference",)
    attribute(text, feeds, kernels, kernels, provider="cpu", sources=sources)
    assert len(most) >= 60
    assert max(most) <= 6


def test_a_node_that_no_output_needs_has_no_row():
    text = f"""{HEADER} g (float[n] X) => (float[n] Z, float[k] V) {{
    [two] two = Constant <value_ints = [2]> ()
    [used] Z = Abs (X)
    [dead] Y = Exp (X)
    [part] V, I = TopK (X, two) }}"""
    found = attribute(text, {"X": np.float32([1, 3, 2])}, provider="cpu")
    assert [node.name for node in found.nodes] == ["used", "part"]
    assert found.nodes[1].local_change.n == 4


def test_an_operator_that_no_source_knows():
    text = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
    g (float[n] X) => (float[n] Z) { [mine] Y = own.Cube (X)  [abs] Z = Abs (Y) }"""
    cube = {("own", "Cube"): lambda x: x**3}
    feeds = {"X": np.float32([1, -2, 3])}
    found = attribute(text, feeds, cube, {"Abs": "ort"}, provider="cpu")
    assert found.change.abs == 0
    assert found.nodes[0].baseline == found.nodes[0].candidate == "callable"
    with pytest.raises(ModelError, match=r"own\.Cube"):
        attribute(text, feeds, provider="cpu")


def test_tensors_of_torch_give_what_arrays_give():
    torch = pytest.importorskip("torch")
    model, feeds = chain()
    tensors = {name: torch.tensor(value) for name, value in feeds.items()}
    from_arrays = attribute(model, feeds, provider="cpu").to_frame()
    assert attribute(model, tensors, provider="cpu").to_frame().equals(from_arrays)


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_asked_of_each_library(tf32, monkeypatch):
    asked = []
    monkeypatch.setattr(
        Memory,
        "policy",
        lambda self: asked.append(self.tf32) or contextlib.nullcontext(),
    )

    def recorded(*arguments, tf32=None, **options):
        asked.append(tf32)
        return evaluator(*arguments, tf32=tf32, **options)

    evaluator = attribution.Evaluator
    monkeypatch.setattr(attribution, "Evaluator", recorded)
    attribute(*chain(), provider="cpu", tf32=tf32)
    assert asked == [tf32, tf32, tf32]


def test_the_frame_and_the_texts():
    model, feeds = chain()
    found = attribute(model, feeds, candidate={"node:n6": wrong("n6")}, provider="cpu")
    frame = found.to_frame()
    assert list(frame["node"]) == [f"n{i}" for i in range(12)]
    assert list(frame["op"])[:3] == ["MatMul", "Add", "Sigmoid"]
    worst = frame.loc[frame["only_change"].idxmax()]
    assert worst["node"] == "n6"
    assert worst["only_change"] == found.ranking()[0].only_change.mean_abs
    kinds = {"local_change", "only_change", "all_but_change"}
    assert set(frame.columns) == {"node", "op", "baseline", "candidate"} | kinds
    assert str(found).startswith("12 nodes on cpu")
    assert "largest effect: n6 (Tanh), " in str(found)
    assert found._repr_html_().count("<tr") == 13


OUTPUT = f"{HEADER} g (float[n] X) => (float[n] X) {{ [dead] Y = Abs (X) }}"
CONSTANT = f"""{HEADER} g (float[8] X) => (float[8] Z) {{
    [c] C = Constant <value_floats = [1.0]> ()  [s] Z = Add (X, C) }}"""


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"candidate": "onnx"}, InvalidArgumentError, "onnx"),
        ({"candidate": {"Gemm": "ort"}}, InvalidArgumentError, "'Gemm' match no node"),
        ({"candidate": {"Tanh": "cuda"}}, InvalidArgumentError, "'cuda' is not a kernel"),
        ({"feeds": {}}, FeedError, "X"),
        ({"provider": "tpu"}, InvalidArgumentError, "provider='tpu'"),
        ({"model": OUTPUT.replace("[dead] Y = Abs (X)", "")}, ModelError, "has no node"),
        ({"model": OUTPUT}, ModelError, "No output of this model needs a node"),
        (
            {"model": CONSTANT, "candidate": {"node:c": lambda **_: np.float32([2])}},
            InvalidArgumentError,
            "replaces a Constant",
        ),
        pytest.param(
            {"provider": "cuda"},
            ProviderUnavailableError,
            "cuda",
            marks=pytest.mark.skipif("cuda" in usable_providers(), reason="CUDA works here"),
        ),
    ],
)
def test_what_is_not_accepted_is_refused(options, error, message):
    model, feeds = chain()
    with pytest.raises(error, match=message):
        attribute(**{"model": model, "feeds": {"X": feeds["X"][0]}, "provider": "cpu", **options})


def test_a_mapping_leaves_the_other_nodes_on_the_first_source():
    model, feeds = chain()
    for sides, changed, others in (
        (({"Tanh": "reference"}, "ort"), ("reference", "ort"), ("torch", "ort")),
        (("ort", {"Tanh": "torch"}), ("ort", "torch"), ("ort", "ort")),
    ):
        found = attribute(model, feeds, *sides, provider="cpu")
        kernels = {node.op: (node.baseline, node.candidate) for node in found.nodes}
        assert kernels.pop("Tanh") == changed
        assert set(kernels.values()) == {others}
