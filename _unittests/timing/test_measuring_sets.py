from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeClock

from ortmeter.timing import Comparison, Measurement, SpawnSpec, measuring


def test_the_time_since_a_task_was_asked_is_taken_from_its_budget(monkeypatch):
    shares, filled = [], []

    def measured(spawn_specs, budget_s, least_s, _):
        shares.append(budget_s)
        filled.append(least_s)
        return [Comparison([Measurement(name, [[1.0]]) for name in spawn_specs])]

    monkeypatch.setattr(measuring, "measure_sets", measured)
    spawn_spec = SpawnSpec("math:nan", {})  # nothing is built
    task = {"groups": [{"a": spawn_spec}] * 2, "budget_s": 100.0, "seed": 0}
    monkeypatch.setattr(measuring, "time", SimpleNamespace(time=lambda: 1000.0))
    measuring.measure_task(**task, asked_at=960.0)
    measuring.measure_task(**task, asked_at=910.0)  # cold calls say nothing
    measuring.measure_task(**task, asked_at=1060.0)  # the clock was set back
    assert shares == [30, 60, 45, 90, 50, 100]
    assert filled == [20, 20, 45, 45, 0, 0]  # as long as it took to start


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def made(monkeypatch, clock):
    """Names of the candidates in the order in which they are built; each takes a millisecond."""
    names = []

    def build(self):
        names.append(self.target)
        return clock.candidate(self.target, 1e-3)

    monkeypatch.setattr(SpawnSpec, "build", build)
    return names


SPECS = {name: SpawnSpec(name, {}) for name in "ab"}


# The first set takes a third of a second here, the others an eighth.
@pytest.mark.parametrize(
    ("least_s", "budget_s", "count"),
    [(0.0, 9.0, {6}), (3.0, 9.0, range(10, 40)), (3.0, 0.2, {1, 2})],
)
def test_a_process_measures_several_sets_of_sessions(clock, made, least_s, budget_s, count):
    """What settles the first set is known for the others; a set that would not end is not begun."""
    rng = np.random.default_rng(0)
    found = clock.time(measuring.measure_sets, SPECS, budget_s, least_s, rng)
    assert len(made) == 2 * len(found)
    assert len(found) in count
    orders = {tuple(made[i : i + 2]) for i in range(0, len(made), 2)}
    assert orders <= {("a", "b"), ("b", "a")}
    joined = measuring.join_sets([each["a"] for each in found])
    assert joined.seconds.shape == (1, sum(each["a"].repeat for each in found))
    assert {each["a"].settling for each in found} == {5}


@pytest.mark.parametrize("options", [{"repeat": 5}, {"repeat": 5, "isolated": True}])
@pytest.mark.usefixtures("made")
def test_the_rounds_that_are_asked_for_are_those_of_a_set(clock, options):
    found = clock.time(measuring.measure_sets, SPECS, 9.0, 3.0, np.random.default_rng(0), **options)
    assert [each["a"].repeat for each in found] == [5] * 6


@pytest.mark.parametrize(("isolated", "least"), [(False, 12), (True, 50)])
@pytest.mark.usefixtures("made")
def test_isolated_candidates_have_more_rounds(clock, isolated, least):
    rng = np.random.default_rng(0)
    (found, *_) = clock.time(measuring.measure_sets, SPECS, 9.0, 0.0, rng, isolated=isolated)
    assert least <= found["a"].repeat <= 60
