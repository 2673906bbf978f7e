"""The internals of torch and ONNX Runtime, and what stands for them when they are gone."""

import contextlib
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from ortmeter.backend import OrtBackend, _internals
from ortmeter.backend._internals import call_on_tensors
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session

MODEL = """<ir_version: 10, opset_import: ["": 21]>
g (float[n] X, bool[n] B) => (float[n] Y, bool[n] C) { Y = Where(B, X, X)  C = Not(B) }"""
CPU = Provider("cpu")


@pytest.fixture
def without_vectors(monkeypatch):
    def import_stub(name, *extras):
        assert name == "onnxruntime.capi._pybind_state"
        return SimpleNamespace()

    monkeypatch.setattr(_internals, "import_optional", import_stub)


@pytest.fixture
def plain(monkeypatch, without_vectors):
    """A torch and an ONNX Runtime without any of the internals."""
    monkeypatch.delattr(torch._guards, "tracing")
    monkeypatch.setattr(_internals, "torch", _PlainTorch())


class _PlainTorch:
    """Torch without its private names."""

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(torch, name)


def check_call():
    session = make_session(MODEL, provider="cpu")
    call = call_on_tensors(session, CPU, synchronize=True)
    x = torch.arange(6.0).reshape(3, 2)[:, 1].requires_grad_()  # a view that needs its gradient
    b = torch.tensor([True, False, True])
    y, c = call([x, b])
    np.testing.assert_array_equal(y.numpy(), [1, 3, 5])
    assert c.dtype == torch.bool
    assert c.tolist() == [False, True, False]
    return call


def test_a_call_takes_and_returns_tensors():
    assert "_direct_call" in check_call().__qualname__


def test_a_call_goes_through_a_binding_without_vectors(without_vectors):
    assert "_bound_call" in check_call().__qualname__


def test_outputs_are_those_of_each_call():
    session = make_session(MODEL, provider="cpu")
    call = call_on_tensors(session, CPU, synchronize=True)
    b = torch.ones(2, dtype=torch.bool)
    first = call([torch.zeros(2), b])[0]
    call([torch.ones(2), b])
    assert first.tolist() == [0, 0]


def test_asynchronous_calls_are_asked_of_onnxruntime(monkeypatch):
    entries = []

    class Options(onnxruntime.RunOptions):
        def add_run_config_entry(self, key, value):
            entries.append((key, value))

    monkeypatch.setattr(onnxruntime, "RunOptions", Options)
    session = make_session(MODEL, provider="cpu")
    call_on_tensors(session, CPU, synchronize=True)
    assert entries == []
    call_on_tensors(session, CPU, synchronize=False)
    assert entries == [("disable_synchronize_execution_providers", "1")]


def test_the_backend_works_without_the_internals(plain):
    assert isinstance(_internals.outside_tracing(), contextlib.nullcontext)
    backend = OrtBackend(fallback=False)
    model = nn.Sequential(nn.Linear(4, 200), nn.ReLU(), nn.Linear(200, 200))
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        x = torch.ones(3, 4)
        torch.testing.assert_close(compiled(x), model(x))
    assert backend.graphs[0].weight_bytes == 200 * 200 * 4


def test_parameters_are_weights_without_the_mark_of_dynamo():
    node = SimpleNamespace(meta={})
    assert _internals.is_weight(node, nn.Parameter(torch.ones(1)))
    assert not _internals.is_weight(node, torch.ones(1))
    node.meta["tensor_dict"] = {"_dynamo_static_input_type": "unguarded"}
    assert _internals.is_weight(node, torch.ones(1))


def test_versions_are_unknown_when_torch_does_not_count():
    assert _internals.version_of(torch.zeros(1).add_(1)) == 1
    with torch.inference_mode():
        assert _internals.version_of(torch.zeros(1)) is None
