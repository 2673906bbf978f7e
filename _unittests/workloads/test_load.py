"""The oracle is the recursion of a queue; the clock moves only when a server sleeps or works."""

import threading
import time
from unittest import mock

import numpy as np
import pytest
from processes import PATIENCE_S
from scipy import stats

from ortmeter.errors import InvalidArgumentError
from ortmeter.workloads import load as module
from ortmeter.workloads.load import (
    Load,
    Point,
    Turn,
    compare_best,
    compare_throughput,
    measure_load,
)

SERVICE = 0.01


class Clock:
    """A clock in nanoseconds; a sleep lasts 20 µs at least."""

    def __init__(self):
        self.now = 0

    def perf_counter_ns(self):
        return self.now

    def perf_counter(self):
        return self.now / 1e9

    def sleep(self, seconds):
        self.now += max(int(1e9 * seconds), 20_000)

    def call(self, *seconds):
        """Return a call that lasts these times, the last one again and again."""
        times = list(seconds)

        def call():
            self.now += int(1e9 * (times.pop(0) if len(times) > 1 else times[0]))

        return call

    def measure(self, points, **options):
        """Measure a load with this clock."""
        with mock.patch.object(module, "time", self):
            return measure_load(points, **options)


def serve(rate, seconds, *services, seed=0):
    clock = Clock()
    point = Point([clock.call(*(services or [SERVICE]))], rate)
    return clock.measure({0: point}, seconds=seconds, seed=seed)[0]


def waits(load):
    return np.concatenate([(t.starts - t.arrivals)[load.settled(t)] for t in load.turns])


def test_each_wait_is_that_of_the_recursion():
    load = serve(60.0, 10)
    for turn in load.turns:
        free, expected = 0.0, []
        for arrival in turn.arrivals:
            expected.append(max(free - arrival, 0.0))
            free = max(free, arrival) + SERVICE
        late = turn.starts - turn.arrivals - expected
        # At each wake-up, the server is late by what a sleep lasts at least.
        assert late.min() >= -1e-8
        assert np.median(late) <= 2e-5
        assert late.max() < SERVICE


def test_a_latency_holds_the_wait():
    load = serve(0.7 / SERVICE, 200)
    latency = waits(load) + SERVICE
    for p in load.percentiles():
        assert p.value == pytest.approx(np.percentile(latency, p.level), rel=1e-6)
    assert load.percentiles([50])[0].value > 1.2 * SERVICE
    # The first fifth of a turn, while the queue fills, does not count.
    assert len(latency) == pytest.approx(0.8 * load.requests, rel=0.02)


def test_arrivals_are_poisson():
    turns = serve(50.0, 100).turns
    between = np.concatenate([np.diff(turn.arrivals) for turn in turns])
    assert stats.kstest(between, stats.expon(scale=1 / 50).cdf).pvalue > 0.01
    counts = [len(turn.arrivals) for turn in turns]
    assert sum(counts) == pytest.approx(50 * 90, abs=4 * np.sqrt(50 * 90))


@pytest.mark.parametrize(("rate", "turns"), [(50, 5), (350, 7), (5000, 10)])
def test_a_turn_has_200_requests_or_there_are_5(rate, turns):
    found = serve(float(rate), 4, 1e-4).turns
    assert [len(turn.arrivals) > 0 for turn in found] == [True] * turns


def test_a_stall_delays_the_requests_that_follow():
    """No coordinated omission: the requests of the stall are late, not only the one that stalls."""
    normal = serve(100.0, 60, 0.001)
    stalled = serve(100.0, 60, *[0.001] * 8000, 1.0, 0.001)
    late = [
        (np.concatenate([t.ends - t.arrivals for t in x.turns]) > 0.5).sum()
        for x in (normal, stalled)
    ]
    assert late[0] == 0
    assert 30 < late[1] < 70


def test_more_requests_than_can_be_served_are_an_overload():
    load = serve(1.5 / SERVICE, 10)
    assert load.utilization().value == pytest.approx(1.5)
    assert load.state() == "overloaded"
    assert load.percentiles() == ()
    hopeless = serve(4 / SERVICE, 10)
    assert all(turn.left > 0 for turn in hopeless.turns)
    assert hopeless.throughput().value == pytest.approx(1 / SERVICE, rel=0.01)


def test_a_utilization_that_may_be_1_is_undecided():
    rng = np.random.default_rng(0)
    load = serve(100.0, 10, *rng.exponential(SERVICE * 0.97, 3000))
    assert (load.state(), load.percentiles()) == ("undecided", ())
    nothing = serve(0.01, 1)
    assert (nothing.requests, nothing.state(), nothing.percentiles()) == (0, "undecided", ())


def test_a_low_rate_has_the_latency_of_a_run():
    load = serve(5.0, 400)
    assert load.state() == "stable"
    median, *_, p99 = load.percentiles()
    assert median.value == pytest.approx(SERVICE, rel=0.01)
    assert median.high == pytest.approx(SERVICE, rel=0.01)
    assert p99.value < 2 * SERVICE


def test_a_caller_waits_for_its_results():
    clock = Clock()
    points = {s: Point([clock.call(s)]) for s in (0.01, 0.02)}
    found = clock.measure(points, seconds=4)
    for service, load in found.items():
        assert load.throughput().value == pytest.approx(1 / service)
        settling = {0.01: 4, 0.02: 1}[service]
        assert [len(turn.ends) for turn in load.turns] == [round(0.36 / service) - settling] * 10
        assert load.percentiles([50])[0].value == pytest.approx(service)
    claim = compare_throughput("short", found[0.01], "long", found[0.02])
    assert (claim.verdict, claim.how) == ("faster", "10 turns")
    assert claim.ratio == pytest.approx(2)


@pytest.mark.parametrize("service", [1e-3, 5e-3])
def test_callers_serve_as_much_as_a_long_loop_of_calls(service):
    """The first calls of a turn are slow, and a turn of 45 ms has few of them."""
    clock, last = Clock(), []

    def make(name):
        def call():
            slow = 1.7 if last[-2:] != [name] * 2 else 1.0
            last.append(name)
            clock.now += int(1e9 * slow * service)

        return call

    found = clock.measure({name: Point([make(name)]) for name in "ab"}, seconds=0.5)
    for load in found.values():
        assert load.throughput().value == pytest.approx(1 / service)
        assert load.percentiles([50])[0].value == pytest.approx(service)


def test_a_throughput_is_that_of_all_turns_together():
    """On a machine with a quota some turns serve nearly nothing: a geometric mean is far below."""
    empty = np.zeros(0)
    rates = [100.0] * 5 + [1.0] * 5
    load = Load(Point([print]), tuple(Turn(empty, empty, empty, rate) for rate in rates))
    assert load.throughput().value == pytest.approx(np.mean(rates))
    other = Load(Point([print]), tuple(Turn(empty, empty, empty, rate) for rate in rates[::-1]))
    claim = compare_throughput("a", load, "b", other)
    assert (claim.ratio, claim.verdict) == (pytest.approx(1.0), "undecided")


def test_runs_that_are_long_beside_the_time_end_it():
    clock = Clock()
    found = clock.measure({0: Point([clock.call(5.0)])}, seconds=1)
    assert len(found[0].turns) == 1
    throughput = found[0].throughput()
    assert (throughput.value, throughput.interval) == (pytest.approx(0.2), None)


def test_callers_run_at_the_same_time():
    active, together = set(), threading.Event()

    def make(rank):
        def call():
            active.add(rank)
            if len(active) == 3:
                together.set()
            assert together.wait(PATIENCE_S)
            time.sleep(0.003)

        return call

    found = measure_load({0: Point([make(i) for i in range(3)])}, seconds=0.2)
    assert found[0].requests >= 3 * len(found[0].turns)


def test_servers_share_one_line():
    """Two servers: a request waits only while both are busy."""

    def make():
        return lambda: time.sleep(0.005)

    load = measure_load({0: Point([make(), make()], 200.0)}, seconds=0.5)[0]
    for turn in load.turns:
        assert (turn.starts >= turn.arrivals).all()
        running = [((turn.starts <= s) & (turn.ends > s)).sum() for s in turn.starts]
        assert max(running) <= 2


def test_a_call_that_fails_ends_the_others():
    started, done = threading.Event(), threading.Event()

    def fail():
        assert started.wait(PATIENCE_S)
        raise ValueError("kernel")

    def work():
        started.set()
        time.sleep(0.001)
        done.set()

    with pytest.raises(ValueError, match="kernel"):
        measure_load({0: Point([fail, work])}, seconds=0.5)
    assert done.is_set()


@pytest.mark.parametrize("rate", [0.0, 1e9])
def test_what_cannot_be_measured_is_refused(rate):
    with pytest.raises(InvalidArgumentError, match="Accepted: up to"):
        measure_load({0: Point([int], rate)}, seconds=1)
    turn = Turn(*np.zeros((3, 1)), 1.0)
    with pytest.raises(InvalidArgumentError, match="a point with a rate"):
        Load(Point([int]), (turn,)).utilization()


def serve_batches(rate, *, full, batch=4, seconds=40.0):
    clock = Clock()
    point = Point([clock.call(SERVICE)], rate, batch, full)
    return clock.measure({0: point}, seconds=seconds)[0]


def test_a_full_batch_waits_for_its_last_request():
    load = serve_batches(20.0, full=True)
    for turn in load.turns:
        assert len(turn.ends) % 4 == 0
        groups = turn.starts.reshape(-1, 4)
        assert (groups == groups[:, :1]).all()
        assert (groups[:, 0] >= turn.arrivals.reshape(-1, 4)[:, 3]).all()
        assert turn.left == 0
    # The first request of a batch waits for three others, the last one for none.
    mean = waits(load).mean()
    assert mean == pytest.approx(1.5 / 20, rel=0.2)
    assert load.utilization().value == pytest.approx(20 * SERVICE / 4)


def test_a_batch_may_take_what_waits():
    alone = serve_batches(5.0, full=False)
    assert waits(alone).mean() < SERVICE / 2
    # Four times what one at a time could serve, and the queue is stable.
    busy = serve_batches(3 / SERVICE, full=False)
    assert busy.state() == "stable"
    assert waits(busy).mean() < 3 * SERVICE
    for turn in busy.turns:
        _, counts = np.unique(turn.starts, return_counts=True)
        assert counts.max() == 4
        assert (turn.starts >= turn.arrivals).all()
    assert serve_batches(6 / SERVICE, full=False, seconds=4).state() == "overloaded"


def test_each_request_of_a_batch_is_served_once():
    def make():
        return lambda: time.sleep(0.002)

    for full in (True, False):
        point = Point([make(), make()], 800.0, 3, full)
        for turn in measure_load({0: point}, seconds=0.5)[0].turns:
            waited = int((turn.arrivals == 0).sum())  # since the end of the turn before
            assert (np.diff(turn.arrivals[waited:]) > 0).all()
            assert (turn.ends > turn.starts).all()


def test_callers_count_every_request_of_a_batch():
    clock = Clock()
    point = Point([clock.call(SERVICE)], batch=8)
    load = clock.measure({0: point}, seconds=2)[0]
    assert load.throughput().value == pytest.approx(8 / SERVICE)


def test_the_best_of_several_points_is_known_less():
    rng = np.random.default_rng(0)

    def planted(speed):
        speeds = speed * np.exp(0.01 * rng.standard_normal(10))
        return Load(Point([int]), tuple(Turn(*np.zeros((3, 1)), x) for x in speeds))

    loads, other = {1: planted(10), 2: planted(30), 4: planted(20)}, planted(10)
    found = compare_best("batches of {}", loads, "callers", other)
    alone = compare_throughput("batches of 2", loads[2], "callers", other)
    assert (found.subject, found.baseline, found.ratio) == ("batches of 2", "callers", alone.ratio)
    assert found.confidence == pytest.approx(1 - 0.01 / 3)
    assert found.low < alone.low < alone.high < found.high
