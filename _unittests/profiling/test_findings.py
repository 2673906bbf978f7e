import dataclasses

import numpy as np
import onnx
import pytest
from claim_samples import compare_ratio

from ortmeter.evidence import plural
from ortmeter.profiling import Advice, findings, profile
from ortmeter.profiling.findings import Facts, count
from ortmeter.runtime.loading import load_model
from ortmeter.timing import Candidate, Comparison, Measurement
from ortmeter.timing.candidates import SessionSpec

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[4] X) => (float[4] Y) { [first] A = Exp (X)  [second] B = Exp (A)  [third] Y = Sin (B) }"""


@pytest.fixture(scope="module")
def facts():
    feeds = {"X": np.zeros(4, np.float32)}
    return Facts(profile(TEXT, feeds, provider="cpu", repeat=3, overhead=False), feeds)


def test_a_finding_in_words():
    found = Advice("casts", ("a",), "2 Cast", "float32", 0.123)
    assert str(found) == "casts (at most 12% of kernel time): 2 Cast. Try: float32"
    assert (plural(1, "tensor"), plural(2, "tensor")) == ("1 tensor", "2 tensors")
    assert "(" not in str(dataclasses.replace(found, share=None))
    assert dataclasses.replace(found, share=None).bound == "unknown"
    assert dataclasses.replace(found, of="a run").bound == "at most 12% of a run"


def test_nodes_are_chosen_by_name_or_operator_the_longest_first(facts):
    assert count(facts.nodes) == "2 Exp, 1 Sin"
    assert set(facts.ops(["Exp", "Cos"])["name"]) == {"first", "second"}
    assert set(facts.named(["third", "other"])["name"]) == {"third"}
    assert facts.nodes["median"].is_monotonic_decreasing
    assert facts.written.keys() == {"first", "second", "third"}


def test_the_share_is_the_sum_of_those_of_the_nodes(facts):
    found = facts.finding("topic", facts.nodes, "seen", "this")
    assert found.share == pytest.approx(1)
    assert set(found.nodes) == {"first", "second", "third"}
    assert found.of == "kernel time"


def test_a_run_is_unprofiled_when_it_is_known(facts):
    runs = facts.profile.by_iteration()
    assert facts.run_us == runs["duration"][runs["steady"]].median()
    taken = Comparison([Measurement("the model", [[2e-3] * 3])])
    known = dataclasses.replace(facts.profile, latencies=taken)
    assert dataclasses.replace(facts, profile=known).run_us == pytest.approx(2000)


def test_a_profile_without_graphs_has_no_nodes_to_read(facts):
    bare = dataclasses.replace(facts.profile, model=None, original=None)
    assert list(dataclasses.replace(facts, profile=bare).ran) == []
    assert dataclasses.replace(facts, profile=bare).written == {}
    assert isinstance(facts.ran[0], onnx.NodeProto)


@pytest.fixture
def rounds(monkeypatch):
    """Take planted times instead of measuring, and keep how many were asked for."""
    asked = []

    def plant(speedup):
        def measure(calls, *, repeat, **_):
            asked.append(repeat)
            for call in calls.values():
                call.function()
            times = {"as it is": speedup, "changed": 1.0}
            return Comparison(Measurement(n, np.full((1, repeat), t)) for n, t in times.items())

        monkeypatch.setattr(findings, "measure", measure)
        return asked

    return plant


def test_a_change_that_helps_is_measured_until_it_can_be_claimed(facts, rounds):
    asked = rounds(2.0)
    changed = load_model(TEXT)
    told = findings.trial(facts, "this", changed)
    assert told == ". With this: 2.00 times faster [1.94, 2.06]"
    assert asked == [10, 100]
    asked.clear()
    rounds(0.5)  # one that does not is soon seen
    assert findings.trial(facts, "this", changed) is None
    assert asked == [10]


def test_settings_of_the_session_are_those_of_both(facts, rounds, monkeypatch):
    made = []
    monkeypatch.setattr(
        SessionSpec, "candidate", lambda spec: made.append(spec) or Candidate(lambda: None)
    )
    asked = {"spinning": "off", "optimization": "all", "threads": 2, "run_config": {"k": "v"}}
    rounds(0.5)
    changed = load_model(TEXT)
    findings.gain(Facts(facts.profile, {"X": np.zeros(4, np.float32)}, asked), changed)
    common = {"spinning": "off", "optimization": "all", "provider": "cpu", "threads": 2}
    assert [spec.run_config for spec in made] == [{"k": "v"}] * 2
    assert [spec.settings for spec in made] == [common] * 2
    assert [spec.model for spec in made] == [facts.profile.original, changed]


def test_texts_are_tried_too(rounds):
    rounds(2.0)
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (string[2] X) => (bool[2] Y) { Y = Equal (X, X) }"""
    feeds = {"X": np.array(["a", "b"], object)}
    found = profile(text, feeds, provider="cpu", repeat=1, overhead=False)
    assert findings.gain(Facts(found, feeds), load_model(text)).ratio == 2


def test_what_cannot_run_is_not_measured(facts):
    unknown = load_model(TEXT.replace("Sin", "Unknown"))
    assert findings.gain(facts, unknown) is None
    assert findings.gain(Facts(facts.profile, None), load_model(TEXT)) is None
    assert findings.trial(facts, "this", unknown) == ""


@pytest.mark.parametrize(
    ("ratio", "interval", "helps"),
    [(1.5, (1.4, 1.6), True), (1.2, None, True), (0.9, None, False), (1.0, (0.99, 1.01), False)],
)
def test_what_is_worth_a_mention(facts, monkeypatch, ratio, interval, helps):
    claim = compare_ratio("changed", "as it is", ratio, interval)
    monkeypatch.setattr(findings, "gain", lambda *_: claim)
    assert (findings.trial(facts, "this", load_model(TEXT)) is not None) == helps
