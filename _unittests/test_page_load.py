"""The setting, the points and the views of the page *Batch more, or call more?*."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from page_runner import drawn, parse, run_setting

import ortmeter
from ortmeter.workloads.load import Load, Point, Turn

WAYS = ("one call", "callers", "sessions")
SHARES = (0.3, 0.7, 1.6)


def serving(speed, *, seconds=0.125, rate=None, batch=1, threads=1):
    """Ten turns of 100 requests, each served in these seconds, as soon as it arrives."""
    arrivals = np.arange(100.0)
    turn = Turn(arrivals, arrivals, arrivals + seconds, speed)
    return Load(Point([int] * threads, rate=rate, batch=batch), (turn,) * 10)


def planted(opened):
    speeds = {1: 500, 8: 2000, 128: 6000}
    ways = {
        way: {b: serving(speed, batch=b, threads=n) for b, speed in speeds.items()}
        for way, n in zip(WAYS, (1, 2, 2), strict=True)
    }
    closed = {"dense": ways, "convolution": ways}
    return SimpleNamespace(closed=closed, opened=opened, tail=95.0, legend="planted")


def test_the_plot_has_the_requests_per_second_of_each_way(page):
    names = [f"{network}, {way}" for network in ("dense", "convolution") for way in WAYS[:2]]
    expected = {name: [[1, 500], [8, 2000], [128, 6000]] for name in names}
    assert drawn(page["throughput"](planted({}))) == expected


def test_slow_requests_are_in_milliseconds_with_their_prediction(page):
    slow = {share: serving(1.0, seconds=0.25, rate=1.0) for share in SHARES}
    table = page["tails"](planted({"one call": slow}))
    assert table.columns.to_list() == [f"p95 at {share:g} (ms)" for share in SHARES]
    # A call takes 125 ms without other requests, so the queue is empty when one arrives.
    assert set(table.loc["one call"]) == {"250 [250, 250] (125)"}


def test_a_rate_without_requests_is_told(page):
    none = np.zeros(0)
    empty = Load(Point([int], rate=1.0), (Turn(none, none, none, 0.0),))
    table = page["tails"](planted({"one call": dict.fromkeys(SHARES, empty)}))
    assert set(table.loc["one call"]) == {empty.state()} == {"undecided"}


def test_callers_share_a_session_and_sessions_do_not(page, monkeypatch):
    for name, value in {"models": {"x": ""}, "cores": 3}.items():
        monkeypatch.setitem(page, name, value)
    monkeypatch.setattr(ortmeter, "random_feeds", lambda *_, **__: {})
    monkeypatch.setattr(ortmeter, "make_session", lambda _, **options: [options.get("threads", 1)])
    monkeypatch.setattr(ortmeter, "BoundSession", lambda session, _: SimpleNamespace(run=session))
    calls = {way: point.calls for (_, way, _), point in page["make_points"]("x", [1])}
    assert calls == {"one call": [[3]], "callers": [[1]] * 3, "sessions": [[1]] * 3}
    assert [len({*map(id, calls[way])}) for way in ("callers", "sessions")] == [1, 3]


@pytest.fixture
def service():
    """Names of the setting, for a model that squares its rows."""
    model = parse("(float[n, 3] x) => (float[n, 3] y) { y = Mul(x, x) }")
    names = run_setting("take_what_waits", model)["ask"].__globals__
    yield names
    names["worker"].shutdown()


def test_the_setting_takes_the_requests_that_wait(service):
    rows, run = (
        np.random.default_rng(0).standard_normal((20, 3), np.float32),
        service["session"].run,
    )
    sizes = []

    def slow(outputs, feeds):
        sizes.append(len(*feeds.values()))
        time.sleep(0.05)
        return run(outputs, feeds)

    service["session"] = SimpleNamespace(run=slow)
    futures = [service["ask"](row) for row in rows]
    for row, future in zip(rows, futures, strict=True):
        assert np.array_equal(future.result(timeout=10), row * row)
    assert sum(sizes) == 20
    assert sizes[0] < 8  # it did not wait
    assert 8 in sizes
    assert max(sizes) == 8
    assert service["waiting"] == service["outputs"] == {}


def test_those_who_asked_get_the_error_of_their_call(service):
    futures = [service["ask"](np.ones(shape, np.float32)) for shape in (3, 4, 5)]
    errors = [future.exception(timeout=10) for future in futures[1:]]
    assert all(errors)
    assert np.array_equal(service["ask"](np.ones(3, np.float32)).result(timeout=10), np.ones(3))
