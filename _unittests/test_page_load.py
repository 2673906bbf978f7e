"""The conclusions of the page *Batch more, or call more?*, from planted loads."""

import dataclasses
import re
from types import SimpleNamespace

import golden
import numpy as np
import pytest
from page_runner import define_page

import ortmeter
from ortmeter.workloads.load import Turn
from ortmeter.workloads.serving import find_knee

PAGE = "plot_load"
RISING = {1: 500, 2: 1000, 4: 2000}  # requests per second of one call, the last ones for the rest
FLAT = {1: 500}
BENT = {1: 500, 2: 800, 4: 800, 8: 600, 16: 400}
POOR = {1: 500, 2: 200}


@pytest.fixture(scope="module")
def page():
    """What the page defines, without running it."""
    return define_page(PAGE)


def planted(dense=RISING, images=FLAT, *, callers=900, sessions=900, noise=0.004):
    """The recorded loads, that serve so many requests per second."""
    rng, data = np.random.default_rng(0), golden.recorded(PAGE).data

    def serve(load, speed):
        speeds = speed * np.exp(noise * rng.standard_normal(len(load.turns)))
        turns = zip(load.turns, speeds, strict=True)
        served = tuple(dataclasses.replace(t, requests_per_s=float(s)) for t, s in turns)
        return dataclasses.replace(load, turns=served)

    closed = {}
    for name, one_call in (("dense", dense), ("convolution", images)):
        speeds = {"one call": one_call, "callers": {1: callers}, "sessions": {1: sessions}}
        closed[name] = {
            way: {
                b: serve(load, speeds[way][max(n for n in speeds[way] if n <= b)])
                for b, load in loads.items()
            }
            for way, loads in data["closed"][name].items()
        }
    work = {"flop": {"dense": 2e6, "convolution": 1e9}}
    work["weights"] = {"dense": 4e6, "convolution": 1e5}
    work["peaks"] = {"gflop_per_s": 40.0, "gb_per_s": 20.0}  # knees from 4 to 32, and at 1
    return data | work | {"closed": closed}


def concluded(page, provider="cpu", opened=None, **options):
    data = planted(**options) | {"provider": provider}
    data["opened"] = data["opened"] | (opened or {})
    return page["study"].concluded(dataclasses.replace(golden.recorded(PAGE), data=data))


DENSE, IMAGES = "Weights exceed the caches?", "Convolutions?"
YOURS = "Not shown here: measure yours with the command below."
EITHER = "Batch or call: within 5%."
NUMBER = r"([\d.]+) \[\S+ \S+\] \(99\.88?% CI\) times the requests/s of"
BATCH, CALL = (
    rf"Use batches of \d+: {NUMBER} 2 callers\.",
    rf"Use 2 callers: {NUMBER} batches of \d+\.",
)


@pytest.mark.parametrize(
    ("options", "told", "ratios", "verdict"),
    [
        ({}, (BATCH, CALL), (2000 / 900, 900 / 500), "by network"),
        ({"images": RISING}, (BATCH, BATCH), (2000 / 900, 2000 / 900), "batch more"),
        ({"dense": FLAT}, (CALL, CALL), (900 / 500, 900 / 500), "call more"),
        ({"dense": FLAT, "callers": 500}, (EITHER, EITHER), (), "either"),
        ({"noise": 2.0}, (YOURS, YOURS), (), "undecided"),
    ],
)
def test_the_answer_says_what_to_do(page, options, told, ratios, verdict):
    found = concluded(page, **options)
    text = str(found.answer)
    asked = [f"{re.escape(place)} {one}" for place, one in zip((DENSE, IMAGES), told, strict=True)]
    matched = re.fullmatch(" ".join(asked), text)
    assert matched, text
    assert [float(x) for x in matched.groups()] == pytest.approx(ratios, rel=0.01)
    assert found.answer.label == verdict
    assert len(text.split()) <= 35
    assert len(found.claims) <= 5


def test_a_full_batch_that_waits_is_a_warning_if_it_is_shown(page):
    waits = r"Filling a batch delays requests: at a load of 30%, 5% of requests take over 46\.5 \["
    assert re.match(waits, concluded(page).answer.warning)
    assert " ms, 9.53 [5.84, " in concluded(page).answer.warning
    alike = {"full batch": golden.recorded(PAGE).data["opened"]["one call"]}
    assert concluded(page, opened=alike).answer.warning == ""


def test_the_bars_are_over_one_call_of_one_request(page):
    bars = {bar.label: bar.value for bar in concluded(page).answer.bars}
    expected = {"one at a time": 1, "dense, batch": 4, "dense, callers": 1.8}
    expected |= {"convolution, batch": 1, "convolution, callers": 1.8}
    assert bars == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # The best way, the knees, one session or several. The golden file has the queue.
        ({}, ["right", "right", "right"]),
        ({"dense": FLAT}, ["wrong", "wrong", "right"]),
        ({"images": RISING}, ["wrong", "wrong", "right"]),
        ({"provider": "cuda"}, ["wrong", "right", "right"]),  # a batch wins for both
        ({"provider": "cuda", "images": RISING}, ["right", "wrong", "right"]),
        ({"sessions": 1200}, ["right", "right", "wrong"]),
        ({"sessions": 600}, ["right", "right", "wrong"]),
    ],
)
def test_each_prediction_is_judged(page, options, expected):
    assert [claim.verdict for claim in concluded(page, **options).claims[:3]] == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["wrong", "wrong", "wrong", "wrong"]),
        ({"images": BENT}, ["right", "wrong", "wrong", "wrong"]),
        ({"images": POOR, "dense": POOR}, ["right", "right", "right", "right"]),
    ],
)
def test_each_belief_is_judged(page, options, expected):
    found = concluded(page, **options).beliefs.frame["verdict"].to_dict()
    assert found == dict(zip(("#16030", "#7178", "#20173", "#3190"), expected, strict=True))


def test_a_quantity_has_one_interval(page):
    """Two beliefs tell how convolutions fare in batches of 2."""
    found = page["study"].concluded(golden.recorded(PAGE)).beliefs.frame["belief"]
    told = [
        re.search(r"convolution, batch 2: [^;)]+", found[name])[0] for name in ("#7178", "#20173")
    ]
    assert told[0] == told[1]


def test_halves_of_the_turns_agree_on_the_knees(page):
    """As a point is measured in ten turns, five of them are another measurement."""
    rng, data = np.random.default_rng(0), golden.recorded(PAGE).data
    for ways in data["closed"].values():
        for loads in (ways["one call"], ways["callers"]):
            for _ in range(10):
                one, other = (
                    find_knee(
                        {
                            b: dataclasses.replace(load, turns=tuple(load.turns[i] for i in picked))
                            for b, load in loads.items()
                        }
                    )
                    for picked in np.split(rng.permutation(10), 2)
                )
                assert one.low <= (other.high or np.inf)
                assert other.low <= (one.high or np.inf)
                assert one.low > 1 or one.high is not None or other.high is not None  # it says some


def test_callers_share_a_session_and_sessions_do_not(page, monkeypatch):
    names = {"models": {"x": ""}, "items": {"x": (2,)}, "rng": np.random.default_rng(0), "cores": 3}
    for name, value in names.items():
        monkeypatch.setitem(page, name, value)
    monkeypatch.setattr(ortmeter, "make_session", lambda _, **options: [options.get("threads", 1)])
    monkeypatch.setattr(ortmeter, "BoundSession", lambda session, _: SimpleNamespace(run=session))
    calls = {way: point.calls for (_, way, _), point in page["make_points"]("x", [4])}
    assert calls == {"one call": [[3]], "callers": [[1]] * 3, "sessions": [[1]] * 3}
    assert [len({*map(id, calls[way])}) for way in ("callers", "sessions")] == [1, 3]


def test_a_rate_without_requests_is_told(page):
    """A machine that is busy: the time is spent before a request arrives."""
    none = np.zeros(0)
    data = golden.recorded(PAGE).data
    opened = {
        name: {
            share: dataclasses.replace(load, turns=(Turn(none, none, none, 0.0),))
            for share, load in several.items()
        }
        for name, several in data["opened"].items()
    }
    table = page["tails"](SimpleNamespace(**{"tail": 95.0} | data | {"opened": opened}))
    loads = [load for several in opened.values() for load in several.values()]
    assert set(table.to_numpy().ravel()) == {load.state() for load in loads}
    concluded(page, opened=opened)
