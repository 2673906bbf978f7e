"""The setting and the views of the page *One big Gemm or two smaller?*."""

from types import SimpleNamespace

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from page_runner import compare, parse, run_setting

from ortmeter.timing import Comparisons

MEDIANS = {
    "two Gemms (constant)": 3.0,
    "one Gemm (constant)": 1.0,
    "two Gemms": 2.0,
    "Concat then Gemm": 1.0,
}


def written(*gemms, axis=1, outputs="float[4, 6] S"):
    """A model with two Gemms, of constant weights, and their Concat."""
    body = f"A = {gemms[0]} B = {gemms[1]} S = Concat<axis = {axis}>(A, B)"
    text = f"(float[4, 3] X) => ({outputs}) {{ {body} }}"
    return parse(text, Y=(3, 3), Z=(3, 3), b=(3,), c=(3,))


@pytest.mark.parametrize(
    "gemms",
    [
        ("Gemm(X, Y)", "Gemm(X, Z)"),
        ("Gemm(X, Y, b)", "Gemm(X, Z, c)"),
        ("Gemm<transB = 1>(X, Y, b)", "Gemm<transB = 1>(X, Z, c)"),
        ("Gemm<alpha = 0.5, transB = 1>(X, Y)", "Gemm<alpha = 0.5, transB = 1>(X, Z)"),
    ],
)
def test_the_setting_joins_what_it_is_told(gemms):
    model = written(*gemms)
    joined = run_setting("join_gemms", model)["model"]
    assert [node.op_type for node in joined.graph.node] == ["Gemm"]
    feeds = {"X": np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)}
    before, after = (ReferenceEvaluator(one).run(None, feeds)[0] for one in (model, joined))
    assert after == pytest.approx(before, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (written("Gemm(X, Y)", "Gemm(X, Z)", axis=0, outputs="float[8, 3] S"), "side by side"),
        (written("Gemm(X, Y)", "Gemm<transB = 1>(X, Z)"), "not alike"),
        (written("Gemm(X, Y)", "Gemm(X, Z, c)"), "not alike"),
        (written("Gemm(X, Y, b)", "Gemm(X, Z)"), "not alike"),
        (written("Gemm(X, Y)", "Gemm(X, Z)", outputs="float[4, 6] S, float[4, 3] A"), "elsewhere"),
    ],
)
def test_the_setting_stops_where_one_gemm_computes_something_else(model, message):
    with pytest.raises(AssertionError, match=message):
        run_setting("join_gemms", model)


def test_the_ratios_are_on_the_plot_and_the_rates_in_the_table(page):
    peaks = {"GFLOP/s": 10.0, "GB/s": 5.0}
    results = Comparisons({1: compare(MEDIANS, flop=1e9, bytes_moved=1e9)}, "size")
    data = SimpleNamespace(results=results, legend="planted", peaks=peaks)
    axes = page["speedups"](data)
    drawn = [bars.lines[0].get_ydata()[0] for bars in axes.containers]
    assert drawn == pytest.approx([3.0, 2.0], rel=0.05)  # constant, changing; no Split is planted
    rates = page["latencies"](data)
    for name, seconds in MEDIANS.items():  # 1e9 operations, as many bytes
        expected = (1e3 * seconds, 1 / seconds, 1 / seconds, 10 / seconds, 20 / seconds)
        assert tuple(rates.loc[1, name]) == pytest.approx(expected, rel=0.02)
