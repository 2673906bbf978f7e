import onnx_ir
import pytest
import torch
from torch import nn

from ortmeter.backend import FallbackWarning, OrtBackend, building
from ortmeter.runtime.providers import Provider

X = torch.arange(12.0).reshape(3, 4)


def left_to_torch(function, argument, **options):
    backend = OrtBackend(**options)
    with torch.no_grad(), pytest.warns(FallbackWarning) as caught:
        torch.compile(function, backend=backend)(argument)
    assert backend.graphs == []
    return str(caught[0].message)


def test_tensors_of_another_device_are_left_to_torch():
    assert "tensors are on meta. Accepted: cpu, cuda" in left_to_torch(
        lambda x: x * 2, X.to("meta")
    )


def test_devices_are_not_mixed():
    message = left_to_torch(lambda x: (x * 2, (x * 2).to("meta")), X)
    assert "tensors are on cpu, meta: a session runs on one device" in message


def test_the_provider_asked_for_is_the_one_of_the_tensors(monkeypatch):
    monkeypatch.setattr("ortmeter.backend.ort_backend.resolve_provider", Provider.parse)
    message = left_to_torch(lambda x: x * 2, X, provider="cuda:1")
    assert "provider='cuda:1' was asked for while tensors are on cpu" in message


def test_a_kernel_that_is_missing_is_named():
    message = left_to_torch(lambda x: x @ x.t(), X.bfloat16())
    assert "Could not find an implementation for MatMul" in message
    assert "torch.compiler.disable" in message


def test_large_weights_are_not_seen_by_the_optimizer(monkeypatch):
    seen = []

    def look(model: onnx_ir.Model, level, **options):
        seen.append((len(model.graph.inputs), [v.name for v in model.graph.initializers.values()]))
        return original(model, level, **options)

    original = building.optimize_model
    monkeypatch.setattr(building, "optimize_model", look)
    with torch.no_grad():
        torch.compile(nn.Linear(4, 5000), backend=OrtBackend(fallback=False))(X)
        torch.compile(nn.Linear(4, 5), backend=OrtBackend(fallback=False))(X)
    assert [(inputs, len(names)) for inputs, names in seen] == [(2, 1), (1, 2)]
