"""Ratios of several builds: does the interval hold the true ratio?"""

import numpy as np
import pytest

from ortmeter.evidence import Estimate
from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.builds import TYPICAL, between_builds, over_builds
from ortmeter.timing.statistics import estimate_ratio

PROCESSES = 5


def drawn(rng, ratio, moves, builds):
    """Samples of one ratio: each build moves it, each process by 1% more."""
    logs = np.log(ratio) + rng.normal(0, moves, (builds, 1))
    return np.exp(logs + rng.normal(0, 0.01, (builds, PROCESSES)))


def estimates(samples, confidence=TYPICAL):
    ones = np.ones((PROCESSES, 1))
    return [estimate_ratio(build[:, None], ones, confidence) for build in samples]


@pytest.mark.parametrize("builds", [2, 5])
def test_the_interval_holds_the_ratio_whatever_moves(builds):
    """Three ratios in four move by 1%, one by 6%: an interval of one build misses that one."""
    rng = np.random.default_rng(builds)
    held = held_by_one = total = 0
    for _ in range(150):
        moves = rng.choice([0.01, 0.06], p=[0.75, 0.25], size=4)
        samples = [drawn(rng, 1.3, move, builds) for move in moves]
        between = between_builds(map(estimates, samples))
        ratios = [estimates(ratio, 0.99) for ratio in samples]
        found = [over_builds(ratio, between) for ratio in ratios]
        held += sum(one.low <= 1.3 <= one.high for one in found)
        held_by_one += sum(ratio[0].low <= 1.3 <= ratio[0].high for ratio in ratios)
        total += 4
    assert held >= 0.98 * total
    assert held_by_one < 0.92 * total


def test_the_variance_is_that_of_the_builds_not_of_the_processes():
    rng = np.random.default_rng(0)
    for moves in (0.005, 0.04):
        ratios = [estimates(drawn(rng, 1.2, moves, builds=4)) for _ in range(80)]
        assert np.sqrt(between_builds(ratios)) == pytest.approx(moves, rel=0.4)


def test_one_ratio_that_moves_much_hardly_counts_for_the_others():
    rng = np.random.default_rng(0)
    ratios = [estimates(drawn(rng, 1.2, 0.02, builds=4)) for _ in range(40)]
    between = between_builds(ratios)
    ratios.append(estimates(drawn(rng, 1.2, 0.5, builds=4)))
    assert between_builds(ratios) < 1.3 * between


def test_without_a_second_build_the_variance_is_what_the_site_saw():
    rng = np.random.default_rng(0)
    alone = [estimates(drawn(rng, 1.2, 0.1, builds=1)) for _ in range(9)]
    assert np.sqrt(between_builds(alone)) == pytest.approx(0.015)


def test_builds_that_agree_are_narrower_than_one_and_builds_that_do_not_are_wider():
    first = Estimate(1.5, 1.35, 1.65)
    same = over_builds([first] * 5, 0.0)
    assert same.value == pytest.approx(1.5)
    assert 1.35 < same.low < same.high < 1.65
    far = over_builds([first, Estimate(0.7, 0.65, 0.76)], 0.015**2)
    assert far.low < 0.7
    assert far.high > 1.5


def test_a_build_without_interval_does_not_count():
    first, second = Estimate(1.5, 1.4, 1.6), Estimate(1.4, 1.3, 1.5)
    with_it = over_builds([first, Estimate(9.0), second], 0.015**2)
    assert with_it == over_builds([first, second], 0.015**2)


def test_a_contradiction_is_not_decided():
    """Each build decides, one way and the other: both together do not."""
    builds = []
    for ratio in (1.3, 0.8):
        noise = np.exp(np.random.default_rng(7).normal(0, 0.01, (5, 1)))
        pair = Measurement("a", ratio * noise), Measurement("b", np.ones((5, 1)))
        builds.append(Comparison(pair))
    here, before = builds
    assert [build.speedup("a", "b").verdict for build in builds] == ["faster", "slower"]
    here.before, here.between = [before], 0.015**2
    claim = here.speedup("a", "b")
    assert claim.verdict == "undecided"
    assert claim.how == "reproduced in 0 of 2 builds"


def test_candidates_that_a_build_lacks_have_the_interval_of_the_others():
    ones = np.ones((5, 1))
    here = Comparison([Measurement("a", 2 * ones), Measurement("b", ones), Measurement("c", ones)])
    here.before = [Comparison([Measurement("a", 2 * ones), Measurement("b", ones)])]
    here.between = 0.015**2
    assert here.speedup("a", "c").how == "5 processes"
    assert here.speedup("a", "b").how == "reproduced in 2 of 2 builds"


def test_a_selection_keeps_the_builds():
    ones = np.ones((5, 1))
    here = Comparison(Measurement(n, x * ones) for n, x in (("a", 2), ("b", 1), ("c", 3)))
    before = Comparison(Measurement(n, x * ones) for n, x in (("a", 3), ("b", 1), ("c", 3)))
    here.before, here.between = [before], 0.015**2
    chosen = here.select(["b", "a"])
    assert list(chosen) == ["b", "a"]
    assert chosen.speedup("a", "b") == here.speedup("a", "b")
    assert "2 builds" in chosen.ranking()[0].how
