import functools

import numpy as np
import pytest
from fakes import FakeClock

from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.processes import collect, measure_isolated


def planted(noise, duration=1.0, rounds=12):
    """Processes that last as long on a fake clock, whose candidates differ by a noise."""
    clock, rng, asked = FakeClock(), np.random.default_rng(0), []

    def run(i, keys, budget_s):
        asked.append((i, tuple(keys), budget_s))
        clock.now += duration
        both = np.exp(noise * rng.standard_normal((2, 1)) + np.zeros((2, rounds)))
        pair = {name: Measurement(name, row[None]) for name, row in zip("ab", both, strict=True)}
        return dict.fromkeys(keys, pair)

    return run, clock, asked


def test_precision_is_that_of_all_processes_together():
    run, clock, asked = planted(noise=0.001)
    found = clock.time(collect, ["x"], run, processes=5, precision=0.02, budget_s=100)["x"]
    assert found.stopped == "precision"
    assert found["a"].processes == 5 == len(asked)
    assert found.half_width() <= 0.02

    run, clock, asked = planted(noise=0.02)
    found = clock.time(collect, ["x"], run, processes=3, precision=0.02, budget_s=100)["x"]
    assert 3 < found["a"].processes <= 9


def test_an_interval_that_is_narrow_by_luck_ends_nothing():
    """Narrow at 99% after three processes, not at 99.9%: a fourth one is asked for."""
    ratios = iter([0.999, 1.0, 1.001, *[1.0] * 20])

    def run(_i, keys, _budget):
        ratio = next(ratios)
        pair = {"a": Measurement("a", [[1.0] * 12]), "b": Measurement("b", [[ratio] * 12])}
        return dict.fromkeys(keys, pair)

    found = collect(["x"], run, processes=3, precision=0.01, budget_s=1e6)["x"]
    assert found["a"].processes > 3
    first = Comparison(Measurement(m.name, m.seconds[:3]) for m in found.values())
    assert first.half_width() <= 0.01 < first.half_width(0.999)


def test_processes_are_added_to_the_groups_that_need_them_only():
    calm, clock, _ = planted(noise=0.0001)
    noisy, _, _ = planted(noise=0.1)
    asked = []

    def run(i, keys, budget_s):
        asked.append(tuple(keys))
        clock.now += 1.0
        return {k: (calm if k == "calm" else noisy)(i, [k], budget_s)[k] for k in keys}

    found = clock.time(collect, ["calm", "noisy"], run, processes=5, precision=0.02, budget_s=1e6)
    assert asked[:5] == [("calm", "noisy")] * 5
    assert set(asked[5:]) == {("noisy",)}
    assert (found["calm"].stopped, found["noisy"].stopped) == ("precision", "repeat")


def test_the_budget_caps_the_processes():
    run, clock, asked = planted(noise=0.1)
    found = clock.time(collect, ["x"], run, processes=10, precision=0.001, budget_s=4.6)["x"]
    assert found.stopped == "budget"
    assert found["a"].processes == len(asked) == 5
    assert clock.now <= 5
    assert sum(budget for *_, budget in asked[:1]) <= 4.6


def test_processes_with_fewer_rounds_cut_the_others():
    rounds = iter([12, 7, 12])

    def run(_i, keys, _budget):
        return {key: {"a": Measurement("a", np.ones((1, next(rounds))))} for key in keys}

    found = collect("x", run, processes=3, precision=None, budget_s=100)["x"]
    assert (found["a"].seconds.shape, found.stopped) == ((3, 7), "repeat")


def test_candidates_apart_are_put_side_by_side():
    """Each in its turn, in an order that changes; they end with as many rounds as the shortest."""
    rounds = {"a": 4, "b": 3, "c": 5}
    orders = set()
    for seed in range(5):
        asked = []

        def alone(name, budget_s, asked=asked):
            asked.append((name, budget_s))
            times = np.full((1, rounds[name]), ord(name), float)
            return Comparison(
                [Measurement(name, times)], reference_workload=Measurement("control", times / 2)
            )

        each = {name: functools.partial(alone, name) for name in rounds}
        found = measure_isolated(each, budget_s=9.0, seed=seed)
        order = [name for name, _ in asked]
        orders.add(tuple(order))
        assert [budget for _, budget in asked] == pytest.approx([3.0, 4.5, 9.0], rel=0.1)
        assert list(found) == list(rounds)
        assert all(m.isolated and m.seconds.tolist() == [[ord(n)] * 3] for n, m in found.items())
        assert found.reference_workload.seconds.tolist() == [[ord(name) / 2 for name in order] * 3]
    assert len(orders) > 1
