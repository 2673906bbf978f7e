import gc
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from ortmeter.backend import FallbackWarning, OrtBackend, building
from ortmeter.backend.record import resident_bytes

X = torch.arange(12.0).reshape(3, 4)


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


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system must tell the memory")
@pytest.mark.parametrize("prepack", [False, True])
def test_calls_do_not_make_memory_grow(prepack):
    backend = OrtBackend(threads=1, prepack=prepack, fallback=False)
    model = nn.Linear(256, 256)
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(1024, 256)  # one leaked output is 1 MiB

    def grown(calls):
        before = resident_bytes()
        for _ in range(calls):
            compiled(x)
        gc.collect()
        return resident_bytes() - before

    with torch.no_grad():
        grown(20)
        assert grown(200) < 20 * x.nbytes


def test_a_failure_during_a_run_leaves_the_graph_to_torch():
    backend = OrtBackend()
    run = compile_graph_alone(lambda x: x @ torch.ones(4, 2), backend, X)
    wide = torch.ones(3, 4, dtype=torch.float64)
    with pytest.warns(FallbackWarning, match="ONNX Runtime failed"), pytest.raises(RuntimeError):
        run(wide)  # what dynamo guards against: torch refuses it as well
    assert backend.graphs == []
    assert backend.fallbacks[0].operations == 2
    torch.testing.assert_close(run(X)[0], X @ torch.ones(4, 2))


def test_a_failure_during_a_run_writes_nothing_into_the_inputs(monkeypatch):
    def failing(*arguments, **options):
        def call(tensors):
            raise RuntimeError("no more memory")

        return call

    monkeypatch.setattr(building, "call_on_tensors", failing)

    def update(x):
        x.add_(1)
        return x * 2

    x = X.clone()
    with torch.no_grad(), pytest.warns(FallbackWarning, match="no more memory"):
        got = torch.compile(update, backend=OrtBackend())(x)
    torch.testing.assert_close((x, got), (X + 1, (X + 1) * 2))


def test_a_graph_without_computation_is_not_compiled():
    backend = OrtBackend(fallback=False)
    run = compile_graph_alone(lambda x: x.t(), backend, X)
    assert backend.graphs == []
    assert run(X)[0].data_ptr() == X.data_ptr()
