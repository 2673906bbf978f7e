"""The oracles are the formula of Pollaczek and Khinchine, and speeds that are planted."""

import numpy as np
import pytest

from ortmeter.evidence import Estimate
from ortmeter.workloads.load import Load, Point, Turn
from ortmeter.workloads.serving import (
    expected_latencies,
    find_lost_batches,
    find_tails,
    find_won_split,
)


def arriving(rate, count=40_000, threads=1, seed=0, **batch):
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    turn = Turn(arrivals, arrivals, arrivals, rate)
    return Load(Point([int] * threads, rate, **batch), (turn,))


@pytest.mark.parametrize("rho", [0.3, 0.5, 0.8])
def test_waits_are_those_of_one_server(rho):
    waits = expected_latencies(arriving(rho), 1.0) - 1.0
    assert waits.mean() == pytest.approx(rho / (2 * (1 - rho)), rel=0.1)


def test_two_servers_wait_less_than_one_half_as_fast():
    one = expected_latencies(arriving(0.8), 1.0)
    two = expected_latencies(arriving(0.8, threads=2), 1.0)
    # Half the wait of exponential services, rho**2 / (1 - rho**2), and 8% (Cosmetatos, 1975).
    assert two.mean() - 1 == pytest.approx(0.103, rel=0.1)
    assert (two <= one + 1e-9).all()


def test_a_full_batch_waits_for_its_last_request():
    arrivals = np.array([0.0, 1.0, 10.0, 14.0, 14.1, 30.0])
    turn = Turn(arrivals, arrivals, arrivals, 1.0)
    full = Load(Point([int], 0.2, batch=2), (turn,))
    # 20% of the turn is not counted: from 10 on, three batches of two.
    assert expected_latencies(full, 1.0).tolist() == pytest.approx([5.0, 1.0, 16.9, 1.0])
    waiting = Load(Point([int], 0.2, batch=2, full=False), (turn,))
    assert expected_latencies(waiting, 1.0).tolist() == pytest.approx([1.0, 1.0, 1.9, 1.0])


def planted(speed, noise=0.005, seed=0):
    rng = np.random.default_rng([seed, int(speed)])
    times = np.zeros((3, 1))
    speeds = speed * np.exp(noise * rng.standard_normal(10))
    return Load(Point([int]), tuple(Turn(*times, x) for x in speeds))


@pytest.mark.parametrize(
    ("measured", "outcomes", "evidence"),
    [
        ([Estimate(12, 9, 14)], (True,), "1.20 to 1.20"),
        ([Estimate(12, 9, 14), Estimate(7, 6.8, 7.2)], (True, True), "0.70 to 1.20"),
        ([Estimate(12, 9, 16)], (None,), "1.20 to 1.20"),  # across the bound
        ([Estimate(18, 16, 19), Estimate(5, 4, 6)], (False, False), "0.50 to 1.80"),
        ([Estimate(10), None], (None, None), "none"),  # no interval, no stable queue
    ],
)
def test_tails_hold_within_a_factor(measured, outcomes, evidence):
    found = find_tails([(one, 10.0) for one in measured], 1.5)
    assert found.outcomes == outcomes
    assert found.evidence == f"measured over predicted: {evidence}"


def by_batch(*speeds, noise=0.001, callers=1):
    found = {2**i: planted(speed, noise, i) for i, speed in enumerate(speeds)}
    return {b: Load(Point([int] * callers), load.turns) for b, load in found.items()}


def test_few_requests_are_compared_with_single_ones():
    loads = {"a": by_batch(10, 5, 8, 7, 90), "b": by_batch(10, 20)}
    found = find_lost_batches({"a": loads["a"]})
    assert found.outcomes == (True, True, True)  # a batch of 16 is not of a few
    assert "a, batch 2: 0.50" in found.evidence
    assert "a, batch 4: 0.80" in found.evidence
    assert "batch 8" not in found.evidence  # between the extremes
    assert find_lost_batches(loads).verdict == "wrong"
    assert find_lost_batches({"a": by_batch(10)}).verdict == "undecided"


@pytest.mark.parametrize(
    ("parts", "outcome"), [((9, 30, 90), True), ((99, 20, 99), False), ((99, 20.5, 99), False)]
)
def test_callers_share_the_largest_batch(parts, outcome):
    whole = {"a": by_batch(10, 15, 20)}
    found = find_won_split(whole, {"a": by_batch(*parts, callers=2)})  # two batches of 2
    assert found.outcomes == (outcome,)
    assert found.evidence.startswith("speedup, a: ")
