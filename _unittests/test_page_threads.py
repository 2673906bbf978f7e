"""The conclusions of the page *How many threads, and should they spin?*, from planted samples."""

import dataclasses
import itertools
import re
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from matplotlib import pyplot as plt
from page_runner import run_page

from ortmeter.evidence import Prediction
from ortmeter.runtime.providers import Provider
from ortmeter.study.records import Record, replay
from ortmeter.timing import Measurement

WORDS = ("spin", "stop", "sleep")
AROUND = ("alone", "after", "beside")
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


def concluded(page, data):
    """What the page concludes from these samples."""
    study = page["study"]
    return study.concluded(dataclasses.replace(study.here, data=data, fast=False))


def viewed(data):
    """The samples as a view has them."""
    return SimpleNamespace(**{name.replace(" ", "_"): value for name, value in data.items()})


def test_the_answer_follows_the_samples(page):
    answer = concluded(page, planted()).answer
    words = str(answer).split()
    assert str(answer).startswith(
        "Spin only on an idle machine, run after run: the transformer is 1.5"
    )
    numbers = [float(word) for word in words if re.fullmatch(r"\d+(\.\d+)?", word)]
    # faster, CPU time: 12.5 ms beside 2.5, thresholds in µs
    assert numbers == pytest.approx([1.5, 5, 400, 400], rel=0.02)
    assert "Stopping after a run: within 5%. Spinning takes" in str(answer)
    assert str(answer).endswith("µs if it sleeps.")
    assert len(words) <= 60
    assert answer.label == "spin if alone"
    assert [claim.subject for claim in answer.claims] == [
        f"alone, 2 threads, {word}" for word in ("stop", "spin")
    ]
    assert [bar.label for bar in answer.bars] == ["sleep", "stop", "spin"]
    assert [bar.value for bar in answer.bars] == pytest.approx([1, 1, 1.5], rel=0.02)


@pytest.mark.parametrize(
    ("planting", "verdict", "lead"),
    [
        ({"cpu": 0.0, "near": 1.0}, "spin", "Let threads spin, no cost is shown: "),
        ({"cpu": 0.0, "near": 0.5}, "spin if alone", "Spin only on an idle"),
        ({"gain": 1.0, "near": 1.0}, "sleep", "Let threads sleep: "),
        ({"gain": 0.7, "near": 1.0}, "sleep", "Let threads sleep: "),
        ({"gain": 0.7, "near": 1.0, "cpu": 0.0}, "sleep", "Let threads sleep: if they spin, "),
        ({"gain": 1.0, "near": 1.0, "cpu": 0.0}, "no difference", "Spin or sleep, no cost is"),
    ],
)
def test_the_advice_weighs_speed_and_cost(page, planting, verdict, lead):
    answer = concluded(page, planted(**planting)).answer
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
    text = str(concluded(page, planted(pays=pays)).answer)
    if work is None:
        assert text.endswith("A second thread is not shown to pay at large sizes.")
    else:
        (value,) = re.search(r"(\d+) µs if it sleeps", text).groups()
        assert float(value) == pytest.approx(work, rel=0.02)


def verdicts(page, data):
    """Verdicts of the predictions: two wakes, spinning, CPU time, neighbours."""
    claims = concluded(page, data).claims
    return [claim.verdict for claim in claims if isinstance(claim, Prediction)]


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
    data = planted(pays=never, shared=False, **quiet)
    assert verdicts(page, data) == ["right"] * 4
    told = [str(claim) for claim in concluded(page, data).claims[:4]]
    assert all(text.startswith("Right: not so on CUDA: ") for text in told)
    assert told[0].endswith("(3 of 3 operators that are a factor of 2 away from 100 µs agree)")
    busy = {"gain": 1.5, "near": 0.5, "cpu": 1.0, "provider": "cuda"}
    assert verdicts(page, planted(**busy)) == ["wrong"] * 4


def beliefs(page, data):
    """Verdicts on what the discussions believed."""
    return concluded(page, data).beliefs.frame["verdict"].to_dict()


def test_too_few_processes_decide_nothing(page):
    data = few(planted())
    assert verdicts(page, data) == ["undecided"] * 4
    assert set(beliefs(page, data).values()) == {"undecided"}
    answer = concluded(page, data).answer
    assert answer.label == "undecided"
    assert str(answer).startswith(
        "Measure your model: whether threads that spin are faster is undecided."
    )


def test_costs_are_told_when_a_gain_is_not_known(page):
    data = planted()
    unknown = {n: one for n, one in few(data)["latency"].items() if n.startswith(AROUND)}
    latency = data["latency"] | unknown
    answer = concluded(page, {**data, "latency": latency}).answer
    assert answer.label == "sleep"
    assert "spinning costs, and whether it is faster is undecided." in str(answer)


def test_the_beliefs_are_judged_one_by_one(page):
    def judged(**planting):
        return beliefs(page, planted(**planting))

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
    data = viewed(planted())
    operators = page["two_threads"](data)
    assert operators.shape == (4, 5)
    assert operators["1 thread (µs)"].tolist() == pytest.approx([10, 100, 400, 1000], rel=0.02)
    ratios = [float(text.split(" ")[0]) for text in operators["spin"]]
    assert ratios == pytest.approx([0.6, 0.6, 1.6, 1.6], rel=0.03)
    assert operators["shared"].all()
    thresholds = page["thresholds"](data)
    assert thresholds["shared from (elements)"].tolist() == [1, 1]
    assert thresholds["sleep: pays from (µs)"]["MatMul"] == pytest.approx(400, rel=0.02)
    assert thresholds["sleep: pays from (µs)"].isna()["Mul"]
    pauses = page["after_pauses"](data)
    assert len(pauses) == 4 * len(PAUSES)
    spinning = pauses.loc[("2 threads, spin", "10")]
    assert float(spinning["latency (ms)"].split(" ")[0]) == pytest.approx(4 / 3, rel=0.02)
    assert float(spinning["CPU time (ms)"].split(" ")[0]) == pytest.approx(12.5, rel=0.02)
    neighbours = page["neighbours"](data)
    assert float(neighbours.loc["2 threads, spin", "after, speedup"][:4]) == pytest.approx(
        1 / 3, rel=0.05
    )
    for draw in ("operators_plot", "pauses_plot"):
        axes = page[draw](data)
        assert axes.get_title(loc="left")
        plt.close(axes.figure)


def test_another_machine_gets_the_answer_of_its_own_samples(page):
    here = page["study"].here
    there = dataclasses.replace(
        here,
        data=planted(),
        environment=dataclasses.replace(here.environment, cpu="A Planted CPU"),
    )
    text = " ".join(str(replay(page["study"].replay, [there])).split())
    plt.close("all")
    assert text.startswith("A Planted CPU, ")
    assert "Spin only on an idle machine" in text
    assert "Right: run after run, threads that spin are faster" in text
    assert "#17011" in text


def test_a_record_has_what_the_conclusions_need(page):
    study = page["study"]
    there = dataclasses.replace(study.here, data=planted(), fast=False)
    read = Record.from_dict(msgspec.json.decode(there.to_json()))
    assert str(study.concluded(read)) == str(study.concluded(there))
    tables = (page["neighbours"](viewed(one.data)) for one in (read, there))
    assert next(tables).equals(next(tables))


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
