"""The oracles are the formula of Pollaczek and Khinchine, and speeds that are planted."""

import numpy as np
import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Estimate, Threshold
from ortmeter.machine.peaks import Peaks
from ortmeter.workloads.load import Load, Point, Turn
from ortmeter.workloads.serving import (
    expected_knee,
    expected_latencies,
    find_knee,
    find_lost_batches,
    find_lost_growth,
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
    ("speeds", "noise", "text"),
    [
        ([10, 20, 40, 41, 40], 0.005, "4"),
        ([10, 10, 10, 10, 10], 0.005, "1"),
        ([10, 20, 40, 80, 160], 0.005, "not below 16 and not shown"),
        ([10, 20, 40, 44, 44], 0.02, "between 4 and 8"),  # 10% is the threshold
        ([10, 9, 20, 20, 20], 0.005, "4"),  # a first step that does not pay is no knee
        ([10, 10, 10, 10, 10], 1.0, "not below 1 and not shown"),
    ],
)
def test_a_knee_is_where_no_doubling_pays(speeds, noise, text):
    loads = {2**i: planted(speed, noise, i) for i, speed in enumerate(speeds)}
    assert str(find_knee(loads)) == text


def test_one_undecided_doubling_does_not_hide_a_knee():
    loads = {2**i: planted(speed) for i, speed in enumerate([10, 20, 40, 41])}
    assert str(find_knee(loads | {16: planted(41, noise=1.0)})) == "4"
    # No doubling alone is known to add less, but all of them together are: so does the last one.
    assert str(find_knee({2**i: planted(10, 0.12, i) for i in range(4)})) == "between 1 and 4"


def test_the_interval_of_a_knee_has_the_true_one():
    """A call takes an overhead and so much per request; one turn in ten is slow.

    One doubling adds about 10%: the knee is the batch before or the one after.
    """
    rng, trials, held, shown = np.random.default_rng(0), 300, 0, 0
    for _ in range(trials):
        overhead = 2.0 ** rng.integers(1, 7) * np.exp(rng.uniform(-0.1, 0.1)) / 4.5
        speeds = {2**i: 2**i / (overhead + 2**i) for i in range(9)}
        gains = {b: speeds[2 * b] / speeds[b] for b in speeds if b < max(speeds)}
        true = min(b for b, gain in gains.items() if gain < 1.1)
        noise = 0.04 * rng.standard_normal((9, 10)) - 0.2 * (rng.random((9, 10)) < 0.1)
        turns = {
            b: tuple(Turn(*np.zeros((3, 1)), float(x)) for x in speed * np.exp(row))
            for (b, speed), row in zip(speeds.items(), noise, strict=True)
        }
        found = find_knee({b: Load(Point([int]), row) for b, row in turns.items()})
        held += found.low <= true <= (found.high or np.inf)
        shown += found.high is not None
    assert held >= 0.985 * trials
    assert shown >= 0.5 * trials


def test_steps_that_are_not_doublings_count_by_their_length():
    loads = {1: planted(10), 16: planted(13)}  # 6.8% per doubling
    assert str(find_knee(loads)) == "1"
    assert str(find_knee({1: planted(10), 16: planted(16)})) == "not below 16 and not shown"
    with pytest.raises(InvalidArgumentError, match="two or more"):
        find_knee({1: planted(10)})


def test_a_roofline_bends_at_the_balance_of_the_machine():
    peaks = Peaks(gflop_per_s=160, gb_per_s=20)  # 8 operations per byte
    # 2 operations and 4 bytes per weight: 16 requests.
    assert expected_knee(2e6, 4e6, peaks).low == 16
    # Without overlap, 2 (16 + b) / (16 + 2 b) < 1.1 from b = 72 on.
    assert expected_knee(2e6, 4e6, peaks).high == 128
    assert expected_knee(2e9, 1.0, peaks) == Threshold(1, 1)


@pytest.mark.parametrize(
    ("knee", "bounds", "outcome"),
    [
        (Threshold(16, 16), Threshold(8, 64), True),
        (Threshold(16, 32), Threshold(8, 16), None),
        (Threshold(8, None), Threshold(8, 64), None),
        (Threshold(4, 8), Threshold(8, 64), None),
        (Threshold(64, 128), Threshold(8, 64), None),
        (Threshold(1, 4), Threshold(8, 64), False),
        (Threshold(128, None), Threshold(8, 64), False),
    ],
)
def test_a_knee_is_judged_by_its_interval(knee, bounds, outcome):
    found = knee.within(bounds)
    assert found.outcomes == (outcome,)
    assert found.evidence == f"predicted {bounds}, measured {knee}"


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


@pytest.mark.parametrize(
    ("speeds", "noise", "outcome", "pair"),
    [
        ([10, 20, 18], 0.001, True, "4 over 2"),
        ([10, 20, 40], 0.001, False, "4 over 2"),
        ([20, 10, 19.9], 0.001, False, "4 over 1"),  # 0.5% is no loss
        ([20, 10, 18], 0.1, None, "4 over 1"),
    ],
)
def test_growth_is_lost_past_a_best_batch(speeds, noise, outcome, pair):
    found = find_lost_growth(by_batch(*speeds, noise=noise))
    assert found.outcomes == (outcome,)
    assert found.evidence.startswith(f"speedup, {pair}: ")


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
