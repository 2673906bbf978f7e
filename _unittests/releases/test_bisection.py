"""Search of a release among planted ones, and decisions from planted latencies."""

import math

import numpy as np
import pytest

from ortmeter.errors import ModelError, OrtMeterError
from ortmeter.releases import bisection
from ortmeter.releases.bisection import Bisection, is_slower, measure_pair, slowdown
from ortmeter.releases.environments import Release
from ortmeter.releases.latency import ReleaseResults
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.measurement import Measurement

GOOD, OTHER = Release("good"), Release("other")


def named(count, index=""):
    return [Release(f"{index}{number}", index=index) for number in range(count)]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 19, 64])
def test_the_first_bad_release_is_found_in_few_tries(count):
    releases = named(count)
    for first in range(1, count):
        found = Bisection(releases)
        found.search(lambda release, first=first: releases.index(release) >= first)
        assert found.ends == (releases[first - 1], releases[first])
        assert len(found.tried) <= math.ceil(math.log2(count - 1))
        assert all(bad == (releases.index(r) >= first) for r, bad in found.tried.items())


def test_nightly_builds_are_tried_between_the_two_releases_only():
    first, middle, last = named(3)
    before, after = (named(20, f"https://{place}/") for place in ("before", "after"))
    releases = [first, *before, middle, *after, last]
    found = Bisection(releases)
    found.search(lambda release: releases.index(release) >= releases.index(after[13]))
    assert found.ends == (after[12], after[13])
    assert next(iter(found.tried)) == middle
    assert not {*before} & {*found.tried}
    assert len(found.tried) <= 1 + math.ceil(math.log2(20))


@pytest.mark.parametrize("error", [OrtMeterError("noise"), KeyboardInterrupt()])
def test_what_is_known_stays_when_a_try_has_no_answer(error):
    releases = named(19)

    def is_bad(release):
        if release is releases[12]:
            raise error
        return releases.index(release) > 12

    found = Bisection(releases)
    with pytest.raises(type(error)):
        found.search(is_bad)
    good, bad = map(releases.index, found.ends)
    assert good < 12 < bad < 18
    assert found.tried[releases[12]] is None
    assert found.between == releases[good + 1 : bad]


@pytest.fixture
def planted(monkeypatch):
    """Replace the measurements by draws around a ratio; return how many processes were asked."""
    asked = []

    def plant(ratio, noise, seed=0):
        rng = np.random.default_rng(seed)

        def measure_releases(releases, variants, *, processes, **_):
            asked.append(processes)
            found = [
                Measurement(r.name, t * np.exp(noise * rng.standard_normal((processes, 12))))
                for r, t in zip(releases, (1e-3, ratio * 1e-3), strict=True)
            ]
            return ReleaseResults({"": Comparison(found)}, {}, {}, {})

        monkeypatch.setattr(bisection, "measure_releases", measure_releases)
        return asked

    return plant


def test_a_slowdown_is_that_of_the_second_release(planted):
    planted(12.0, 0.01)
    times = slowdown(GOOD, OTHER, None, processes=10)
    assert times.low < 12 < times.high < 12.5
    assert times.confidence == 0.99


@pytest.mark.parametrize(
    ("ratio", "noise", "answer", "processes"),
    [
        (12.0, 0.05, True, [5]),
        (1.0, 0.05, False, [5]),
        # the first five do not tell
        (5.2, 0.3, True, [5, 10]),
        (2.2, 0.3, False, [5, 10]),
    ],
)
def test_more_processes_decide_what_is_close(ratio, noise, answer, processes, planted):
    asked = planted(ratio, noise)
    assert is_slower(GOOD, OTHER, None, 3.4, 30.0) is answer
    assert asked == processes


def test_what_stays_undecided_says_so(planted):
    asked = planted(3.4, 0.5)
    told = r"other is undecided beside good: slowdown 3\.\d+ \[.*\] \(99.96%\) in 20 processes, whe"
    with pytest.raises(OrtMeterError, match=told):
        is_slower(GOOD, OTHER, None, 3.4, 30.0)
    assert asked == [5, 10, 20]


def test_noise_rarely_gives_a_wrong_answer(planted):
    """A ratio of exactly the factor: any answer is wrong; 1/800 of them is allowed to each try."""
    answers = []
    for seed in range(300):
        planted(1.5, 0.3, seed)
        try:
            answers.append(is_slower(GOOD, OTHER, None, 1.5, 30.0))
        except OrtMeterError:
            continue
    assert len(answers) <= 4


def test_a_release_that_does_not_run_the_model_has_no_answer(monkeypatch):
    found = ReleaseResults({}, {}, {("", "other"): "other: no kernel"}, {})
    monkeypatch.setattr(bisection, "measure_releases", lambda *_, **__: found)
    with pytest.raises(ModelError, match="other: no kernel"):
        measure_pair(GOOD, OTHER, None)
