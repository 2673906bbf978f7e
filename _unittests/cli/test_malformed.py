"""Models that ONNX Runtime refuses, or takes, and that our own readers must not stumble over."""

import numpy as np
import onnx
import pytest
from commands import parse

from ortmeter.cli import main

PRODUCT = "(float[4, 8] X) => (float[4, 8] Y) { Y = MatMul(X, W) }"


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """Run a command on a model; return its exit code and the lines of the standard error."""
    monkeypatch.chdir(tmp_path)

    def ran(model, *command):
        onnx.save(model, "m.onnx")
        code = main([*command, "m.onnx", "--provider", "cpu"])
        return code, capsys.readouterr().err.splitlines()

    return ran


def without_attribute(node):
    del node.attribute[:]


def without_output(node):
    del node.output[:]


def of_another_kind(node):
    node.attribute[0].name = "value"


@pytest.mark.parametrize("breaks", [without_attribute, without_output, of_another_kind])
@pytest.mark.parametrize(
    "command", [["diff"], ["diff", "--precision", "float16"], ["profile", "--rewrite", "patterns"]]
)
def test_a_constant_that_is_malformed(told, breaks, command):
    model = parse(
        "(float[4] X) => (float[4] Y) { K = Constant<value_float = 1.0>() Y = Add(X, K) }"
    )
    breaks(model.graph.node[0])
    code, lines = told(model, *command)
    # ONNX Runtime reads a number where the tensor should be.
    assert code in ({0, 2} if breaks is of_another_kind else {2})
    assert len(lines) == (code == 2)
    assert not any("unexpected" in line for line in lines)


def test_an_optional_output_is_its_element(told):
    model = parse("(float[4] X) => (optional(float[4]) Y) { Y = Optional(X) }")
    assert told(model, "diff", "--atol", "0") == (0, [])


def test_a_model_without_a_node_to_measure(told):
    model = parse("(float[4] X) => (float[4] Y) { Y = Identity(X) }")
    code, (line,) = told(model, "operators", "--model")
    assert code == 2
    assert line.endswith(
        "no node to measure: ONNX Runtime computes or removes every node before a run"
    )


def test_weights_of_nan_are_refused_in_one_line(told):
    model = parse(PRODUCT, W=np.full((8, 8), np.nan, np.float32))
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
        (without_bytes, "Tensor 'W' cannot be read: buffer size"),
        (without_nodes, "m.onnx is not valid and cannot be cut: Graph output 'Y' is not"),
        (without_body, "m.onnx is not valid and cannot be cut: "),
    ],
)
def test_reduce_says_why_it_cannot_cut_what_fails(told, breaks, reason):
    model = parse(PRODUCT, W=np.ones((8, 8), np.float32))
    breaks(model)
    code, lines = told(model, "reduce", "--until=fails")
    assert code == 2
    assert lines[-1].startswith(f"ortmeter reduce: {reason}")
