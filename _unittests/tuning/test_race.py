"""The race, on numbers without a clock: intervals, losers that leave, what is confirmed."""

import itertools

import numpy as np
import pytest

from ortmeter.tuning.race import AGAIN, DEFAULT, LATE, Race, confirm, run_race


def timer_of(seconds, noise=0.005, seed=0, copies=1.0):
    """Candidates of known times; `copies` is how much longer the copy of the default takes."""
    rng = np.random.default_rng(seed)
    known = {DEFAULT: 1.0, AGAIN: copies, **seconds}

    def time(names):
        own = {name: known[name] * np.exp(noise * rng.standard_normal()) for name in names}
        drift = np.exp(0.05 * rng.standard_normal(5))  # of the machine: all have it
        return {name: (own[name] * drift).tolist() for name in names}

    return time


@pytest.mark.parametrize(
    "draw", [lambda rng, size: rng.normal(size=size), lambda rng, size: rng.standard_t(5, size)]
)
@pytest.mark.parametrize("waves", [2, 4])
def test_an_interval_of_few_waves_covers(draw, waves):
    rng, covered = np.random.default_rng(0), []
    for _ in range(60):
        race = Race(lambda names: {}, {})
        for name in range(30):
            race.logs[str(name)] = (0.03 * draw(rng, waves)).tolist()
        race.logs[AGAIN] = [0.0] * waves
        intervals = [race.estimate(str(name)).interval for name in range(30)]
        covered += [low <= 1 <= high for low, high in intervals]
    assert 0.985 <= np.mean(covered) < 1


def test_the_fastest_of_an_axis_stays_and_the_others_leave():
    seconds = {"a": 0.8, "b": 0.9, "c": 1.0, "d": 1.5}
    race = Race(timer_of(seconds), {"a": "x", "b": "x", "c": "y", "d": "z"})
    run_race(race, goes_on=lambda: True)
    assert race.running == ["a"]
    assert race.left == {"b": "slower than another of its axis", "c": "no gain", "d": "slower"}
    assert race.estimate("a").value == pytest.approx(1.25, rel=0.02)
    assert race.survivors() == ["a"]
    assert [race.outcome(name) for name in "abcd"] == ["faster", *race.left.values()]


def test_who_left_is_not_timed_again():
    asked = []
    planted = timer_of({"fast": 0.9, "slow": 2.0}, noise=0.03)

    def timer(names):
        asked.append(list(names))
        return planted(names)

    race = Race(timer, {"fast": "x", "slow": "y"})
    run_race(race, goes_on=lambda: True)
    race.wave()
    assert "slow" in asked[0]
    assert "slow" not in asked[-1]


def test_the_worse_half_leaves_after_each_wave():
    seconds = {str(i): 0.5 + 0.1 * i for i in range(12)}
    race = Race(timer_of(seconds, noise=0.02), {name: name for name in seconds})
    race.wave()
    assert len(race.running) == 6
    race.wave()
    assert len(race.running) == 6
    assert "0" in race.running
    assert {race.left[name] for name in ("9", "10", "11")} <= {"not among the best", "slower"}


def test_what_cannot_win_is_timed_once_and_takes_the_place_of_none():
    seconds = {"lossy": 0.2, **{str(i): 1.0 for i in range(8)}}
    race = Race(timer_of(seconds), {name: name for name in seconds}, ["lossy"])
    for _ in range(3):
        race.wave()
    assert len(race.logs["lossy"]) == 1
    assert len(race.running) == 6 - sum(why == "no gain" for why in race.left.values())
    assert race.estimate("lossy").exceeds(4)


def test_two_equal_sessions_that_differ_end_the_race():
    race = Race(timer_of({"a": 0.9}, copies=1.2), {"a": "x"})
    run_race(race, goes_on=lambda: True)
    assert race.equal_differ
    low, high = race.estimate("a").interval
    assert low < 1 / 0.9 < high  # by what the two copies differ, at least


def test_a_race_ends_with_its_time():
    count = itertools.count()
    race = Race(timer_of({"a": 0.99}, noise=0.3), {"a": "x"})
    run_race(race, goes_on=lambda: next(count) < 4)
    assert len(race.logs["a"]) == 7  # three at least, then four


def test_who_was_not_timed_for_lack_of_time_leaves():
    planted, asked = timer_of({"a": 0.9, "late": 0.5}), []

    def timer(names):
        asked.append(names)
        return {name: s for name, s in planted(names).items() if name != "late"}

    race = Race(timer, {"a": "x", "late": "y"})
    run_race(race, goes_on=lambda: True)
    assert race.left == {"late": LATE}
    assert "late" not in {name for names in asked[1:] for name in names}
    race.logs["late"] = [0.1]  # it was timed once, before there was no time
    race.left.clear()
    race.wave()
    assert race.left == {"late": "undecided"}
    assert race.winner({"a": 1, "late": 1}) == "a"
    assert np.median(race.default) == pytest.approx(1.0, rel=0.1)  # of each round


def test_the_simplest_of_those_that_are_about_as_fast_wins():
    race = Race(timer_of({"one": 0.9, "two": 0.897}), dict.fromkeys(["one", "two"], "x"))
    for _ in range(4):
        race.wave()
    assert race.winner({"one": 1, "two": 2}) == "one"


@pytest.mark.parametrize(("seconds", "outcome"), [(0.995, "no gain"), (0.98, "faster, below 1.03")])
def test_nothing_wins_below_the_least_gain(seconds, outcome):
    race = Race(timer_of({"a": seconds}, noise=1e-3), {"a": "x"})
    for _ in range(3):
        race.wave()
    assert (race.winner({"a": 1}), race.outcome("a")) == (DEFAULT, outcome)


@pytest.mark.parametrize(("most", "waves"), [(6, 6), (0, 3)])
def test_a_win_is_confirmed_on_samples_that_chose_nothing(most, waves):
    done = confirm(timer_of({"a": 0.8}), "a", lambda count: count < most)
    assert (done.is_win, done.winner, done.comparison[DEFAULT].processes) == (True, "a", waves)
    assert done.speedup.low < 1.25 < done.speedup.high


@pytest.mark.parametrize(
    ("seconds", "options"),
    [
        (0.98, {}),  # less than 3%
        (1.2, {}),
        (0.8, {"noise": 0.4}),
        (0.8, {"copies": 1.3}),  # equal sessions differ
    ],
)
def test_what_is_no_win_is_not_confirmed(seconds, options):
    timer = timer_of({"a": seconds}, **options)
    assert not confirm(timer, "a", lambda count: count < 8).is_win


def test_what_equal_sessions_differ_by_widens_the_interval():
    narrow, wide = (
        confirm(timer_of({"a": 0.8}, copies=copies), "a", lambda count: count < 8)
        for copies in (1.0, 1.04)
    )
    assert wide.speedup.high / wide.speedup.low > narrow.speedup.high / narrow.speedup.low
