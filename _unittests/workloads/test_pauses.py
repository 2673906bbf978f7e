"""Latency after a pause, with a clock that only sleeps and runs move."""

from unittest import mock

import numpy as np
import pytest
from scipy import stats

from ortmeter.errors import InvalidArgumentError
from ortmeter.workloads import pauses as module
from ortmeter.workloads.pauses import AfterPause, measure_pauses


class Clock:
    def __init__(self):
        self.now = self.rested = 0.0
        self.pauses = []

    def perf_counter(self):
        return self.now

    def process_time(self):
        return 0.0

    def sleep(self, seconds):
        self.now += seconds
        self.pauses.append(seconds)

    def call(self):
        """A run that is slower by a tenth of the time since the previous one."""
        self.now += 0.001 + 0.1 * (self.now - self.rested)
        self.rested = self.now

    def measure(self, calls, pauses, **options):
        """Measure pauses with this clock."""
        with mock.patch.object(module, "time", self):
            return measure_pauses(calls, pauses, **options)


def test_each_run_follows_its_pause():
    clock = Clock()
    found = clock.measure({"a": clock.call}, [0, 0.1, 1], seconds=20)
    rounds = {len(one.seconds) for one in found.values()}
    assert len(rounds) == 1
    assert clock.pauses.count(0.1) == clock.pauses.count(1) == rounds.pop()
    assert clock.pauses[:12] != [0.1, 1] * 6  # in random orders
    for (_, pause), one in found.items():
        np.testing.assert_allclose(one.seconds, 0.001 + 0.1 * pause)
    claim = found["a", 0.1].compare(found["a", 0], "gap=0.1", "gap=0")
    assert claim.verdict == "slower"
    assert 1 / claim.ratio == pytest.approx(11)


def test_the_cpu_time_is_that_of_a_pause_and_its_run():
    clock = Clock()

    def spinning():  # two threads for 2 ms after a run, and a run of 1 ms
        return 2 * min(clock.now - clock.rested, 0.002) + spent

    spent = 0.0

    def call():
        nonlocal spent
        spent = spinning() + 0.001
        clock.now += 0.001
        clock.rested = clock.now

    clock.process_time = spinning
    found = clock.measure({"a": call}, [0, 0.001, 1], seconds=10)
    assert [one.cpu for one in found.values()] == pytest.approx([0.001, 0.003, 0.005])
    assert {one.cpu_seconds.shape for one in found.values()} == {found["a", 0].seconds.shape}


def test_a_neighbour_runs_before_each_pause():
    clock, calls = Clock(), []
    found = clock.measure(
        {"a": lambda: calls.append("a")},
        [0.5],
        seconds=10,
        rounds=4,
        before=lambda: calls.append("b"),
    )
    assert "".join(calls) == "aaabbb" + "bbbbbba" * 4
    assert found["a", 0.5].seconds.shape == (4,)
    assert clock.pauses == [0.5] * 4


def test_a_round_is_whole():
    clock = Clock()
    found = clock.measure({"a": clock.call}, [0, 5], seconds=0.01)
    assert [len(one.seconds) for one in found.values()] == [1, 1]
    assert not found["a", 5].compare(found["a", 0], "gap=5", "gap=0").has_interval


def test_few_rounds_have_the_interval_of_student():
    rng = np.random.default_rng(0)
    first, second = np.exp(0.1 * rng.standard_normal((2, 12)))
    claim = AfterPause(1, second, second).compare(AfterPause(0, first, first), "gap=1", "gap=0")
    logs = np.log(first / second)
    # 99.4%: the rest of the error is spent on stopping when the interval is narrow
    low, high = np.exp(stats.t.interval(0.994, 11, logs.mean(), stats.sem(logs)))
    assert (claim.low, claim.high) == pytest.approx((low, high))


@pytest.mark.parametrize("pause", [-1, float("nan")])
def test_what_cannot_be_measured_is_refused(pause):
    with pytest.raises(InvalidArgumentError, match="Accepted"):
        measure_pauses({"a": int}, [pause], seconds=1)
