from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from claim_samples import compare_ratio

from ortmeter.profiling import profile, trials
from ortmeter.profiling.findings import Facts
from ortmeter.timing import Comparison, Measurement


def plain():
    return nullcontext(SimpleNamespace(run=lambda: None))


TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[8] X) => (float[8] Y) { Y = Exp (X) }'
FEEDS = {"X": np.zeros(8, np.float32)}


@pytest.fixture
def facts():
    return Facts(profile(TEXT, FEEDS, provider="cpu", repeat=1, overhead=False), FEEDS, 1, 1)


@pytest.fixture
def rounds(monkeypatch):
    """Take planted times instead of measuring, and keep how many were asked for."""
    asked = []

    def plant(speedup):
        def measure(calls, *, repeat, **_):
            asked.append(repeat)
            for call in calls.values():
                call()
            times = {"as it is": speedup, "changed": 1.0}
            return Comparison(Measurement(n, np.full((1, repeat), t)) for n, t in times.items())

        monkeypatch.setattr(trials, "measure", measure)
        return asked

    return plant


def test_a_change_that_helps_is_measured_until_it_can_be_claimed(facts, rounds):
    asked = rounds(2.0)
    claim = trials.gain(facts, {"optimization": "none"})
    assert (claim.verdict, claim.ratio) == ("faster", 2)
    assert asked == [10, 100]
    told = trials.trial(facts, "this", {"optimization": "none"})
    assert told == ". With this: 2.00 times faster [1.94, 2.06]"


def test_a_change_that_does_not_is_soon_seen(facts, rounds):
    asked = rounds(0.5)
    claim = trials.gain(facts, {"optimization": "none"})
    assert asked == [10]
    assert claim.ratio == 0.5


def test_settings_of_the_session_are_those_of_both(facts, rounds, monkeypatch):
    made = []
    monkeypatch.setattr(trials, "make_session", lambda *_, **given: made.append(given))
    monkeypatch.setattr(trials, "open_session", lambda *given: made.append(given[2]) or plain())
    asked = {"spinning": "off", "optimization": "all", "run_config": {"k": "v"}}
    rounds(0.5)
    trials.gain(Facts(facts.profile, FEEDS, 2, 2, asked), {"optimization": "none"})
    common = {"spinning": "off", "provider": "cpu", "threads": 2}
    configs = [{"k": "v"}] * 2
    assert made[1::2] == configs
    assert made[::2] == [{**common, "optimization": level} for level in ("all", "none")]


def test_texts_are_tried_too(rounds):
    rounds(2.0)
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (string[2] X) => (bool[2] Y) { Y = Equal (X, X) }"""
    feeds = {"X": np.array(["a", "b"], object)}
    found = profile(text, feeds, provider="cpu", repeat=1, overhead=False)
    assert trials.gain(Facts(found, feeds, 1, 1), {}).ratio == 2


def test_what_cannot_run_is_not_measured(facts):
    assert trials.gain(facts, {"optimization": "unknown"}) is None
    assert trials.gain(Facts(facts.profile, None, 1, 1), {}) is None
    assert trials.trial(facts, "this", {"optimization": "unknown"}) == ""


@pytest.mark.parametrize(
    ("ratio", "interval", "helps"),
    [(1.5, (1.4, 1.6), True), (1.2, None, True), (0.9, None, False), (1.0, (0.99, 1.01), False)],
)
def test_what_is_worth_a_mention(facts, monkeypatch, ratio, interval, helps):
    claim = compare_ratio("changed", "as it is", ratio, interval)
    monkeypatch.setattr(trials, "gain", lambda *_: claim)
    assert (trials.trial(facts, "this", {}) is not None) == helps


def test_a_real_trial():
    found = profile(TEXT, FEEDS, provider="cpu", repeat=1, overhead=False)
    claim = trials.gain(Facts(found, FEEDS, 1, 1), {"optimization": "none"})
    assert claim.baseline == "as it is"
    assert claim.ratio > 0
