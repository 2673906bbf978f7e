from types import SimpleNamespace

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.reference
import pandas as pd
import pytest

from ortmeter.errors import ModelError
from ortmeter.machine import peaks
from ortmeter.machine.peaks import Peaks, measured_peaks
from ortmeter.runtime.providers import Provider


@pytest.fixture
def machine(monkeypatch):
    """A machine whose Gemm takes what ``gemm[size]`` says, and each copy of a call 8 ms."""
    found = SimpleNamespace(gemm={256: 1e-4, 512: 1e-3, 1024: 6e-3}, copy=8e-3, calls=[])

    def best_seconds(model, feeds, **options):
        x, (node, *others) = feeds["X"], model.graph.node
        found.calls.append((node.op_type, x.shape, x.dtype.name, options))
        if x.ndim == 1:
            return found.copy * (1 + len(others))
        if x.shape[0] not in found.gemm:
            raise ModelError("no memory is left")
        return found.gemm[x.shape[0]]

    monkeypatch.setattr(peaks, "_best_seconds", best_seconds)
    monkeypatch.setattr(peaks, "half_of_memory", lambda: 2**40)
    for cached in (peaks._gemm_gflop_per_s, peaks._copy_gb_per_s):
        cached.cache_clear()
    yield found
    for cached in (peaks._gemm_gflop_per_s, peaks._copy_gb_per_s):
        cached.cache_clear()


def sizes(machine):
    return [shape[0] for op, shape, *_ in machine.calls if op == "Gemm"]


def test_the_peaks_are_the_best_of_what_was_measured(machine):
    found = measured_peaks(provider="cpu")
    # 2 n^3 operations: 336, 268, then 358 GFLOP/s; 2048 is not tried, 1024 is long enough
    assert found.gflop_per_s == pytest.approx(2 * 1024**3 / 6e-3 / 1e9)
    assert found.gb_per_s == pytest.approx(2 * 2**26 / 8e-3 / 1e9)
    assert sizes(machine) == [256, 512, 1024]


# A launch takes 0.1 ms, the operations of 2048 take 1 ms, a copy of 2**20 bytes 10 ms.
GPU = {256 * 2**i: 1e-4 + 1e-3 * 8 ** (i - 3) for i in range(8)}


def on_gpu(machine, monkeypatch, gemm=GPU):
    machine.gemm, machine.copy = gemm, 10e-3
    monkeypatch.setitem(peaks._COPY_BYTES, "cuda", 2**20)
    cuda = Provider("cuda", 0)
    flops = peaks._gemm_gflop_per_s(cuda, 1, peaks.onnx_type("float16"))
    return flops, peaks._copy_gb_per_s(cuda, 1)


def test_works_grow_on_cuda_until_launches_do_not_count(machine, monkeypatch):
    # arrays of 64 columns stand for the large ones
    monkeypatch.setattr(peaks, "_gemm", fake_gemm)
    flops, copies = on_gpu(machine, monkeypatch)
    assert sizes(machine) == [256, 512, 1024, 2048, 4096, 8192]
    assert flops == pytest.approx(2 * 8192**3 / GPU[8192] / 1e9)
    counts = [op for op, *_ in machine.calls if op == "Neg"]
    assert len(counts) == 2  # one copy lasts 10 ms, four of them 40 ms
    assert copies == pytest.approx(2 * 2**20 / 10e-3 / 1e9)


def fake_gemm(size, itype, provider):
    model, _ = REAL_GEMM(4, itype, provider)
    return model, {"X": np.broadcast_to(np.float16(1), (size, size))}


REAL_GEMM = peaks._gemm


@pytest.mark.parametrize("memory", [4 * 3 * 2 * 1024**2, 2**40])
def test_sizes_stop_growing_where_memory_ends(machine, monkeypatch, memory):
    # either a quarter of it is taken, or the GPU refuses
    monkeypatch.setattr(peaks, "_gemm", fake_gemm)
    monkeypatch.setattr(peaks, "half_of_memory", lambda: memory // 2)
    last = 1024 if memory < 2**40 else 2048
    flops, _ = on_gpu(machine, monkeypatch, {n: s for n, s in GPU.items() if n <= last})
    assert flops == pytest.approx(2 * last**3 / GPU[last] / 1e9)
    assert max(sizes(machine)) == (1024 if memory < 2**40 else 4096)


def test_several_copies_change_the_sign_as_often():
    for count in (1, 4):
        model, feeds = peaks._copy(count, "cpu")
        few = feeds["X"][:3]
        (got,) = onnx.reference.ReferenceEvaluator(model).run(None, {"X": few})
        assert len(model.graph.node) == count
        np.testing.assert_array_equal(got, few * (-1) ** count)


def test_each_peak_is_measured_once(machine):
    first = measured_peaks(provider="cpu", threads=2)
    count = len(machine.calls)
    assert measured_peaks(provider=Provider("cpu"), threads=2, itype="float") == first
    assert len(machine.calls) == count
    measured_peaks(provider="cpu", threads=2, itype="float16")
    added = machine.calls[count:]
    assert {(op, dtype) for op, _, dtype, _ in added} == {("Gemm", "float16")}
    measured_peaks(provider="cpu", threads=3)
    assert machine.calls[-1][3] == {"provider": Provider("cpu"), "threads": 3}


def test_the_machine_has_peaks():
    found = measured_peaks(provider="cpu")
    assert found.gflop_per_s > 0.1
    assert found.gb_per_s > 0.1


@pytest.mark.parametrize("provider", ["cpu", "cuda"])
@pytest.mark.parametrize("itype", ["float32", "float64"])
def test_the_gemm_that_is_measured_is_a_gemm(itype, provider):
    model, feeds = peaks._gemm(4, peaks.onnx_type(itype), provider)
    weights = [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    w = weights[0] if provider == "cpu" else feeds["W"]
    (got,) = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_allclose(got, feeds["X"].astype(np.float64) @ w, rtol=1e-6)
    assert feeds["X"].dtype == w.dtype == itype


def test_a_type_without_kernel_is_an_error():
    with pytest.raises(ModelError, match=r"implementation for Gemm.*'bfloat16'"):
        measured_peaks(provider="cpu", itype="bfloat16")


def test_the_least_time_is_that_of_the_slower_resource():
    frame = pd.DataFrame({"flop": [1e9, 0, 1e9, 1e10, 0], "bytes": [0, 1e9, 1e9, 1e9, 0]})
    least = Peaks(gflop_per_s=100, gb_per_s=20).least_seconds(frame["flop"], frame["bytes"])
    np.testing.assert_allclose(least, [0.01, 0.05, 0.05, 0.1, 0])
