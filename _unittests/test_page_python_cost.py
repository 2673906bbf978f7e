"""The page on what Python costs: tables and claims of planted times; its calls; its setting."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from page_runner import compare, judge, run_setting

from ortmeter.timing import Comparisons

PAIRS, SIZES = {"1 input": 1, "10 inputs": 10, "50 inputs": 50}, {"100,000 floats": 100_000}
TIMES = {"session.run": (10, 30, 110, 12), "bound": (5, 6, 8, 6), "C": (5, 7, 11, 6)}
TIMES |= {"empty call": (1, 1, 1, 1)}


def plant():
    """Medians (µs) by way, one of each model."""
    groups = {
        model: compare({way: 1e-6 * us[i] for way, us in TIMES.items()}, (8, 1))
        for i, model in enumerate([*PAIRS, *SIZES])
    }
    kept = {"pairs": PAIRS, "sizes": SIZES, "legend": "CPU"}
    return SimpleNamespace(times=Comparisons(groups, "model"), **kept)


def test_python_adds_what_c_does_not_take(page):
    added = {way: page["estimate_added"](plant(), way) for way in page["PYTHON"]}
    values = [[1e6 * one.value for one in ways.values()] for ways in added.values()]
    assert values[0] == pytest.approx([6, 24, 100, 7], rel=0.01)
    assert values[1] == pytest.approx([1, 0, -2, 1], abs=0.01)


def test_the_answer_has_the_longest_runs_that_binding_makes_faster(page):
    found = judge(page, plant())["bound"]
    # Binding saves 5 µs and 102 µs: 11 times that, two digits of the low end of the interval.
    assert "less than 55 µs with one input, or 1.1 ms with 50" in found.text
    assert found.finding.effect == pytest.approx((2, 110 / 8), rel=0.01)


def test_the_setting_reads_the_next_inputs(page):
    copied = run_setting("bind_arrays", page["make_model"](1))
    assert copied["outputs"]["y0"].tolist() == [-2]


def test_c_and_python_compute_what_numpy_does(page, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(page["make_model"](3).SerializeToString())
    shared = {"path": f"{path}", "pairs": 3, "size": 5}
    library = str(next(Path(onnxruntime.__file__).parent.glob("capi/*onnxruntime.*")))
    page["call_c"](library, **shared, way="C")()  # which compares outputs with numpy
    own = {"provider": "cpu", "device": ("cpu", 0), "way": "session.run"}
    values = page["call_python"](**shared, **own)()
    np.testing.assert_array_equal(values, -np.random.default_rng(0).standard_normal((3, 5), "f"))
