"""The conclusions of the page *How many threads, and should they spin?*, from planted samples."""

import dataclasses
import itertools
import re

import msgspec
import numpy as np
import pytest
from matplotlib import pyplot as plt
from page_runner import run_page

from ortmeter.pages import Record, replay
from ortmeter.runtime.providers import Provider
from ortmeter.timing import Measurement

WORDS = ("spin", "stop", "sleep")
PAUSES = (0.0, 0.01, 0.05)
CASES = {"Mul 64": 1e-5, "Mul 256": 1e-4, "MatMul 64": 4e-4, "MatMul 256": 1e-3}


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran."""
    return run_page("plot_threads")


def samples(name, value, rng, rounds=5):
    return Measurement(name, value * np.exp(0.01 * rng.standard_normal((8, rounds))))


def planted(
    *,
    pays=(False, False, True, True),
    gain=1.5,
    near=0.5,
    cpu=1.0,
    paused=2.0,
    shared=True,
    provider="cpu",
):
    """Two threads that win 1.6 times where they pay, threads that spin that win *gain* times.

    Near a neighbour those are *near* times as fast as threads that sleep. They take *cpu* cores
    during a pause, after which a run takes *paused* times longer. Threads that sleep are slower
    beside pauses than alone. A wake takes 50 µs.
    """
    rng = np.random.default_rng(0)
    latency, times = {}, {}
    for (case, work), wins in zip(CASES.items(), pays, strict=True):
        latency[f"{case}, 1 thread"] = {0.0: work}
        for word in WORDS:
            latency[f"{case}, 2 threads, {word}"] = {0.0: work / (1.6 if wins else 0.6)}
    base = {"1 thread": 2e-3, "spin": 1e-3 / gain, "stop": 1e-3, "sleep": 1e-3}
    for word, value in base.items():
        name = word if word == "1 thread" else f"2 threads, {word}"
        spent = 2e-3 if word == "1 thread" else 2.5e-3
        late = 1.3 if word == "sleep" else 1.0
        latency[f"transformer, {name}"] = {p: late * value * (paused if p else 1) for p in PAUSES}
        cores = cpu * (word == "spin")
        times[f"transformer, {name}"] = {p: spent + cores * p for p in PAUSES}
        if word != "1 thread":
            latency[f"alone, {name}"] = {0.0: value}
            for situation in ("after", "beside"):
                latency[f"{situation}, {name}"] = {0.0: 1e-3 / (near if word == "spin" else 1)}
    return {
        "latency": {
            name: {p: samples(name, v, rng) for p, v in row.items()}
            for name, row in latency.items()
        },
        "cpu": {
            name: {p: samples(name, v, rng, 1) for p, v in row.items()}
            for name, row in times.items()
        },
        "wake": samples("wake", 5e-5, rng, 1),
        "shared from": dict.fromkeys(("Mul", "MatMul"), 1 if shared else None),
        "threads": 2,
        "pauses": PAUSES,
        "provider": provider,
        "legend": "planted",
    }


def few(data):
    """The same samples of two processes, too few for an interval."""

    def cut(m):
        return dataclasses.replace(m, seconds=m.seconds[:2])

    cuts = {
        key: {n: {p: cut(m) for p, m in row.items()} for n, row in data[key].items()}
        for key in ("latency", "cpu")
    }
    return {**data, **cuts, "wake": cut(data["wake"])}


def test_the_answer_follows_the_samples(page):
    answer = page["answer"](planted())
    words = str(answer).split()
    assert str(answer).startswith(
        "Spin only on an idle machine, run after run: with 2 threads, the"
    )
    numbers = [float(word) for word in words if re.fullmatch(r"\d+(\.\d+)?", word)]
    # faster, CPU time: 12.5 ms beside 2.5, pause, thresholds in µs
    assert numbers == pytest.approx([2, 1.5, 5, 10, 400, 400], rel=0.02)
    assert str(answer).endswith("µs if it sleeps.")
    assert len(words) <= 60
    assert answer.label == "spin if alone"
    assert [bar.label for bar in answer.bars] == ["sleep", "stop", "spin"]
    assert [bar.value for bar in answer.bars] == pytest.approx([1, 1, 1.5], rel=0.02)


@pytest.mark.parametrize(
    ("planting", "verdict", "lead"),
    [
        ({"cpu": 0.0, "near": 1.0}, "spin", "Let threads spin: "),
        ({"cpu": 0.0, "near": 0.5}, "spin if alone", "Spin only on an idle"),
        ({"gain": 1.0, "near": 1.0}, "sleep", "Let threads sleep: "),
        ({"gain": 0.7, "near": 1.0}, "sleep", "Let threads sleep: "),
        ({"gain": 1.0, "near": 1.0, "cpu": 0.0}, "no difference", "Spinning makes no difference"),
    ],
)
def test_the_advice_weighs_speed_and_cost(page, planting, verdict, lead):
    answer = page["answer"](planted(**planting))
    assert answer.label == verdict
    assert str(answer).startswith(lead)
    assert len(str(answer).split()) <= 60


@pytest.mark.parametrize(
    ("pays", "work"),
    [
        ((False, False, True, True), 400),
        ((True, True, True, True), 10),
        ((True, False, True, True), 400),  # it must pay at every larger size
        ((False, True, True, False), None),
        ((False, False, False, False), None),
    ],
)
def test_the_threshold_is_the_work_from_which_a_second_thread_pays(page, pays, work):
    text = str(page["answer"](planted(pays=pays)))
    if work is None:
        assert text.endswith("A second thread is not shown to pay at the largest sizes.")
    else:
        (value,) = re.search(r"(\d+) µs if it sleeps", text).groups()
        assert float(value) == pytest.approx(work, rel=0.02)


def verdicts(page, data):
    judges = ("judge_wake", "judge_spin", "judge_cpu", "judge_neighbours")
    return [page[name](data).verdict for name in judges]


@pytest.mark.parametrize(
    ("planting", "expected"),
    [
        ({}, ["right", "right", "right", "right"]),
        ({"pays": (True, False, True, True)}, ["wrong", "right", "right", "right"]),
        ({"pays": (False, False, False, True)}, ["wrong", "right", "right", "right"]),
        ({"gain": 0.7}, ["right", "wrong", "right", "right"]),
        ({"gain": 1.0}, ["right", "wrong", "right", "right"]),
        ({"cpu": 0.2}, ["right", "right", "wrong", "right"]),
        ({"near": 2.0}, ["right", "right", "right", "wrong"]),
        ({"shared": False}, ["undecided", "right", "right", "right"]),  # none to judge
    ],
)
def test_each_prediction_can_be_right_or_wrong(page, planting, expected):
    assert verdicts(page, planted(**planting)) == expected


def test_on_cuda_the_threads_of_the_cpu_do_not_matter(page):
    never = (False,) * 4
    quiet = {"gain": 1.0, "near": 1.0, "cpu": 0.0, "provider": "cuda"}
    assert verdicts(page, planted(pays=never, **quiet)) == ["right"] * 4
    text = str(page["judge_wake"](planted(pays=never, shared=False, **quiet)))
    assert text.startswith("Right: not so on CUDA: a second thread that sleeps pays beyond 100 µs")
    busy = {"gain": 1.5, "near": 0.5, "cpu": 1.0, "provider": "cuda"}
    assert verdicts(page, planted(**busy)) == ["wrong"] * 4


def test_too_few_processes_decide_nothing(page):
    data = few(planted())
    assert verdicts(page, data) == ["undecided"] * 4
    assert {claim.verdict for claim in page["judge_beliefs"](data).values()} == {"undecided"}
    answer = page["answer"](data)
    assert answer.label == "undecided"
    assert "transformer is not known to be faster or slower if they spin" in str(answer)


def test_the_beliefs_are_judged_one_by_one(page):
    def judged(**planting):
        found = page["judge_beliefs"](planted(**planting))
        return {name: claim.verdict for name, claim in found.items()}

    #          two threads win 3 times, the neighbour costs, a pause costs
    assert judged() == {
        "#14018": "wrong",
        "#17011": "right",
        "#16135": "right",
        "#23461": "right",
    }
    assert judged(gain=0.4)["#14018"] == "right"  # 1.25 times slower than one thread
    assert judged(near=1.5)["#17011"] == "wrong"  # as fast as alone
    assert judged(paused=1.0)["#16135"] == judged(paused=1.0)["#23461"] == "wrong"


def test_the_tables_and_the_plots_have_the_samples(page):
    data = planted()
    operators = page["list_operators"](data)
    assert operators.shape == (4, 5)
    assert operators["1 thread (µs)"].tolist() == pytest.approx([10, 100, 400, 1000], rel=0.02)
    ratios = [float(text.split(" ")[0]) for text in operators["spin"]]
    assert ratios == pytest.approx([0.6, 0.6, 1.6, 1.6], rel=0.03)
    assert operators["shared"].all()
    thresholds = page["list_thresholds"](data)
    assert thresholds["shared from (elements)"].tolist() == [1, 1]
    assert thresholds["sleep: pays from (µs)"]["MatMul"] == pytest.approx(400, rel=0.02)
    assert thresholds["sleep: pays from (µs)"].isna()["Mul"]
    pauses = page["list_pauses"](data)
    assert len(pauses) == 4 * len(PAUSES)
    spinning = pauses.loc[("2 threads, spin", "10")]
    assert float(spinning["latency (ms)"].split(" ")[0]) == pytest.approx(4 / 3, rel=0.02)
    assert float(spinning["CPU time (ms)"].split(" ")[0]) == pytest.approx(12.5, rel=0.02)
    neighbours = page["list_neighbours"](data)
    assert float(neighbours.loc["2 threads, spin", "after, speedup"][:4]) == pytest.approx(
        1 / 3, rel=0.05
    )
    for draw in ("plot_operators", "plot_pauses"):
        axes = page[draw](data)
        assert axes.get_title(loc="left")
        plt.close(axes.figure)


def test_another_machine_gets_the_answer_of_its_own_samples(page):
    here = page["here"]
    there = dataclasses.replace(
        here,
        data=planted(),
        environment=dataclasses.replace(here.environment, cpu="A Planted CPU"),
    )
    text = " ".join(str(replay(page["report"], [there])).split())
    plt.close("all")
    assert text.startswith("A Planted CPU, ")
    assert "Spin only on an idle machine" in text
    assert "Right: run after run, the transformer is faster" in text
    assert "#17011" in text


def test_a_record_has_what_the_conclusions_need(page):
    there = dataclasses.replace(page["here"], data=planted(), fast=False)
    read = Record.from_dict(msgspec.json.decode(there.to_json()))
    assert str(page["conclusion"](read)) == str(page["conclusion"](there))
    assert page["list_neighbours"](read.data).equals(page["list_neighbours"](there.data))
    assert page["judge_beliefs"](read.data) == page["judge_beliefs"](there.data)


def test_the_settings_are_those_of_the_provider(page, monkeypatch):
    make = page["make_variants"]
    monkeypatch.setitem(make.__globals__, "provider", Provider("cuda", 1))
    made = make(*page["transformer"], [2, 4, 4])
    settings = [
        (v.settings["threads"], v.settings["spinning"], str(v.settings["provider"]))
        for v in made.values()
    ]
    words = itertools.product((2, 4), ("on", "stop", "off"))
    assert settings == [(1, "off", "cuda:1"), *((n, word, "cuda:1") for n, word in words)]
    assert list(made)[-1] == "4 threads, sleep"
    assert set(page["SHARES"]) == set(page["NOT"]) == {"cpu", "cuda"}
