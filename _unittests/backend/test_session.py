"""Sessions: what builds and runs them, and what stands for internals that are gone."""

import contextlib
import gc
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
from torch import nn

from ortmeter.backend import FallbackWarning, OrtBackend, session
from ortmeter.backend.session import call_on_tensors, follow_stream, session_stream
from ortmeter.errors import ProviderUnavailableError
from ortmeter.runtime.ortvalues import to_ortvalue
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session
from ortmeter.workloads.startup import resident_memory

X = torch.arange(12.0).reshape(3, 4)
CPU = Provider("cpu")
# Where a graph runs, and what its session is built from.


def left_to_torch(function, argument, **options):
    backend = OrtBackend(**options)
    with torch.no_grad(), pytest.warns(FallbackWarning) as caught:
        torch.compile(function, backend=backend)(argument)
    assert backend.graphs == []
    return str(caught[0].message)


def test_a_graph_runs_where_its_tensors_are(monkeypatch):
    own = torch._dynamo.dont_skip_tracing(torch.onnx.ops.symbolic)  # says that its result is on cpu
    for function in (
        lambda x: x * 2,
        lambda x: own("::Relu", (x,), dtype=x.dtype, shape=x.shape, version=20),
    ):
        message = left_to_torch(function, X.to("meta"))
        assert "tensors are on meta. Accepted: cpu, cuda" in message
    message = left_to_torch(lambda x: (x * 2, (x * 2).to("meta")), X)
    assert "tensors are on cpu, meta: a session runs on one device" in message
    monkeypatch.setattr("ortmeter.backend.ort_backend.resolve_provider", Provider.parse)
    message = left_to_torch(lambda x: x * 2, X, provider="cuda:1")
    assert "provider='cuda:1' was requested but tensors are on cpu" in message


# Programs, threads, memory.


def test_weights_are_bound_once(monkeypatch):
    made = []

    def watched(*arguments, **options):
        hold, call = original(*arguments, **options)

        def count(tensor):
            made.append(tuple(tensor.shape))
            return hold(tensor)

        return count, call

    original = session.call_on_tensors
    monkeypatch.setattr(session, "call_on_tensors", watched)
    model = nn.Sequential(nn.Linear(200, 200, bias=False), nn.Linear(200, 300, bias=False))
    # a weight that is not contiguous is copied at each call
    model[0].weight = nn.Parameter(model[0].weight.detach().t())
    x, backend = torch.ones(3, 200), OrtBackend(prepack=False, fallback=False)
    run = torch.compile(model, backend=backend)

    def check():
        for _ in range(2):
            torch.testing.assert_close(run(x), model(x))

    with torch.no_grad():
        check()
        assert made == [(300, 200)]
        for layer in model:
            layer.weight.mul_(2)  # seen where it is
        check()
        assert made == [(300, 200)]
        model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}, assign=True)
        check()
        model[1].weight.data = model[1].weight * 3
        check()
    assert made[0] == (300, 200)
    assert set(made[1:]) <= {(200, 200), (300, 200)}
    assert len(made) == 3
    assert [graph.builds for graph in backend.graphs] == [1]


def compile_graph_alone(function, backend, *arguments):
    """Compile a function, return what the backend gave to dynamo."""
    found = []

    def keep(module, given):
        found.append(backend(module, given))
        return found[-1]

    with torch.no_grad():
        torch.compile(function, backend=keep)(*arguments)
    return found[0]


def test_threads_may_share_a_compiled_model():
    backend = OrtBackend(threads=1, fallback=False)
    model = nn.Sequential(nn.Linear(32, 300), nn.GELU(), nn.Linear(300, 8)).eval()
    run = torch.compile(model, backend=backend)
    inputs = [torch.randn(5, 32) for _ in range(8)]
    failures = []

    def call(x, expected):
        with torch.no_grad():
            same = [torch.allclose(run(x), expected, atol=1e-5) for _ in range(30)]
        failures.append(same.count(False))

    with torch.no_grad():
        run(inputs[0])
        threads = [threading.Thread(target=call, args=(x, model(x))) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [0] * 8
    assert len(backend.graphs) == 1


def test_threads_that_change_weights_build_one_session_each_time():
    backend = OrtBackend(threads=1, fallback=False)
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        compiled(X)
        model.weight.add_(1)
        expected = model(X)
    results = []

    def call():
        with torch.no_grad():
            results.append(compiled(X))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(results, [expected] * 4)
    assert [graph.builds for graph in backend.graphs] == [2]


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system must tell the memory"
)
@pytest.mark.parametrize("prepack", [False, True])
def test_calls_do_not_make_memory_grow(prepack):
    backend = OrtBackend(threads=1, prepack=prepack, fallback=False)
    model = nn.Linear(256, 256)
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(1024, 256)  # one leaked output is 1 MiB

    def grown(calls):
        before, _ = resident_memory()
        for _ in range(calls):
            compiled(x)
        gc.collect()
        return resident_memory()[0] - before

    with torch.no_grad():
        grown(20)
        assert grown(200) < 20  # MiB


def test_a_failure_during_a_run_leaves_the_graph_to_torch():
    backend = OrtBackend()
    run = compile_graph_alone(lambda x: x @ torch.ones(4, 2), backend, X)
    wide = torch.ones(3, 4, dtype=torch.float64)
    with pytest.warns(FallbackWarning, match="ONNX Runtime failed"), pytest.raises(RuntimeError):
        run(wide)  # what dynamo guards against: torch refuses it as well
    assert backend.graphs == []
    assert backend.fallbacks[0].operations == 2
    torch.testing.assert_close(run(X)[0], X @ torch.ones(4, 2))


# Calls on tensors.

MODEL = """<ir_version: 10, opset_import: ["": 21]>
g (float[n] X, bool[n] B) => (float[n] Y, bool[n] C) { Y = Where(B, X, X)  C = Not(B) }"""


def test_a_call_takes_and_returns_tensors():
    _, call = call_on_tensors(
        make_session(MODEL, provider="cpu"), CPU, ["X", "B"], synchronize=True
    )
    x = torch.arange(6.0).reshape(3, 2)[:, 1].requires_grad_()  # a view that needs its gradient
    b = torch.tensor([True, False, True])
    y, c = call([], [x, b])
    np.testing.assert_array_equal(y.numpy(), [1, 3, 5])
    assert c.dtype == torch.bool
    assert c.tolist() == [False, True, False]
    call([], [x + 1, b])
    np.testing.assert_array_equal(y.numpy(), [1, 3, 5])  # of its own call


def test_asynchronous_calls_are_asked_of_onnxruntime(monkeypatch):
    entries = []

    class Options(onnxruntime.RunOptions):
        def add_run_config_entry(self, key, value):
            entries.append((key, value))

    monkeypatch.setattr(onnxruntime, "RunOptions", Options)
    made = make_session(MODEL, provider="cpu")
    call_on_tensors(made, CPU, ["X", "B"], synchronize=True)
    assert entries == []
    call_on_tensors(made, CPU, ["X", "B"], synchronize=False)
    assert entries == [("disable_synchronize_execution_providers", "1")]


# Streams of CUDA, with stand-ins: what waits for what.


class FakeStream:
    def __init__(self, name, handle, events):
        self.name, self.cuda_stream, self.events, self.device = name, handle, events, "cuda:1"

    def wait_stream(self, other):
        self.events.append(f"{self.name} waits for {other.name}")


class FakeTensor:
    def __init__(self, name, events, *, is_cuda=True, strided=False):
        self.name, self.events, self.is_cuda, self.strided = name, events, is_cuda, strided

    def detach(self):
        return self

    def contiguous(self):
        if not self.strided:
            return self
        self.events.append(f"{self.name} packed")
        return FakeTensor(f"packed {self.name}", self.events)

    def record_stream(self, stream):
        self.events.append(f"{self.name} kept for {stream.name}")

    def clone(self):
        self.events.append(f"{self.name} copied")
        return FakeTensor(f"copy of {self.name}", self.events)


@pytest.fixture
def cuda(monkeypatch):
    """A module torch.cuda whose current stream is chosen by the test."""
    events = []

    @contextlib.contextmanager
    def enter(stream):
        events.append(f"on {stream.name}")
        yield
        events.append(f"back from {stream.name}")

    module = SimpleNamespace(
        events=events,
        current=FakeStream("current", 7, events),
        current_stream=lambda device: module.current,
        stream=enter,
        Stream=lambda device: FakeStream(f"own stream of {device}", 9, events),
    )
    monkeypatch.setattr(session, "torch", SimpleNamespace(cuda=module, Tensor=torch.Tensor))
    return module


def test_a_session_runs_on_the_current_stream_or_its_own_beside_the_default_one(cuda):
    assert session_stream(Provider("cpu")) is None
    assert session_stream(Provider("cuda", 1)) is cuda.current
    cuda.current.cuda_stream = 0
    assert session_stream(Provider("cuda", 1)).name == "own stream of 1"


def ordered(cuda, stream):
    """Call on a weight, an input of the device and another of the host; what happened after."""

    def hold(tensor):
        return f"value of {tensor.name}"

    def call(held, tensors):
        cuda.events.append(f"run on {', '.join([*held, *tensors])}")
        return [FakeTensor("y", cuda.events)]

    hold, call = follow_stream(hold, call, stream)
    weight = hold(FakeTensor("w", cuda.events))
    assert cuda.events == [f"w kept for {stream.name}"]
    cuda.events.clear()
    for _ in range(2):
        strided = FakeTensor("x", cuda.events, strided=stream is not cuda.current)
        inputs = [strided, FakeTensor("n", cuda.events, is_cuda=False)]
        (result,) = call([weight], inputs)
        assert result.name == "copy of y"
    half = len(cuda.events) // 2
    assert cuda.events[:half] == cuda.events[half:]
    return cuda.events[:half]


def test_a_call_on_another_stream_is_ordered(cuda):
    assert ordered(cuda, FakeStream("session", 3, cuda.events)) == [
        # on the current stream: the session waits for the copy, and reads no other memory
        "x packed",
        "packed x kept for session",
        "session waits for current",
        # in memory of torch, before the next run of the session writes over y
        "on session",
        "run on value of w, value of packed x, value of n",
        "y copied",
        "back from session",
        "copy of y kept for current",
        "current waits for session",
    ]


def test_nothing_waits_on_the_stream_of_the_session(cuda):
    assert ordered(cuda, cuda.current) == [
        "on current",
        "run on value of w, value of x, value of n",
        "y copied",
        "back from current",
    ]


# What the backend needs of make_session.

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[n, 64] X) => (float[n, 64] Y) { Y = Add(X, W) }"""


def model_with_external_weights():
    model = onnx.parser.parse_model(TEXT)
    weight = onnx.TensorProto(
        name="W",
        dims=[64, 64],
        data_type=onnx.TensorProto.FLOAT,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in {"location": "memory", "offset": "0", "length": str(4 * 64**2)}.items():
        weight.external_data.add(key=key, value=value)
    model.graph.initializer.append(weight)
    return model


def test_initializers_are_read_where_they_are():
    weights = np.arange(64.0**2, dtype=np.float32).reshape(64, 64)
    value = to_ortvalue(weights, CPU)
    made = make_session(model_with_external_weights(), provider="cpu", initializers={"W": value})
    x = np.ones((64, 64), np.float32)
    np.testing.assert_array_equal(made.run(None, {"X": x})[0], weights + 1)
    weights += 1
    np.testing.assert_array_equal(made.run(None, {"X": x})[0], weights + 1)


def test_the_stream_reaches_the_provider(monkeypatch):
    seen = []

    def create(source, options, *, providers, enable_fallback):
        seen.extend(providers)
        raise RuntimeError("stop here")

    monkeypatch.setattr(onnxruntime, "InferenceSession", create)
    with pytest.raises(ProviderUnavailableError, match="stop here"):
        make_session(TEXT, provider=Provider("cuda", 1), stream=123)
    assert seen[0][1]["user_compute_stream"] == "123"
