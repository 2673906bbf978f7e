"""Tests of ortmeter.runtime.rewriting: what public graph optimizers make of a model."""

import logging
import sys

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from ortmeter.errors import InvalidArgumentError, MissingDependencyError, ModelError
from ortmeter.runtime import rewriting
from ortmeter.runtime.models import sample_transformer
from ortmeter.runtime.rewriting import REWRITERS, rewrite_model

MODEL = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18]>
g (float[2, 4] X) => (float[2, 4] Y) <float[1] one = {1}, float[1] two = {2}> {
  three = Add(one, two)  A = Identity(X)  B = Mul(A, three)  C = Mul(X, three)  Y = Add(B, C) }""")
MODEL.graph.name = "six times"


@pytest.mark.parametrize("name", [name for name in REWRITERS if name != "patterns"])
def test_a_rewritten_model_computes_the_same_with_fewer_nodes(name):
    pytest.importorskip(name) if name in {"onnxsim", "onnxslim"} else None
    before = MODEL.SerializeToString()
    rewritten = rewrite_model(MODEL, name)
    assert MODEL.SerializeToString() == before
    assert rewritten is not MODEL
    x = np.float32([[1, -2, 3, 0], [0.5, 4, 8, -1]])
    (got,) = ReferenceEvaluator(rewritten).run(None, {"X": x})
    assert np.array_equal(got, 6 * x)
    assert (len(rewritten.graph.node) < 5) == (name != "none")


def test_patterns_are_written_with_their_operators():
    text = """<ir_version: 10, opset_import: ["": 18]> g (float[4] X) => (float[4] Y)
    <float three = {3}, float zero = {0}, float six = {6}> {
      A = Add(X, three)  B = Clip(A, zero, six)  Y = Div(B, six) }"""
    rewritten = rewrite_model(text, "patterns")
    assert [node.op_type for node in rewritten.graph.node] == ["HardSigmoid"]
    with pytest.raises(ModelError, match="no form of HardSwish"):
        rewrite_model(MODEL, "patterns")


def test_options_reach_the_optimizer():
    encoder = sample_transformer(tokens=8, width=16, heads=2, layers=1)
    found = rewrite_model(encoder, "transformers", model_type="bert", num_heads=2, hidden_size=16)
    assert {"LayerNormalization"} < {node.op_type for node in found.graph.node}
    with pytest.raises(ModelError, match="transformers failed: TypeError: .*'heads'"):
        rewrite_model(encoder, "transformers", heads=2)


def test_what_an_optimizer_logs_is_dropped_and_the_log_is_as_before(monkeypatch, caplog):
    def fail(_model):
        logging.getLogger("its own").warning("tried")
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(rewriting, "REWRITERS", {"other": fail})
    with pytest.raises(ModelError, match="other failed: ZeroDivisionError: by zero"):
        rewrite_model(MODEL, "other")
    assert caplog.records == []
    logging.getLogger("ours").warning("kept")
    assert [record.message for record in caplog.records] == ["kept"]


def test_what_is_not_known_or_not_installed_is_said(monkeypatch):
    with pytest.raises(InvalidArgumentError, match="got 'onnxoptimizer'. Accepted: none, onnxsim"):
        rewrite_model(MODEL, "onnxoptimizer")
    monkeypatch.setitem(sys.modules, "onnxslim", None)
    with pytest.raises(MissingDependencyError, match=r'onnxslim .* "ortmeter\[rewrite\]"'):
        rewrite_model(MODEL, "onnxslim")
