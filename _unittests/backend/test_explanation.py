from dataclasses import replace

import pytest
import torch
from torch import nn

from ortmeter.backend import OrtBackend, UnsupportedGraphError, explain

X = torch.arange(12.0).reshape(3, 4) / 12


def model(x):
    y = x @ x.t()
    torch._dynamo.graph_break()
    return torch.linalg.svdvals(y) + 1


def test_each_graph_is_explained():
    with pytest.warns(UserWarning, match=r"aten\._linalg_svd"):
        explanation = explain(model, X)
    first, second = explanation.graphs
    assert first.fusions == {"TransposedWeight": 1}
    assert "aten._linalg_svd" in second.reason
    assert explanation.discrepancy.n == 3
    assert (first.provider, first.node_count) == ("cpu", 1)
    text = str(explanation)
    assert "graph 0: default+onnxruntime on cpu: 2 -> 1 nodes" in text
    assert "before: Transpose 1, MatMul 1\n  after: com.microsoft.FusedMatMul 1" in text
    assert "graph 1: runs on torch" in text


def test_the_agreement_is_measured(monkeypatch):
    """A wrong kernel is seen: the session computes another function."""
    from ortmeter.backend import session

    def wrong(program, arguments):
        return [result * 1.5 for result in original(program, arguments)]

    original = session.Program.run
    monkeypatch.setattr(session.Program, "run", wrong)
    explanation = explain(nn.ReLU(), X)
    assert explanation.discrepancy.abs == pytest.approx(X.max().item() / 2)


def test_inputs_are_left_as_they_are():
    def update(x):
        x.add_(1)
        return x * 2

    x = X.clone()
    with pytest.warns(UserWarning, match="the graph writes into"):
        explanation = explain(update, x)
    assert torch.equal(x, X)
    assert explanation.discrepancy.abs == 0


def test_the_options_are_those_of_the_backend():
    alone = explain(lambda x: x.t(), X)
    assert "nothing to compute" in str(alone)
    assert alone.graphs == (None,)
    backend = OrtBackend("none", fallback=False)
    assert explain(nn.SiLU(), X, backend=backend).graphs[0] is backend.graphs[0]
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        explain(torch.linalg.svdvals, X, backend=backend)
    assert isinstance(caught.value.inner_exception, UnsupportedGraphError)


def test_why_a_rule_does_not_apply_is_told():
    def attend(q, k, v):
        scores = torch.softmax(torch.tanh(q @ k.transpose(2, 3) / 50) * 50, -1)
        return scores @ v

    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    explanation = explain(attend, q, k, v)
    refusals = {refusal.rule: refusal for refusal in explanation.graphs[0].refusals}
    assert {rule: refusal.reason for rule, refusal in refusals.items()} == {
        "EagerAttention": "the scores are not scaled products with transposed keys",
    }
    told = f"EagerAttention not applied 1 times, first at {refusals['EagerAttention'].result}:"
    assert told in str(explanation)


def test_what_nobody_measured_is_told():
    """What the rules bring was measured on CPU only."""
    explanation = explain(lambda x: x @ x.t(), X)
    assert "not measured" not in str(explanation)
    (graph,) = explanation.graphs
    on_cuda = replace(explanation, graphs=(replace(graph, provider="cuda:1"),))
    assert "rules not measured on cuda:1: TransposedWeight" in str(on_cuda)
