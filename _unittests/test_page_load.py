"""The conclusions of the page *Batch more, or call more?*, from planted loads."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib import pyplot as plt
from page_runner import run_page

import ortmeter
from ortmeter.runtime.providers import Provider
from ortmeter.study.records import replay
from ortmeter.timing.load import Load, Point, Turn
from ortmeter.timing.serving import expected_latencies

SERVICE = 0.002
RISING = {1: 500, 2: 1000, 4: 2000, 8: 2020, 16: 2020}
FLAT = {1: 500, 2: 500, 4: 500, 8: 500, 16: 500}
BENT = {1: 500, 2: 800, 4: 800, 8: 600, 16: 400}
POOR = {1: 500, 2: 200, 4: 200, 8: 200, 16: 200}


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran."""
    return run_page("plot_load")


def callers(speed, threads, noise, seed=0):
    """Callers whose throughput is known; each run lasts SERVICE."""
    rng = np.random.default_rng([seed, int(speed)])
    starts = np.round(np.arange(60) * SERVICE, 9)
    speeds = speed * np.exp(noise * rng.standard_normal(10))
    turns = tuple(Turn(starts, starts, np.round(starts + SERVICE, 9), float(x)) for x in speeds)
    return Load(Point([int] * threads), turns)


def arriving(point, factor, count=800):
    """Requests whose latencies are those of the queue, times a factor."""
    rng = np.random.default_rng(1)
    turns = []
    for _ in range(10 if count > 100 else 1):
        arrivals = np.sort(np.round(rng.uniform(0, count / point.rate, count), 9))
        empty = Turn(arrivals, arrivals, arrivals, 0.0)
        everything = Load(dataclasses.replace(point), (empty,))
        settled = everything.settled(empty)
        latency = np.full(count, SERVICE)
        latency[settled] = expected_latencies(everything, SERVICE)
        ends = np.round(arrivals + factor * latency, 9)
        turns.append(Turn(arrivals, np.round(ends - SERVICE, 9), ends, point.rate))
    return Load(point, tuple(turns))


def planted(page, dense=RISING, images=FLAT, *, calls=(900, 900), sessions=1.0, **more):
    """Data of the page: throughput by batch of one call, throughput of callers of one request."""
    noise, factor = more.get("noise", 0.004), more.get("factor", 1.0)
    closed = {}
    for name, speeds, called in zip(("dense", "convolution"), (dense, images), calls, strict=True):
        closed[name] = {
            "one call": {b: callers(x, 1, noise, b) for b, x in speeds.items()},
            "callers": {b: callers(called, 2, noise, b + 100) for b in speeds},
            "sessions": {1: callers(called * sessions, 2, noise, 200)},
        }
    opened = {
        name: {
            share: arriving(
                Point([int], 250.0 * share, batch, full), factor, more.get("requests", 800)
            )
            for share in page["SHARES"]
        }
        for name, (_, batch, full) in page["SERVED"].items()
    }
    found = {
        "flop": {"dense": 2e6, "convolution": 1e9},
        "weights": {"dense": 4e6, "convolution": 1e5},
        "peaks": {"gflop_per_s": 40.0, "gb_per_s": 20.0},
    }
    provider = more.get("provider", "cpu")
    return {
        "closed": closed,
        "opened": opened,
        "legend": "planted",
        "tail": 90.0,
        "provider": provider,
        **found,
    }


def concluded(page, **options):
    """What the page concludes from planted loads."""
    here = page["study"].here
    return page["study"].concluded(
        dataclasses.replace(here, data=planted(page, **options), fast=False)
    )


@pytest.mark.parametrize(
    ("options", "beginning", "second", "verdict"),
    [
        (
            {},
            "Batch more when weights exceed the caches: batches of",
            "Call more for",
            "by network",
        ),
        ({"images": RISING}, "Batch more", "Batch more for conv", "batch more"),
        ({"dense": FLAT}, "Call more when", "Call more for", "call more"),
        ({"dense": FLAT, "calls": (500, 500)}, "Either when", "Either for", "either"),
        ({"noise": 2.0}, "Measure when", "Measure for", "undecided"),
    ],
)
def test_the_answer_says_what_to_do(page, options, beginning, second, verdict):
    found = concluded(page, **options)
    text = str(found.answer)
    assert text.startswith(beginning)
    assert second in text
    assert found.answer.label == verdict
    assert len(text.split()) <= 60
    assert len(found.claims) <= 5


def test_the_answer_has_the_planted_numbers(page):
    answer = concluded(page).answer
    text = str(answer)
    beside = "beside 2 callers of single requests, are 2.2"
    assert f"batches of 8, {beside}" in text or f"batches of 16, {beside}" in text
    assert "times faster [2.2" in text
    assert "Call more for convolutions: batches of " in text
    assert "times slower [1.7" in text
    assert text.endswith("The knee of the dense network (a doubling adds less than 10%) is 4.")
    expected = [1, 2020 / 500, 900 / 500, 1, 900 / 500]
    assert [bar.value for bar in answer.bars] == pytest.approx(expected, rel=0.03)


def judged(page, **options):
    """Verdicts of: winners, knees, sessions, queue."""
    return [claim.verdict for claim in concluded(page, **options).claims][:4]


@pytest.mark.parametrize(
    ("options", "rank", "verdict"),
    [
        ({}, 0, "right"),
        ({"dense": FLAT}, 0, "wrong"),
        ({"provider": "cuda"}, 0, "wrong"),  # where a batch is expected to win for both
        ({"provider": "cuda", "images": RISING}, 0, "right"),
        ({"noise": 0.6}, 0, "undecided"),
        ({}, 1, "right"),
        ({"images": RISING}, 1, "wrong"),
        ({"noise": 0.6}, 1, "undecided"),
        ({}, 2, "right"),
        ({"sessions": 1.3}, 2, "wrong"),
        ({"sessions": 0.7}, 2, "wrong"),
        ({"noise": 0.6}, 2, "undecided"),
        ({}, 3, "right"),
        ({"factor": 3.0}, 3, "wrong"),
        ({"factor": 1.5}, 3, "undecided"),
        ({"requests": 60}, 3, "undecided"),  # too few for an interval
    ],
)
def test_each_prediction_is_judged(page, options, rank, verdict):
    assert judged(page, **options)[rank] == verdict


@pytest.mark.parametrize(
    ("options", "verdicts"),
    [
        # #16030, #7178, #20173, #3190
        ({}, ["wrong", "wrong", "wrong", "wrong"]),
        ({"images": BENT}, ["right", "wrong", "wrong", "wrong"]),
        ({"images": POOR, "dense": POOR}, ["right", "right", "right", "right"]),
        ({"noise": 2.0}, ["undecided"] * 4),
    ],
)
def test_each_belief_is_judged(page, options, verdicts):
    shown = concluded(page, **options).beliefs.frame
    assert shown["verdict"].tolist() == verdicts
    assert list(shown.index) == ["#16030", "#7178", "#20173", "#3190"]


def test_the_trade_of_a_full_batch_is_told(page):
    *_, trade = concluded(page).claims
    text = str(trade)
    assert text.startswith("At 0.3 of the capacity, p90 is ")
    assert text.endswith(" with what waits")
    data = SimpleNamespace(**planted(page))
    tails = {(name, share): found for name, share, _, found, _ in page["each_tail"](data)}
    one, full = tails["one call", 0.3], tails["full batch", 0.3]
    assert full.low > one.high
    assert full.seconds in text


def test_sessions_have_the_threads_of_their_way(page, monkeypatch):
    made = []

    class Bound:
        def __init__(self, session, feeds):
            self.run = (session, feeds["A0"].shape[0])

    def make(_model, **options):
        made.append((str(options["provider"]), options.get("threads", 1)))
        return len(made)

    monkeypatch.setattr(ortmeter, "make_session", make)
    monkeypatch.setattr(ortmeter, "BoundSession", Bound)
    make_points = page["make_points"]
    monkeypatch.setitem(make_points.__globals__, "provider", Provider("cuda", 1))
    monkeypatch.setitem(make_points.__globals__, "cores", 3)
    points = dict(make_points("convolution", [1, 2, 4]))
    assert made == [("cuda:1", 3), *[("cuda:1", 1)] * 3]
    calls = {(way, batch): point.calls for (_, way, batch), point in points.items()}
    assert calls["one call", 4] == [(1, 4)]
    assert calls["callers", 2] == [(2, 2)] * 3
    assert calls["sessions", 1] == [(2, 1), (3, 1), (4, 1)]
    assert ("sessions", 2) not in calls
    assert {point.batch for (*_, batch), point in points.items() if batch == 4} == {4}
    assert set(page["LEAST_WEIGHTS"]) == set(page["LARGEST_BATCH"]) == {"cpu", "cuda"}


def test_another_machine_gets_the_answer_of_its_own_times(page):
    study = page["study"]
    there = dataclasses.replace(
        study.here,
        data=planted(page, dense=FLAT),
        environment=dataclasses.replace(study.here.environment, cpu="A Planted CPU"),
    )
    text = " ".join(str(replay(study.replay, [there])).split())
    plt.close("all")
    assert text.startswith("A Planted CPU, ")
    assert "Call more when weights exceed the caches" in text
    assert "Measured on A Planted CPU" in text


def test_a_record_recomputes_its_conclusion(page):
    study = page["study"]
    here = dataclasses.replace(study.here, fast=False)
    read = type(here).from_dict(here.to_dict())
    assert str(study.concluded(read)) == str(study.concluded(here))
