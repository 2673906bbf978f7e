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
    for by in ("mean", "ulp", "abs"):
        first, second, *_ = found.ranking(by)
        assert first.name == name
        assert second.only_change.abs == 0
    # Alone, it explains everything; without it, nothing is left.
    assert first.only_change.abs == found.change.abs > 1e-5
    assert first.all_but_change.abs == 0
    assert first.local_change.rel == pytest.approx(1e-3, rel=0.01)
    assert first.local_error_candidate.rel > 100 * first.local_error_baseline.rel
    assert first.only_error.abs > 30 * first.all_but_error.abs
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
    exact = np.exp(feeds["X"].astype(np.float64)) @ feeds["W"].astype(np.float64)
    same_inputs = y.astype(np.float64) @ feeds["W"].astype(np.float64)
    assert product.local_change == max_diff([y @ feeds["W"]], [p])
    # Two libraries give two results in float64, as close as it allows.
    local_error, error = max_diff(same_inputs, p), max_diff(np.abs(exact), np.abs(p))
    assert product.local_error_candidate.abs == pytest.approx(local_error.abs, rel=1e-6)
    assert product.only_error.abs == pytest.approx(error.abs, rel=1e-6)
    assert product.only_error.mean_abs == pytest.approx(error.mean_abs, rel=1e-6)
    assert product.only_change == max_diff([np.abs(y @ feeds["W"])], [np.abs(p)])
    assert found.errors["candidate"] == product.only_error
    assert found.errors["baseline"] == product.all_but_error


def test_controls():
    model, feeds = chain()
    found = attribute(model, feeds, provider="cpu")
    assert set(found.errors) == {"baseline", "candidate"}
    assert {name: one.abs for name, one in found.controls.items()} == {
        "baseline, run twice": 0,
        "candidate, run twice": 0,
    }


def test_a_kernel_that_is_not_repeatable_fails_its_control():
    model, feeds = chain()
    rng = np.random.default_rng(0)
    noisy = {"node:n6": lambda x: np.tanh(x) + rng.normal(0, 1e-3, x.shape).astype(x.dtype)}
    found = attribute(model, feeds, candidate=noisy, provider="cpu")
    assert found.controls["baseline, run twice"].abs == 0
    assert found.controls["candidate, run twice"].abs > 1e-4


def test_every_node_of_a_float16_model_is_studied():
    model, feeds = chain("float16")
    found = attribute(model, feeds, candidate={"node:n6": wrong("n6", 0.01)}, provider="cpu")
    assert found.ranking()[0].name == "n6"
    assert found.change.dtype_got == "f16"
    assert found.errors["baseline"].dtype_expected == "f64"


def test_a_node_without_kernel_keeps_that_of_the_other_side():
    model = layer_norm_matmul(16, dtype="bfloat16")
    x = np.random.default_rng(0).standard_normal((1, 3, 16)).astype(ml_dtypes.bfloat16)
    found = attribute(model, {"X": x}, provider="cpu")
    product = found.nodes[1]
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
    assert found.change.n_arrays == 4


def test_a_nan_outranks_everything():
    model, feeds = chain()
    candidate = {
        "node:n0": wrong("n0", 0.5),
        "node:n10": lambda x: np.exp(x) * np.float32([np.nan, *[1] * 7]),
    }
    found = attribute(model, feeds, candidate=candidate, provider="cpu")
    assert [node.name for node in found.ranking()][:2] == ["n10", "n0"]


def test_another_shape_is_a_discrepancy():
    text = f"""{HEADER} g (float[n] X) => (float[m] Z) {{
    [keep] Y = Abs (X)  [cut] Z = Exp (Y) }}"""
    candidate = {"node:cut": lambda x: np.exp(x)[:-1]}
    found = attribute(text, {"X": np.float32([1, 2])}, candidate=candidate, provider="cpu")
    assert found.ranking()[0].name == "cut"
    assert not found.change.same_structure


def test_identical_kernels_run_once_more_at_most():
    """Two kernels that agree in both runs change nothing: the model is not run again for them."""
    calls = []
    model, feeds = chain()
    counting = {"node:n2": lambda x: calls.append(1) or (1 / (1 + np.exp(-x))).astype(x.dtype)}
    attribute(model, feeds, baseline=counting, candidate={}, provider="cpu")
    # Both walks, each with the other side beside it, and both controls.
    assert len(calls) == 6


def test_a_swap_runs_what_follows_alone():
    calls = []

    def biased(rank):
        return lambda x: calls.append(rank) or np.abs(x) * np.float32(1.01)

    nodes = "\n".join(f"[n{i}] y{i + 1} = Abs (y{i})" for i in range(10))
    text = f"{HEADER} g (float[n] y0) => (float[n] y10) {{ {nodes} }}"
    candidate = {f"node:n{i}": biased(i) for i in range(10)}
    found = attribute(text, {"y0": np.float32([1, 2])}, "reference", candidate, provider="cpu")
    assert len(found.nodes) == 10
    # Beside the baseline, the candidate twice, alone; then one more each time that one before it
    # is not swapped. The last candidate of a walk is not needed.
    assert [calls.count(i) for i in range(9)] == [5 + i for i in range(9)]
    assert calls.count(9) == 4 + 9


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
    attribute(
        text,
        {"y0": np.ones(4, np.float32)},
        baseline=kernels,
        candidate=kernels,
        provider="cpu",
        sources=("reference",),
    )
    assert len(most) > 60
    assert max(most) <= 6


def test_the_bar_counts_what_is_done(monkeypatch):
    bars = []

    class Bar:
        def __init__(self, description, total):
            self.total, self.done = total, 0
            bars.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def update(self, count=1):
            self.done += count

    monkeypatch.setattr(attribution, "progress_bar", Bar)
    attribute(*chain(), provider="cpu")
    (bar,) = bars
    assert bar.done == bar.total == 4 * 12


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
    found = attribute(text, feeds, cube, {"Abs": "ort"}, provider="cpu", exact_kernels=cube)
    assert found.errors["baseline"].abs == 0
    assert found.nodes[0].baseline == found.nodes[0].candidate == "callable"
    with pytest.raises(ModelError, match=r"own\.Cube"):
        attribute(text, feeds, cube, {"Abs": "ort"}, provider="cpu")


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
        lambda self, *, tf32: asked.append(tf32) or contextlib.nullcontext(),
    )

    def recorded(*arguments, tf32=None, **options):
        asked.append(tf32)
        return evaluator(*arguments, **options)

    evaluator = attribution.Evaluator
    monkeypatch.setattr(attribution, "Evaluator", recorded)
    attribute(*chain(), provider="cpu", tf32=tf32)
    assert asked == [tf32, tf32, None, tf32]


def test_the_frame_and_the_texts():
    model, feeds = chain()
    found = attribute(model, feeds, candidate={"node:n6": wrong("n6")}, provider="cpu")
    frame = found.to_frame()
    assert list(frame["node"]) == [f"n{i}" for i in range(12)]
    assert list(frame["op"])[:3] == ["MatMul", "Add", "Sigmoid"]
    worst = frame.loc[frame["only_change_ulp"].idxmax()]
    assert worst["node"] == "n6"
    assert worst["only_change_abs"] == found.ranking()[0].only_change.abs
    kinds = ("local_change", "local_error_baseline", "local_error_candidate", "only_change")
    kinds += ("only_error", "all_but_change", "all_but_error")
    figures = {f"{kind}_{figure}" for kind in kinds for figure in ("ulp", "abs", "mean")}
    assert set(frame.columns) == {"node", "op", "baseline", "candidate"} | figures
    assert str(found).startswith("12 nodes on cpu")
    assert "largest effect: n6 (Tanh), " in str(found)
    assert found._repr_html_().count("<tr") == 13


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"candidate": "onnx"}, InvalidArgumentError, "onnx"),
        ({"baseline": "numpy"}, InvalidArgumentError, "numpy"),
        ({"candidate": {"Gemm": "ort"}}, InvalidArgumentError, "'Gemm' match no node"),
        ({"candidate": {"Tanh": "cuda"}}, InvalidArgumentError, "'cuda' is not a kernel"),
        ({"feeds": {}}, FeedError, "X"),
        ({"provider": "tpu"}, InvalidArgumentError, "provider='tpu'"),
    ],
)
def test_what_is_not_accepted_is_refused(options, error, message):
    model, feeds = chain()
    with pytest.raises(error, match=message):
        attribute(model, **{"feeds": feeds, "provider": "cpu", **options})


def test_a_model_without_node_is_refused():
    model, feeds = chain()
    del model.graph.node[:]
    with pytest.raises(ModelError, match="has no node"):
        attribute(model, feeds, provider="cpu")


def test_a_model_whose_outputs_are_inputs_is_refused():
    text = f"{HEADER} g (float[n] X) => (float[n] X) {{ [dead] Y = Abs (X) }}"
    with pytest.raises(ModelError, match="No output of this model needs a node"):
        attribute(text, {"X": np.float32([1])}, provider="cpu")


def test_a_mapping_leaves_the_other_nodes_on_the_first_source():
    model, feeds = chain()
    found = attribute(model, feeds, {"Tanh": "reference"}, "ort", provider="cpu")
    kernels = {node.op: (node.baseline, node.candidate) for node in found.nodes}
    assert kernels.pop("Tanh") == ("reference", "ort")
    assert set(kernels.values()) == {("torch", "ort")}
    found = attribute(model, feeds, "ort", {"Tanh": "torch"}, provider="cpu")
    kernels = {node.op: (node.baseline, node.candidate) for node in found.nodes}
    assert kernels.pop("Tanh") == ("ort", "torch")
    assert set(kernels.values()) == {("ort", "ort")}
    assert found.controls["candidate, run twice"].abs == 0


def test_a_constant_is_not_a_kernel():
    text = f"""{HEADER} g (float[1] X) => (float[1] Z) {{
    [c] C = Constant <value_floats = [1.0]> ()  [s] Z = Add (X, C) }}"""
    candidate = {"node:c": lambda **_: np.float32([2])}
    with pytest.raises(InvalidArgumentError, match="replaces a Constant"):
        attribute(text, {"X": np.float32([1])}, candidate=candidate, provider="cpu")


def test_a_ranking_by_something_else_is_refused():
    model, feeds = chain()
    found = attribute(model, feeds, candidate={}, provider="cpu")
    assert found.change.abs == 0
    with pytest.raises(InvalidArgumentError, match="by='rel'. Accepted: 'ulp', 'abs', 'mean'"):
        found.ranking("rel")


def test_a_provider_that_does_not_work_is_refused():
    if "cuda" in usable_providers():
        pytest.skip("CUDA works on this machine")
    model, feeds = chain()
    with pytest.raises(ProviderUnavailableError, match="cuda"):
        attribute(model, feeds, provider="cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_the_choice_of_each_library(tf32):
    model = layer_norm_matmul(512)
    x = ((np.random.default_rng(0).random((1, 256, 512)) - 0.5) * 120).astype(np.float32)
    found = attribute(model, {"X": x}, provider="cuda", tf32=tf32)
    product = found.nodes[1]
    assert (product.local_error_baseline.ulp_at_max > 50) == tf32
    assert (product.local_error_candidate.ulp_at_max > 50) == tf32
    assert found.controls["baseline, run twice"].abs == 0


def test_a_model_with_operators_without_float64_is_explained():
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[4, 8] X) => (float[4, 8] Y)
    <float third = {0.33333334}> {
        S = Mul(X, third)
        Q, s, z = DynamicQuantizeLinear(S)
        D = DequantizeLinear(Q, s, z)
        [last] Y = Add(D, S)
    }"""
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    biased = {"node:last": lambda a, b: a + b * np.float32(1.001)}
    found = attribute(text, {"X": x}, "reference", biased, provider="cpu")
    assert len(found.nodes) == 4
    assert found.ranking()[0].name == "last"
    assert found.errors["baseline"].abs < 1e-6
