import importlib.metadata
import sys

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch._dynamo.backends import registry

import ortmeter.backend
from ortmeter.backend import FallbackWarning, OrtBackend, compile_graph, session
from ortmeter.errors import (
    InvalidArgumentError,
    MissingDependencyError,
    ProviderUnavailableError,
)
from ortmeter.runtime.providers import usable_providers
from ortmeter.timing import measuring
from ortmeter.timing.candidates import function_candidate

X = torch.arange(12.0).reshape(3, 4)


def compiled(backend, function=lambda x: x.softmax(1), **options):
    with torch.no_grad():
        return torch.compile(function, backend=backend, **options)(X)


@pytest.fixture
def sessions(monkeypatch):
    """Options of the sessions that were created."""
    seen = []

    def make_session(model, **options):
        seen.append(options)
        return original(model, **options)

    original = session.make_session
    monkeypatch.setattr(session, "make_session", make_session)
    return seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimize": "fast"}, "'fast'.*Accepted: none, default"),
        ({"optimize": "default-Nothing"}, "Nothing"),
        ({"threads": -1}, "threads=-1.*Accepted: None"),
        ({"provider": "gpu"}, "provider='gpu'.*Accepted: auto, cpu"),
    ],
)
def test_a_bad_option_is_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        OrtBackend(**options)


def test_an_unknown_option_is_refused():
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(compile_graph, options={"level": "default", "optimize": "none"})
    assert isinstance(caught.value.inner_exception, InvalidArgumentError)
    assert "Unknown options: level. Accepted: optimize, fallback, prepack, provider" in str(
        caught.value
    )


def test_options_reach_the_session(sessions):
    compiled(compile_graph, options={"tf32": True, "provider": "cpu"})
    compiled(OrtBackend(threads=2))
    first, second = sessions
    assert (first["tf32"], str(first["provider"])) == (True, "cpu")
    # Read now: another test of this process may have changed it.
    assert (first["threads"], second["threads"]) == (torch.get_num_threads(), 2)


def test_the_name_of_the_backend_finds_it(monkeypatch):
    point = importlib.metadata.EntryPoint(
        "ortmeter", "ortmeter.backend:compile_graph", "torch_dynamo_backends"
    )
    registry.list_backends()  # those of torch are registered once: before, or they would be lost
    monkeypatch.setattr(registry, "_BACKENDS", {**registry._BACKENDS, "ortmeter": point})
    monkeypatch.setattr(registry, "_COMPILER_FNS", dict(registry._COMPILER_FNS))
    got = compiled("ortmeter", options={"optimize": "none", "fallback": False})
    torch.testing.assert_close(got, X.softmax(1))


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "ortmeter\[torch\]"'):
        ortmeter.backend.__getattr__("OrtBackend")  # which is kept once it was found


def test_the_record_tells_what_was_done():
    backend = OrtBackend(fallback=False)
    compiled(backend, lambda x: (x @ x.t()).relu())
    (graph,) = backend.graphs
    assert graph.exported_operators == {"Transpose": 1, "MatMul": 1, "Relu": 1}
    assert graph.operators == {"com.microsoft.FusedMatMul": 1, "Relu": 1}
    assert (graph.node_count, graph.custom_count) == (2, 1)
    assert graph.fusions == {"TransposedWeight": 1}
    assert graph.level == "default+onnxruntime"
    assert sum(graph.placement.values()) == 2
    assert min(graph.export_s, graph.optimization_s, graph.session_s) > 0
    assert graph.refusals == ()


def test_the_record_tells_why_a_rule_does_not_apply():
    backend = OrtBackend(fallback=False)
    compiled(backend, lambda x: torch.softmax(torch.tanh(x @ x.t() / 50) * 50, -1) @ x)
    (refusal,) = backend.graphs[0].refusals
    assert refusal.rule == "EagerAttention"
    assert refusal.reason == "the scores are not scaled products with transposed keys"


def test_the_model_of_a_graph_has_no_large_weight_and_no_path():
    backend = OrtBackend()
    layer = nn.Linear(4, 5000)
    compiled(backend, layer)
    model = backend.graphs[0].model
    onnx.checker.check_model(model, full_check=True)
    assert model.ByteSize() < layer.weight.nbytes / 2
    assert len(model.graph.input) == 2
    assert backend.graphs[0].weight_bytes == layer.weight.nbytes
    assert b".py" not in model.SerializeToString()


def compile_linear():
    import functools

    import torch
    from torch import nn

    from ortmeter.backend import OrtBackend

    model = nn.Linear(2, 2).requires_grad_(False)
    run = torch.compile(model, backend=OrtBackend(fallback=False), fullgraph=True)
    return functools.partial(run, torch.ones(1, 2))


def test_models_of_one_class_are_compiled_for_each_set_of_sessions():
    """After eight compilations of a function, torch runs it eagerly, or stops with *fullgraph*."""
    specs = dict.fromkeys("ab", function_candidate(compile_linear).spawn_spec(None))
    rng = np.random.default_rng(0)
    assert len(measuring.measure_sets(specs, 60.0, 0.0, rng, repeat=1)) == 6


def test_a_provider_that_does_not_work_is_refused():
    if "cuda" in usable_providers():
        pytest.skip("CUDA works here")
    with pytest.raises(ProviderUnavailableError, match="provider='cuda'"):
        OrtBackend(provider="cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("prepack", [False, True])
def test_cuda_runs_on_cuda(prepack):
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8)).cuda()
    x = torch.randn(16, 256, device="cuda")
    backend = OrtBackend(prepack=prepack, fallback=False)
    with torch.no_grad():
        run = torch.compile(model, backend=backend)
        torch.testing.assert_close(run(x), model(x))
        model[0].weight.mul_(2)
        torch.testing.assert_close(run(x), model(x))
    assert backend.graphs[0].provider == "cuda"
    assert set(backend.graphs[0].placement) == {"CUDAExecutionProvider"}


@pytest.mark.cuda
def test_cuda_follows_the_stream_of_torch():
    run = torch.compile(lambda x: (x @ x).relu(), backend=OrtBackend(fallback=False))
    x = torch.randn(2048, 2048, device="cuda")
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    with torch.no_grad():
        run(x)
        for stream in streams * 5:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                y = x * 1.5
                torch.testing.assert_close(run(y), (y @ y).relu(), rtol=1e-3, atol=1e-3)
            torch.cuda.current_stream().wait_stream(stream)


@pytest.mark.cuda
def test_tensors_on_two_devices_are_explained():
    backend = OrtBackend()
    with pytest.warns(FallbackWarning, match="on cpu, cuda"):
        compiled(backend, lambda x: (x.cuda() * 2).cpu())
    assert "on cpu, cuda" in backend.fallbacks[0].reason
