"""One wave: fresh processes, rounds, objectives."""

from types import SimpleNamespace

import numpy as np
import pytest

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


ROUNDS = {"p50": 3, "p99": 1, "throughput": 3, "cpu-time": 3, "memory": 1, "start": 1}


@pytest.mark.parametrize(
    ("objective", "rounds"),
    [pytest.param(*pair, marks=[pytest.mark.slow] * (pair[0] != "p50")) for pair in ROUNDS.items()],
)
def test_each_objective_gives_positive_samples(objective, rounds):
    found = waves.time_wave(specs(), objective, budget_s=0.0, limit_s=600.0, seed=0)
    assert list(found) == list(MODELS)
    assert {len(samples) for samples in found.values()} == {rounds}
    assert all(0 < sample < 1e4 for samples in found.values() for sample in samples)


class Clock:
    """Seconds that pass where a test says so, on a machine that is so many times busier."""

    now, load = 0.0, 1.0

    def perf_counter(self):
        return self.now

    def work(self, seconds):
        self.now += self.load * seconds
        return seconds


def timed_here(monkeypatch, load, *, objective="p50", count=20, limit_s=10.0):
    """Time candidates that take 0.1 s to build, and 0.02 s a round."""
    clock = Clock()
    clock.load = load

    def turn(_spec, _objective):
        clock.work(0.1)
        return SimpleNamespace(sample=lambda: clock.work(0.02), seconds=[0.02])

    monkeypatch.setattr(waves, "time", clock)
    monkeypatch.setattr(waves, "_Turn", turn)
    specs = {str(rank): SimpleNamespace(build=lambda: None) for rank in range(count)}
    taken = waves.time_here(specs, objective, budget_s=1.0, limit_s=limit_s, seed=0)
    return [len(taken.get(name, ())) for name in specs], clock.now


def test_a_wave_that_has_time_leaves_nobody_out(monkeypatch):
    rounds, seconds = timed_here(monkeypatch, load=1.0)
    assert rounds == [3] * 20  # its budget is over, its limit is not
    assert seconds == pytest.approx(20 * 0.1 + 3 * 20 * 0.02)


@pytest.mark.parametrize("load", [10.0, 50.0])
def test_a_wave_ends_with_its_limit_on_a_busy_machine(monkeypatch, load):
    rounds, seconds = timed_here(monkeypatch, load)
    assert rounds[:3] == [max(rounds)] * 3  # two copies of the default, and one candidate
    assert set(rounds) == {0, max(rounds)}
    least = load * 3 * 0.12  # what is always done
    assert seconds <= max(10.0 + load * 0.02 * 20, least)


def test_a_percentile_has_a_round_however_late_it_is(monkeypatch):
    rounds, _ = timed_here(monkeypatch, load=50.0, objective="p99", limit_s=0.0)
    assert rounds == [1] * 3 + [0] * 17


def test_processes_of_their_own_end_with_the_limit(monkeypatch):
    clock = Clock()
    phase = SimpleNamespace(seconds=1.5, peak=100.0)
    monkeypatch.setattr(waves, "time", clock)
    monkeypatch.setattr(waves, "start_once", lambda _: clock.work(2.0) and {waves.RESULT: phase})
    asked = {f"c{rank}": next(iter(specs().values())) for rank in range(20)}
    found = waves.time_wave(asked, "start", budget_s=1.0, limit_s=9.0, seed=0)
    assert {"c0", "c1", "c2"} <= {*found}
    assert 5 <= len(found) < 9
    assert clock.now <= 9.0 + 4 * 2.0
    assert found == {name: [1.5] for name in asked if name in found}  # in their order


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
    spent = {"perf_counter": lambda: 0.0, "process_time": lambda: next(burned)}
    monkeypatch.setattr(waves, "time", SimpleNamespace(**spent, sleep=naps.append))
    turn = object.__new__(waves._Turn)
    turn.spins = True
    turn.rest()
    assert len(naps) == 3
    turn.spins = False
    turn.rest()
    assert len(naps) == 3
