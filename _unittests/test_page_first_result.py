"""The page *Where does the time go before the first result?*: its claims on planted starts."""

import types

import numpy as np
import onnx
import onnxruntime
import pytest
from page_runner import define_page, run_setting

from ortmeter.study.claims import read_claims
from ortmeter.timing import Comparison, Comparisons, Measurement

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
OPPOSITE = USUAL | {  # of every prediction and belief, on a GPU
    "1 MiB: plain": (20, 90, 5, 0.05),
    "100 MiB: plain": (100, 15, 30, 5),
    "100 MiB: external": (100, 30, 30, 5),
    "100 MiB: external unpacked": (100, 60, 60, 5),
    "transformer: no optimization": (20, 90, 4, 2),
    "transformer: saved optimized": (20, 80, 4, 2),
    "CNN: plain": (20, 6, 800, 5),
}


@pytest.fixture(scope="module")
def page():
    return define_page("plot_first_result")


def planted(starts, *, processes=10, noise=0.02, read=0.05, grown=(9, 100)):
    """Starts of known medians; mapped weights grow the memory by so many MiB in two phases."""
    rng, groups = np.random.default_rng(0), {phase: [] for phase in PHASES}
    for name, ms in starts.items():
        noisy = np.exp(noise * rng.standard_normal((4, processes, 1)))
        seconds = 1e-3 * np.reshape(ms, (4, 1, 1)) * noisy
        for phase, found in zip(PHASES, [*seconds, seconds[3], seconds[:3].sum(0)], strict=True):
            groups[phase].append(Measurement(name, found))
    memory = {name: dict.fromkeys(PHASES, (8, None)) for name in starts}
    session, run = grown
    memory["100 MiB: external unpacked"] |= {"session": (session, 0), "first run": (run, 0)}
    times = Comparisons({phase: Comparison(group) for phase, group in groups.items()}, "phase")
    told = {"legend": "planted", "smallest": "1 MiB", "largest": "100 MiB", "nodes": 1248}
    return told | {"times": times, "memory": memory, "read (s)": read}


def judge(page, *given, **options):
    """Return the sentences of the page on planted starts, by name."""
    data = planted(*given, **options)
    named = {name.replace(" ", "_"): value for name, value in data.items()}
    sentences, _ = read_claims(page["claims"], types.SimpleNamespace(**named))
    return {sentence.name: sentence for sentence in sentences}


def test_claims_have_the_planted_ratios(page):
    found = judge(page, USUAL, noise=1e-3)
    # 176 ms against 86 and 40.
    for name, ratio in {"external": 176 / 86, "unpacked": 176 / 40}.items():
        assert found[name].finding.effect == pytest.approx((ratio, ratio), rel=0.01)
    assert {found[name].verdict for name in ("external", "unpacked", "run", "steps")} == {"holds"}


def test_unpacked_weights_pay_until_the_runs_have_lost_what_the_start_won(page):
    # Won by the start: 86 - 40 ms; lost by each run: 5 ms.
    found = judge(page, USUAL, noise=1e-6)
    assert found["fewer"].evidence.startswith("10 runs")
    never = judge(page, {**USUAL, "100 MiB: external unpacked": (20, 5, 15, 4)}, noise=1e-6)
    assert never["fewer"].verdict == "undecided"
    assert never["fewer"].evidence.startswith("never")


UNSURE = {"processes": 1, "grown": (None, None)}


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        (USUAL, {}, "h h h, f h f"),
        # Three moves of 50 ms are far from 15 ms; weights are in memory before the first run.
        (OPPOSITE, {"grown": (109, 1)}, "f f f, h f h"),
        (USUAL, UNSURE, "u u n, u u u"),
        (USUAL, {"read": 0.001}, "h f h, f h f"),
        # The moves of one way are enough to be wrong: 150 ms where 55 are predicted.
        (USUAL | {"100 MiB: external": (20, 150, 6, 5)}, {}, "h f h, f h f"),
    ],
)
def test_each_prediction_and_belief_is_judged(page, given, options, expected):
    sentences = judge(page, given, **options).values()
    verdicts = [
        " ".join(s.verdict[0] for s in sentences if s.section == section)
        for section in ("Predicted", "Discussions")
    ]
    assert ", ".join(verdicts) == expected


def test_the_setting_puts_the_weights_outside(page):
    names = run_setting("keep_weights_outside", page["make_chain"](1))
    weights = names["model"].graph.initializer
    assert all(weight.data_location == onnx.TensorProto.EXTERNAL for weight in weights)
    feeds = {"A0": np.ones((2, 160), np.float32)}
    plain = onnxruntime.InferenceSession(page["make_chain"](1).SerializeToString())
    (expected,), (got,) = (s.run(None, feeds) for s in (plain, names["session"]))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
