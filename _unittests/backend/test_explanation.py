import pytest
import torch
from torch import nn

from ortmeter.backend import OrtBackend, UnsupportedGraphError, explain

X = torch.arange(12.0).reshape(3, 4) / 12


def model(x):
    y = nn.functional.silu(x)
    torch._dynamo.graph_break()
    return torch.linalg.svdvals(y) + 1


def test_each_graph_is_explained():
    with pytest.warns(UserWarning, match=r"aten\._linalg_svd"):
        explanation = explain(model, X)
    first, second = explanation.graphs
    assert first.compiled.fusions == {"Silu": 1}
    assert first.discrepancy.ulp <= 4
    assert second.compiled is None
    assert "aten._linalg_svd" in second.fallback.reason
    assert explanation.discrepancy.n == 3
    frame = explanation.to_frame()
    assert frame.runs_on.tolist() == ["onnxruntime cpu", "torch"]
    assert frame.nodes.tolist()[0] == 1
    assert frame.exported_nodes.tolist()[0] == 2
    operators = explanation.operators()
    assert operators.before.to_dict() == {
        (0, "Sigmoid"): 1,
        (0, "Mul"): 1,
        (0, "com.microsoft.QuickGelu"): 0,
    }
    assert operators.after.tolist() == [0, 0, 1]
    text = str(explanation)
    assert "graph 0: default+onnxruntime on cpu: 2 -> 1 nodes" in text
    assert "graph 1: left to torch" in text


def test_the_agreement_is_measured(monkeypatch):
    """A wrong kernel is seen: the session computes another function."""
    from ortmeter.backend import session

    def wrong(session, provider, **options):
        call = original(session, provider, **options)
        return lambda tensors: [result * 1.5 for result in call(tensors)]

    original = session.call_on_tensors
    monkeypatch.setattr(session, "call_on_tensors", wrong)
    explanation = explain(nn.ReLU(), X)
    assert explanation.graphs[0].discrepancy.abs == pytest.approx(X.max().item() / 2)
    assert explanation.discrepancy.abs == pytest.approx(X.max().item() / 2)


def test_inputs_are_left_as_they_are():
    def update(x):
        x.add_(1)
        return x * 2

    x = X.clone()
    explanation = explain(update, x)
    assert torch.equal(x, X)
    assert explanation.graphs[0].discrepancy.abs == 0


def test_the_options_are_those_of_the_backend():
    backend = OrtBackend("none", fallback=False)
    assert explain(nn.SiLU(), X, backend=backend).graphs[0].compiled is backend.graphs[0]
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        explain(torch.linalg.svdvals, X, backend=backend)
    assert isinstance(caught.value.inner_exception, UnsupportedGraphError)


def test_a_function_that_torch_runs_alone_has_no_graph():
    explanation = explain(lambda x: x.t(), X)
    assert explanation.operators().empty
    assert "nothing to compute" in str(explanation)
    assert explanation.to_frame().runs_on.tolist() == ["torch"]
