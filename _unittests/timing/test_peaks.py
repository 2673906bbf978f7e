import numpy as np
import onnx
import onnx.numpy_helper
import onnx.reference
import pandas as pd
import pytest

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime.providers import Provider
from ortmeter.timing import peaks
from ortmeter.timing.peaks import Peaks, add_shares, measured_peaks


@pytest.fixture
def machine(monkeypatch):
    """A machine whose Gemm takes what ``seconds[size]`` says, and whose copy takes 8 ms."""
    seconds, calls = {256: 1e-4, 512: 1e-3, 1024: 6e-3, 2048: 4e-2}, []

    def best_seconds(model, x, **options):
        calls.append((model.graph.node[0].op_type, x.shape, x.dtype.name, options))
        return seconds[x.shape[0]] if x.ndim == 2 else 8e-3

    monkeypatch.setattr(peaks, "_best_seconds", best_seconds)
    for cached in (peaks._gemm_gflop_per_s, peaks._copy_gb_per_s):
        cached.cache_clear()
    yield calls
    for cached in (peaks._gemm_gflop_per_s, peaks._copy_gb_per_s):
        cached.cache_clear()


def test_the_peaks_are_the_best_of_what_was_measured(machine):
    found = measured_peaks(provider="cpu")
    # 2 n^3 operations: 336, 268, then 358 GFLOP/s; 2048 is not tried, 1024 is long enough
    assert found.gflop_per_s == pytest.approx(2 * 1024**3 / 6e-3 / 1e9)
    assert found.gb_per_s == pytest.approx(2 * 2**26 / 8e-3 / 1e9)
    assert [shape[0] for op, shape, *_ in machine if op == "Gemm"] == [256, 512, 1024]


def test_each_peak_is_measured_once(machine):
    first = measured_peaks(provider="cpu", threads=2)
    count = len(machine)
    assert measured_peaks(provider=Provider("cpu"), threads=2, itype="float") == first
    assert len(machine) == count
    measured_peaks(provider="cpu", threads=2, itype="float16")
    added = machine[count:]
    assert {(op, dtype) for op, _, dtype, _ in added} == {("Gemm", "float16")}
    measured_peaks(provider="cpu", threads=3)
    assert machine[-1][3] == {"provider": Provider("cpu"), "threads": 3}


def test_the_machine_has_peaks():
    found = measured_peaks(provider="cpu")
    assert found.gflop_per_s > 0.1
    assert found.gb_per_s > 0.1


@pytest.mark.parametrize("itype", ["float32", "float64"])
def test_the_gemm_that_is_measured_is_a_gemm(itype):
    model, x = peaks._gemm(4, peaks.onnx_type(itype))
    w = onnx.numpy_helper.to_array(model.graph.initializer[0])
    (got,) = onnx.reference.ReferenceEvaluator(model).run(None, {"X": x})
    np.testing.assert_allclose(got, x.astype(np.float64) @ w, rtol=1e-6)
    assert x.dtype == w.dtype == itype


def test_a_type_without_kernel_is_an_error():
    with pytest.raises(ModelError, match=r"implementation for Gemm.*'bfloat16'"):
        measured_peaks(provider="cpu", itype="bfloat16")


def test_an_unknown_provider_is_an_error():
    with pytest.raises(InvalidArgumentError, match="provider='tpu' is not known"):
        measured_peaks(provider="tpu")


@pytest.mark.parametrize(
    ("flop", "moved", "expected"),
    [(1e9, 0, 0.01), (0, 1e9, 0.05), (1e9, 1e9, 0.05), (1e10, 1e9, 0.1), (0, 0, 0)],
)
def test_the_least_time_is_that_of_the_slower_resource(flop, moved, expected):
    found = Peaks(gflop_per_s=100, gb_per_s=20).least_seconds(flop, moved)
    assert found == pytest.approx(expected)


def test_the_least_times_of_a_frame_are_computed_at_once():
    frame = pd.DataFrame({"flop": [1e9, 1e10, np.nan], "bytes": [1e9, 1e9, 1.0]})
    least = Peaks(gflop_per_s=100, gb_per_s=20).least_seconds(frame["flop"], frame["bytes"])
    np.testing.assert_allclose(least, [0.05, 0.1, np.nan])


def test_shares_are_those_of_the_throughputs():
    frame = pd.DataFrame(
        {"gflop_per_s": [50.0, None, 33.3333], "gb_per_s": [30.0, 5.0, None]},
        index=["a", "b", "c"],
    )
    shares = add_shares(frame, Peaks(gflop_per_s=100, gb_per_s=20))
    assert list(shares.columns[2:]) == ["share of peak GFLOP/s", "share of peak GB/s"]
    np.testing.assert_array_equal(shares.iloc[:, 2], [0.5, np.nan, 0.333])
    np.testing.assert_array_equal(shares.iloc[:, 3], [1.5, 0.25, np.nan])
    assert list(frame.columns) == ["gflop_per_s", "gb_per_s"]


def test_throughputs_may_be_unknown():
    frame = pd.DataFrame({"gflop_per_s": [None], "gb_per_s": pd.array([None], "Float64")})
    assert add_shares(frame, Peaks(1, 1)).iloc[:, 2:].isna().all(axis=None)


def test_a_frame_without_throughput_is_refused():
    with pytest.raises(InvalidArgumentError, match="Column 'gb_per_s' is missing.*'gflop_per_s'"):
        add_shares(pd.DataFrame({"gflop_per_s": [1.0]}), Peaks(1, 1))


@pytest.mark.cuda
def test_cuda_has_peaks():
    found = measured_peaks(provider="cuda", itype="float16")
    assert found.gflop_per_s > measured_peaks(provider="cpu").gflop_per_s
