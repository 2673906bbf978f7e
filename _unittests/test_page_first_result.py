"""The page *Where does the time go before the first result?*: its claims on planted starts."""

import types

import numpy as np
import onnx
import onnxruntime
import pytest
from page_runner import compare, judge, run_setting

from ortmeter.timing import Comparisons

PHASES = ("import", "session", "first run", "steady run", "second run", "first result")
USUAL = {  # milliseconds of the first four
    "1 MiB: plain": (20, 5, 0.5, 0.05),
    "100 MiB: plain": (20, 150, 6, 5),
    "100 MiB: external": (20, 60, 6, 5),
    "100 MiB: external unpacked": (20, 5, 15, 10),
    "transformer: plain": (20, 80, 4, 2),
    "transformer: no optimization": (20, 50, 4, 2),
    "transformer: saved optimized": (20, 30, 4, 2),
    "CNN: plain": (20, 6, 8, 5),
}


def judged(page, starts):
    """Return the sentences of the page on starts of known medians, by name."""
    groups = {phase: {} for phase in PHASES}
    for name, ms in starts.items():
        for phase, x in zip(PHASES, (*ms, ms[3], sum(ms[:3])), strict=True):
            groups[phase][name] = 1e-3 * x
    memory = {name: dict.fromkeys(PHASES, (8, None)) for name in starts}
    memory["100 MiB: external unpacked"] |= {"session": (9, 0), "first run": (100, 0)}
    groups = {phase: compare(group, (10, 1), noise=1e-6) for phase, group in groups.items()}
    told = {"legend": "planted", "smallest": "1 MiB", "largest": "100 MiB", "nodes": 1248}
    data = {**told, "memory": memory, "read_(s)": 0.05}
    return judge(page, types.SimpleNamespace(times=Comparisons(groups, "phase"), **data))


def test_claims_have_the_planted_ratios(page):
    found = judged(page, USUAL)
    # 176 ms against 86 and 40.
    for name, ratio in {"external": 176 / 86, "unpacked": 176 / 40}.items():
        assert found[name].finding.effect == pytest.approx((ratio, ratio), rel=0.01)


def test_unpacked_weights_pay_until_the_runs_have_lost_what_the_start_won(page):
    # Won by the start: 86 - 40 ms; lost by each run: 5 ms.
    found = judged(page, USUAL)
    assert found["fewer"].evidence.startswith("10 runs")
    never = judged(page, {**USUAL, "100 MiB: external unpacked": (20, 5, 15, 4)})
    assert never["fewer"].verdict == "undecided"
    assert never["fewer"].evidence.startswith("never")


def test_the_setting_puts_the_weights_outside(page):
    names = run_setting("keep_weights_outside", page["make_chain"](1))
    weights = names["model"].graph.initializer
    assert all(weight.data_location == onnx.TensorProto.EXTERNAL for weight in weights)
    feeds = {"A0": np.ones((2, 160), np.float32)}
    plain = onnxruntime.InferenceSession(page["make_chain"](1).SerializeToString())
    (expected,), (got,) = (s.run(None, feeds) for s in (plain, names["session"]))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
