"""One wave: fresh processes, rounds, objectives."""

import dataclasses

import numpy as np
import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.settings import DEFAULT
from ortmeter.timing.candidates import SessionSpec
from ortmeter.tuning import waves

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[n, n] X) => (float[n, n] Y) '
FEEDS = {"X": np.ones((64, 64), np.float32)}
MODELS = {
    name: f"{TEXT}{{ Y = {name} (X{', X' * (name == 'MatMul')}) }}" for name in ("Abs", "MatMul")
}


def specs():
    plain = {**DEFAULT, "provider": Provider("cpu")}
    return {name: SessionSpec(text, FEEDS, plain, {}, bound=False) for name, text in MODELS.items()}


@pytest.mark.parametrize(
    ("objective", "rounds"),
    [
        ("p50", 3),
        pytest.param("p99", 1, marks=pytest.mark.slow),
        pytest.param("throughput", 3, marks=pytest.mark.slow),
        pytest.param("cpu-time", 3, marks=pytest.mark.slow),
        pytest.param("memory", 1, marks=pytest.mark.slow),
        pytest.param("start", 1, marks=pytest.mark.slow),
    ],
)
def test_each_objective_gives_positive_samples(objective, rounds):
    found = waves.time_wave(specs(), objective, budget_s=0.0)
    assert list(found) == list(MODELS)
    assert {len(samples) for samples in found.values()} == {rounds}
    assert all(0 < sample < 1e4 for samples in found.values() for sample in samples)


def test_an_unknown_objective_is_refused():
    with pytest.raises(InvalidArgumentError, match="objective='p42'"):
        waves.time_wave(specs(), "p42")


def test_calls_of_a_turn_end_with_its_seconds(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(waves.time, "perf_counter", lambda: next(now))
    turn = object.__new__(waves._Turn)
    turn.call = lambda: None
    assert turn.run(10, 2.5) == [1, 1, 1]
    assert turn.run(2, 100) == [1, 1]
    assert turn.run(5, 0) == [1]  # at least one


def test_a_turn_waits_until_its_threads_sleep(monkeypatch):
    naps = []
    burned = iter([0.0, 0.008, 0.008, 0.016, 0.016, 0.016])  # two naps awake, then asleep
    fake = type("T", (), {"perf_counter": lambda: 0.0, "sleep": naps.append})
    fake.process_time = lambda: next(burned)
    monkeypatch.setattr(waves, "time", fake)
    turn = object.__new__(waves._Turn)
    turn.spins = True
    turn.rest()
    assert len(naps) == 3
    turn.spins = False
    turn.rest()
    assert len(naps) == 3


def test_the_first_session_of_a_process_decides_for_its_candidates_alone():
    asked = specs()
    config = {"session_config": {"session.set_denormal_as_zero": "1"}}
    settings = {**asked["Abs"].settings, **config}
    asked["zero"] = dataclasses.replace(asked["Abs"], settings=settings)
    found = waves.time_wave(asked, "p50", budget_s=0.0)
    assert list(found) == ["Abs", "MatMul", "zero"]
