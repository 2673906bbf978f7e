import gc
import math
import time

import numpy as np
import pytest
from fakes import Caches, FakeClock
from scipy.signal import lfilter
from scipy.stats import norm

from ortmeter.errors import InvalidArgumentError, MissingDependencyError
from ortmeter.timing import Candidate, loop, measure, measure_each
from ortmeter.timing.loop import collector_off


def test_rounds_are_interleaved_in_a_shuffled_order_that_the_seed_decides():
    def rounds(seed):
        clock = FakeClock()
        candidates = {name: clock.candidate(name, 1e-3) for name in "abc"}
        clock.time(measure, candidates, repeat=90, warmup=1, precision=None, seed=seed)
        turns = clock.calls[-90 * 6 :: 10]  # five calls that settle, five samples
        return ["".join(turns[i : i + 3]) for i in range(0, 54, 3)]

    assert all(sorted(order) == ["a", "b", "c"] for order in rounds(0))
    assert len(set(rounds(0))) == 6
    assert rounds(0) == rounds(0) != rounds(1)


@pytest.mark.parametrize(
    "costs",
    [
        (0.3,),
        (0.79, 0.38, 0.03),
        (0.9, 0.5, 0.3, 0.2, 0.1),
        (0.9, 0.5, 0.3, 0.2, *[0.1] * 5),  # longer than what is left out at least
    ],
)
@pytest.mark.parametrize("duration", [3e-6, 1.2e-4, 2.4e-4, 1.5e-3])
def test_the_cost_of_a_switch_is_apart(costs, duration):
    """Without it, a sample of two calls of one session is slower than one of three."""
    caches = Caches(*costs)
    pair = {"a": caches.candidate("a", duration), "b": caches.candidate("b", 1.02 * duration)}
    found = caches.clock.time(measure, pair, repeat=12, precision=None)
    assert found["a"].number == found["b"].number
    assert found["a"].seconds == pytest.approx(np.full((1, 12), duration))
    assert found["b"].seconds == pytest.approx(np.full((1, 12), 1.02 * duration))
    assert found["a"].switch_cost == pytest.approx(costs[0] * duration)
    assert "back to back" in found.how


def test_a_model_has_one_latency_alone_and_beside_others():
    medians = []
    for others in ("", "b", "bcd"):
        caches = Caches(0.8, 0.4, 0.03)
        group = {name: caches.candidate(name, 1e-4 * ord(name) / 97) for name in "a" + others}
        found = caches.clock.time(measure, group, repeat=12, precision=None)
        medians.append(found["a"].median)
    assert medians == pytest.approx([1e-4] * 3)


def test_switching_times_the_call_after_another_candidate():
    caches = Caches(0.3, 0.1)
    pair = {"a": caches.candidate("a", 1e-5), "b": caches.candidate("b", 2e-5)}
    found = caches.clock.time(measure, pair, repeat=200, precision=None, switching=True)
    assert found["a"].number == 1
    # an order that is drawn again puts a candidate after itself in some rounds
    assert found["a"].median == pytest.approx(1.3e-5)
    assert found["a"].switch_cost is None
    with pytest.raises(InvalidArgumentError, match="two candidates or more"):
        measure({"a": pair["a"]}, switching=True)


def test_candidates_of_a_group_make_as_many_calls_within_reason():
    clock = FakeClock()
    durations = {"a": 1e-6, "b": 3e-6, "c": 1e-2}
    group = {name: clock.candidate(name, seconds) for name, seconds in durations.items()}
    found = clock.time(measure, group, repeat=3, precision=None, budget_s=100)
    assert {name: m.median for name, m in found.items()} == pytest.approx(durations)
    assert found["a"].number == found["b"].number == pytest.approx(50, abs=1)
    assert found["c"].number == 2  # 20 ms


def measure_one(seconds, **options):
    """Measure a candidate alone, whose calls last so long."""
    clock = FakeClock()
    call = clock.candidate("a", seconds)
    (m,) = clock.time(measure, {"a": call}, precision=None, **options).values()
    return m


@pytest.mark.parametrize(("duration", "number"), [(1e-3, 1), (1e-5, 5), (3e-6, 17)])
def test_short_calls_are_grouped(duration, number):
    m = measure_one(duration, repeat=3)
    assert m.number == pytest.approx(number, abs=1)
    assert m.median == pytest.approx(duration)


@pytest.mark.parametrize("calls", [10, 15])
def test_an_interruption_does_not_end_the_calibration(calls):
    """The first sample, of one call, follows the warm-up; the next one has ten."""
    interrupted = [*[2e-6] * calls, 5e-3, *[2e-6] * 10_000]
    assert measure_one(interrupted, repeat=3, warmup=10).number == pytest.approx(25, abs=1)


def test_a_call_that_takes_no_time_ends(monkeypatch):
    monkeypatch.setattr(loop, "_MAX_NUMBER", 1000)
    (m,) = FakeClock().time(measure, {"a": lambda: None}, repeat=2, warmup=1).values()
    assert m.median == 0


def test_the_warm_up_lasts_until_times_are_stable_and_stays_apart():
    slow_start = [30.0, 0.1, 0.05, 0.03, 0.02, 0.015, 0.012, *[0.01] * 500]
    m = measure_one(slow_start, repeat=5, budget_s=100)
    assert m.warmup[0] == pytest.approx(30)
    assert m.median == pytest.approx(0.01)
    assert m.seconds.max() == pytest.approx(0.01)


def test_the_warm_up_is_bounded():
    never_stable = (1e-6 * 2**i for i in range(10_000))
    assert sum(measure_one(never_stable, repeat=1).warmup[1:-1]) < 1
    assert len(measure_one(1e-3, repeat=1, warmup=4).warmup) == 4


def noisy(noise, *, correlation=0.0, **options):
    """Measure two candidates of one median, whose samples vary."""
    clock = FakeClock()
    candidates = {}
    for name in "ab":
        steps = np.random.default_rng(ord(name)).standard_normal(20_000)
        steps = lfilter([np.sqrt(1 - correlation**2)], [1.0, -correlation], steps)
        candidates[name] = clock.candidate(name, 1e-3 * np.exp(noise * steps))
    found = clock.time(measure, candidates, **{"budget_s": 100.0, **options})
    return found, clock


@pytest.mark.parametrize("repeat", [None, 1, 12, 50])
def test_rounds_are_added_until_the_interval_that_is_printed_is_narrow(repeat):
    found, _ = noisy(0.1, repeat=repeat)
    assert found.half_width() <= 0.02
    claim = found.speedup("a", "b")  # of one pair of sessions, which differ by 1.1%
    half = math.hypot(math.log1p(found.half_width()), 0.011 * norm.ppf(0.997))
    assert math.log(claim.high / claim.low) / 2 == pytest.approx(half)
    assert found.stopped == "precision"
    assert found["a"].repeat > 100


def test_precise_samples_take_the_rounds_that_an_interval_needs():
    assert noisy(0.001)[0]["a"].repeat == 100
    assert noisy(0.001, repeat=200)[0]["a"].repeat == 200
    found, _ = noisy(0.15, repeat=50, precision=None)  # as many as asked for
    assert (found["a"].repeat, found.stopped) == (50, "repeat")


def test_a_sample_of_no_time_stops_the_rounds():
    """The clock is too coarse for it, whatever the rounds."""
    clock = FakeClock()
    seconds = [*[1e-3] * 6, 0.0, *[1e-3] * 1000]  # warm-up and calibration first
    call = clock.candidate("a", seconds)
    found = clock.time(measure, {"a": call}, repeat=8, warmup=1, precision=0.01)
    assert (found.stopped, found["a"].repeat) == ("repeat", 8)
    assert found["a"].seconds.min() == 0


def test_correlated_samples_need_more_rounds():
    assert noisy(0.05, correlation=0.8)[0]["a"].repeat > noisy(0.05)[0]["a"].repeat


@pytest.mark.parametrize("budget_s", [0.0, 0.01, 0.15, 1.0])
def test_the_budget_is_a_cap_that_includes_the_minimum_and_the_warm_up(budget_s):
    found, clock = noisy(0.15, repeat=1000, budget_s=budget_s)
    assert found.stopped == "budget"
    assert clock.now <= budget_s + 0.02  # the first call of each, a sample of each
    assert found["a"].repeat >= 1


def test_a_slow_spell_that_hits_all_adds_no_round():
    clock = FakeClock()
    machine = 1e-3 * (1 + 0.5 * np.sin(np.linspace(0, 6, 4000)))
    candidates = {name: clock.candidate(name, np.repeat(machine, 1)) for name in "ab"}
    assert clock.time(measure, candidates, repeat=120, warmup=1)["a"].repeat == 120


def test_groups_share_the_budget():
    clock = FakeClock()
    noise = np.random.default_rng(0).standard_normal((4, 20_000))
    groups = {
        n: {
            name: clock.candidate(name, 1e-3 * np.exp(noise[2 * n + i]))
            for i, name in enumerate("ab")
        }
        for n in range(2)
    }
    found = clock.time(measure_each, groups, axis="n", budget_s=2.0)
    assert [group.stopped for group in found.values()] == ["budget", "budget"]
    assert clock.now <= 2.1
    rounds = [group["a"].repeat for group in found.values()]
    assert 0.5 < rounds[0] / rounds[1] < 2


def test_rounds_are_added_for_the_least_time():
    clock = FakeClock()
    pair = {name: Candidate(clock.candidate(name, 1e-3)) for name in "ab"}
    found = clock.time(loop.measure_here, pair, repeat=3, precision=None, least_s=1.0)
    assert 1 <= clock.now < 2
    assert found["a"].repeat > 100


def test_each_call_is_synchronized_inside_the_timed_region(monkeypatch):
    import torch

    clock, devices = FakeClock(), []
    launch = clock.candidate("launch", 1e-4)
    wait = clock.candidate("wait", 2e-3)

    def synchronize(index):
        devices.append(index)
        wait()

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    options = {"repeat": 3, "precision": None}
    for sync, expected in {"cuda:1": 2.1e-3, "cpu": 1e-4}.items():
        (m,) = clock.time(measure, {"a": launch}, sync=sync, **options).values()
        assert m.median == pytest.approx(expected)
    assert set(devices) == {1}


def test_synchronisation_without_torch_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"ortmeter\[torch\]"):
        measure({"a": lambda: None}, sync="cuda")


def test_the_garbage_collector_is_off_while_measuring_and_on_again_after():
    states = []
    measure({"a": lambda: states.append(gc.isenabled())}, repeat=2, warmup=1, precision=None)
    assert not any(states)
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError) as caught:
        measure({"good": lambda: None, "bad": lambda: 1 / 0})
    assert "candidate 'bad'" in caught.value.__notes__[0]
    assert gc.isenabled()


def test_the_garbage_collector_stays_off_when_it_was():
    gc.disable()
    try:
        with collector_off():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": {}}, "candidates is empty"),
        ({"repeat": 0}, "repeat=0"),
        ({"warmup": -1}, "warmup=-1"),
        ({"processes": 2}, "'a' has no spawn_spec"),
        ({"processes": 1.5}, "processes=1.5"),
        ({"candidates": {"a": 3}}, "candidate 'a' is a int"),
        ({"budget_s": "x"}, "budget_s='x'"),
        ({"budget_s": float("nan")}, "budget_s=nan"),
        ({"precision": -0.1}, "precision=-0.1"),
        ({"sync": "gpu"}, "provider='gpu'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        measure(**{"candidates": {"a": lambda: None}, **options})


def test_the_real_clock_agrees_with_sleep():
    (m,) = measure({"a": lambda: time.sleep(2e-3)}, repeat=3, warmup=1, precision=None).values()
    assert m.seconds.min() >= 2e-3
    assert m.number == 1
