"""Models that fail, or that our own readers must not stumble over: one line, exit code 2."""

import numpy as np
import onnx
import pytest
from cli_runs import HEADER, run, save

from ortmeter.cli import main

COMMANDS = {
    "bench": ["bench", "--repeat", "2", "--budget", "0.1"],
    "profile": ["profile", "--repeat", "2"],
    **{
        against: ["diff", "--search-budget", "1", "--against", against]
        for against in ("float64", "torch", "reference", "cpu")
    },
}
FAILING = {
    "Reshape": ("(float[4] X, int64[2] S) => (float[a, b] Y)", "Y = Reshape(X, S)", {"S": [3, 2]}),
    "Gather": ("(float[4] X, int64[1] I) => (float[1] Y)", "Y = Gather(X, I)", {"I": [9]}),
    "Add": ("(float[4] X, float[n] Z) => (float[m] Y)", "Y = Add(X, Z)", {"Z": np.zeros(3, "f4")}),
    "Div": ("(int32[4] X) => (int32[4] Y)", "Z = Sub(X, X) Y = Div(X, Z)", {"X": np.ones(4, "i4")}),
    "SequenceAt": (
        "(float[4] X, int64 I) => (float[4] Y)",
        "S = SequenceConstruct(X) Y = SequenceAt(S, I)",
        {"I": np.int64(3)},
    ),
    "Reshape in If": (
        "(float[4] X, bool C) => (float[n] Y)",
        """Y = If (C) <
            then_branch = t () => (float[n] A) {
                S = Constant <value_ints = [3]> ()  Z = Abs(X)  A = Reshape(Z, S) },
            else_branch = e () => (float[n] B) { B = Abs(X) }
        >""",
        {"C": np.array(True)},
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", FAILING)
def test_a_model_that_fails_is_one_line_and_exit_code_2(name, command, capfd, tmp_path):
    signature, body, feeds = FAILING[name]
    model = save(tmp_path / "model.onnx", f"{signature} {{ {body} }}")
    np.savez(tmp_path / "feeds.npz", **{"X": np.arange(4, dtype=np.float32), **feeds})
    given = [*COMMANDS[command], model, "--provider", "cpu", "--feeds", tmp_path / "feeds.npz"]
    html = tmp_path / "report.html"
    assert main([*map(str, given), "--html", str(html)]) == 2
    told = capfd.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith(f"ortmeter {given[0]}: The model failed on cpu: ")
    assert name.split()[0] in line
    assert "onnxruntime_src" not in line
    assert not html.exists()


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Run a command on a model; return its exit code and the lines of the standard error."""
    monkeypatch.chdir(tmp_path)

    def ran(model, *command):
        onnx.save(model, "m.onnx")
        done = run(*command, "m.onnx", "--provider", "cpu")
        return done.code, done.err.splitlines()

    return ran


def parsed(graph, **weights):
    model = onnx.parser.parse_model(f"{HEADER} g {graph}")
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("broken", ["attribute", "output", "kind"])
@pytest.mark.parametrize(
    "command", [["diff"], ["diff", "--precision", "float16"], ["profile", "--rewrite", "patterns"]]
)
def test_a_constant_that_is_malformed(told, broken, command):
    model = parsed(
        "(float[4] X) => (float[4] Y) { K = Constant<value_float = 1.0>() Y = Add(X, K) }"
    )
    node = model.graph.node[0]
    if broken == "kind":
        node.attribute[0].name = "value"
    else:
        del getattr(node, broken)[:]
    code, lines = told(model, *command)
    # ONNX Runtime reads a number where the tensor should be.
    assert code in ({0, 2} if broken == "kind" else {2})
    assert len(lines) == (code == 2)
    assert not any("unexpected" in line for line in lines)


def test_an_optional_output_is_its_element(told):
    model = parsed("(float[4] X) => (optional(float[4]) Y) { Y = Optional(X) }")
    assert told(model, "diff", "--atol", "0") == (0, [])


def test_a_model_without_a_node_to_measure(told):
    model = parsed("(float[4] X) => (float[4] Y) { Y = Identity(X) }")
    code, (line,) = told(model, "operators", "--model")
    assert code == 2
    assert line.endswith(
        "no node to measure: ONNX Runtime computes or removes every node before a run"
    )


PRODUCT = "(float[4, 8] X) => (float[4, 8] Y) { Y = MatMul(X, W) }"


def test_weights_of_nan_are_refused_in_one_line(told):
    model = parsed(PRODUCT, W=np.full((8, 8), np.nan, np.float32))
    code, lines = told(model, "diff", "--precision", "QDQ U8S8")
    assert (code, len(lines)) == (2, 1)


def without_bytes(model):
    model.graph.initializer[0].raw_data = b"abc"


def without_nodes(model):
    del model.graph.node[:]


def without_body(model):
    model.graph.node[0].op_type = "Loop"


@pytest.mark.parametrize(
    ("breaks", "reason"),
    [
        (without_bytes, "initializer 'W' cannot be read: buffer size"),
        (without_nodes, "m.onnx is not valid and cannot be cut: Graph output 'Y' is not"),
        (without_body, "m.onnx is not valid and cannot be cut: "),
    ],
)
def test_reduce_says_why_it_cannot_cut_what_fails(told, breaks, reason):
    model = parsed(PRODUCT, W=np.ones((8, 8), np.float32))
    breaks(model)
    code, lines = told(model, "reduce", "--until=fails")
    assert code == 2
    assert lines[-1].startswith(f"ortmeter reduce: {reason}")
