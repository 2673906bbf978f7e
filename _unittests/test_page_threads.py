"""The conclusions of the page *How many threads, and should they spin?*, from planted samples."""

import dataclasses
from types import SimpleNamespace

import golden
import numpy as np
import pytest
from page_runner import define_page

from ortmeter.evidence import Prediction
from ortmeter.timing import Measurement

PAGE, WORDS, PAUSES = "plot_threads", ("spin", "stop", "sleep"), (0.0, 0.01, 0.05)
CASES = {"Mul 64": 1e-5, "Mul 256": 1e-4, "MatMul 64": 4e-4, "MatMul 256": 1e-3}
ALONE, SLEEP = 1e-3, 2.5e-3  # seconds of a run, CPU seconds of a run and of a pause without work


@pytest.fixture(scope="module")
def page():
    """What the page defines, without running it."""
    return define_page(PAGE)


USUAL = {"pays": (0, 0, 1, 1), "gain": 1.5, "near": 0.5, "cpu": 1.0, "paused": 2.0}
USUAL |= {"noise": 0.01, "shared": 1, "provider": "cpu"}


def planted(**changed):
    """Two threads that win 1.6 times where they pay, threads that spin that win *gain* times.

    Near a neighbour those are *near* times as fast as threads that sleep. They take *cpu* cores
    during a pause, after which a run takes *paused* times longer. A wake takes 50 µs.
    """
    has = SimpleNamespace(**(USUAL | changed))
    rng = np.random.default_rng(0)

    def samples(name, times, noise=0.01):
        noises = {pause: np.exp(noise * rng.standard_normal((8, 5))) for pause in times}
        return {p: Measurement(name, value * noises[p]) for p, value in times.items()}

    latency, used = {}, {}
    for (case, work), wins in zip(CASES.items(), has.pays, strict=True):
        latency[f"{case}, 1 thread"] = {0.0: work}
        for word in WORDS:
            latency[f"{case}, 2 threads, {word}"] = {0.0: work / (1.6 if wins else 0.6)}
    for word in ("1 thread", *(f"2 threads, {word}" for word in WORDS)):
        spins = word.endswith("spin")
        run = 2 * ALONE if word == "1 thread" else ALONE / (has.gain if spins else 1.0)
        latency[f"transformer, {word}"] = {p: run * (has.paused if p else 1) for p in PAUSES}
        least = SLEEP if word != "1 thread" else 0.8 * SLEEP
        used[f"transformer, {word}"] = {p: least + has.cpu * spins * p for p in PAUSES}
        latency[f"alone, {word}"] = {0.0: run}
        for one in ("after", "beside"):
            latency[f"{one}, {word}"] = {0.0: ALONE / (has.near if spins else 1.0)}
    moved = {n: has.noise if n.startswith(("alone", "after", "beside")) else 0.01 for n in latency}
    return {
        "latency": {name: samples(name, times, moved[name]) for name, times in latency.items()},
        "cpu": {name: samples(name, times) for name, times in used.items()},
        "wake": samples("wake", {0.0: 5e-5})[0.0],
        "shared from": dict.fromkeys(("Mul", "MatMul"), has.shared),
        "threads": 2,
        "pauses": PAUSES,
        "provider": has.provider,
        "legend": "planted",
    }


def concluded(page, **planting):
    record = dataclasses.replace(golden.recorded(PAGE), data=planted(**planting))
    return page["study"].concluded(record)


@pytest.mark.parametrize(
    ("planting", "verdict", "lead"),
    [
        ({}, "spin if alone", "Spin only on an idle machine, run after run: the t"),
        ({"cpu": 0.0, "near": 1.0}, "spin", "Let threads spin, no cost is shown: "),
        ({"cpu": 0.0, "near": 0.5}, "spin if alone", "Spin only on an idle"),
        ({"gain": 1.0, "near": 1.0}, "sleep", "Let threads sleep: "),
        ({"gain": 0.7, "near": 1.0, "cpu": 0.0}, "sleep", "Let threads sleep: if they spin, "),
        ({"gain": 1.0, "near": 1.0, "cpu": 0.0}, "no difference", "Spin or sleep, no cost is"),
        (
            {"noise": 2.0},
            "sleep",
            "Let threads sleep: spinning costs, and whether it is faster is u",
        ),
        ({"noise": 2.0, "cpu": 0.0}, "undecided", "Measure your model: whether threads that"),
    ],
)
def test_the_advice_weighs_speed_and_cost(page, planting, verdict, lead):
    answer = concluded(page, **planting).answer
    assert answer.label == verdict
    assert str(answer).startswith(lead)
    assert len(str(answer).split()) <= 60
    if "noise" not in planting:
        bars = {bar.label: bar.value for bar in answer.bars}
        gain = planting.get("gain", 1.5)
        assert bars == pytest.approx({"sleep": 1, "stop": 1, "spin": gain}, rel=0.02)


def verdicts(page, **planting):
    """Verdicts of the predictions: two wakes, spinning, CPU time, neighbours."""
    claims = concluded(page, **planting).claims
    return [claim.verdict for claim in claims if isinstance(claim, Prediction)]


@pytest.mark.parametrize(
    ("planting", "expected"),
    [
        ({}, ["right", "right", "right", "right"]),
        ({"pays": (1, 0, 1, 1)}, ["wrong", "right", "right", "right"]),
        ({"pays": (0, 0, 0, 1)}, ["wrong", "right", "right", "right"]),
        ({"gain": 1.0}, ["right", "wrong", "right", "right"]),
        ({"cpu": 0.2}, ["right", "right", "wrong", "right"]),
        ({"cpu": 1.2}, ["right", "right", "wrong", "right"]),  # more than 10% beyond
        ({"near": 2.0}, ["right", "right", "right", "wrong"]),
        ({"shared": None}, ["undecided", "right", "right", "right"]),  # none to judge
    ],
)
def test_each_prediction_can_be_right_or_wrong(page, planting, expected):
    assert verdicts(page, **planting) == expected


@pytest.mark.parametrize(
    ("planting", "mul", "matmul", "answer"),
    [
        ({}, "not below 100 and not shown", "between 0 and 400", " from 400 µs for 1"),
        (
            {"pays": (0, 1, 0, 1)},
            "between 10 and 100",
            "between 400 and 1000",
            " from 1,000 µs for 2",
        ),
        # The smallest size of each one is not shared.
        (
            {"shared": 256},
            "not below 100 and not shown",
            "between 400 and 1000",
            " from 1,000 µs for 1",
        ),
        (
            {"pays": (0, 1, 1, 0)},
            "between 10 and 100",
            "not below 1000 and not shown",
            " from 100 µs for 1",
        ),
        (
            {"pays": (0,) * 4},
            "not below 100 and not shown",
            "not below 1000 and not shown",
            " for 0",
        ),
        ({"shared": None}, "not below 100 and not shown", "not below 1000 and not shown", " for 0"),
    ],
)
def test_the_work_that_pays_is_told_by_operator(page, planting, mul, matmul, answer):
    found = concluded(page, **planting)
    for word in ("spin", "sleep"):
        told = (
            f"Work from which two threads that {word} are faster, in µs: Mul {mul}; MatMul {matmul}"
        )
        assert told in map(str, found.claims)
        assert f"Two threads that {word} are faster{answer} of 2 operators." in str(found.answer)


def test_halves_of_the_processes_do_not_contradict_each_other(page):
    """As the second thread is measured in twenty processes, ten of them are another measurement."""
    rng, record = np.random.default_rng(0), golden.recorded(PAGE)
    names = [name for name in record.data["latency"] if name.split()[0] in page["OPERATORS"]]
    counts = set()
    for _ in range(30):
        halves = []
        for picked in np.split(rng.permutation(20), 2):
            latency = {
                n: {0.0: Measurement(n, record.data["latency"][n][0.0].seconds[picked])}
                for n in names
            }
            data = SimpleNamespace(latency=latency, shared_from=record.data["shared from"])
            halves.append([found for w in WORDS for _, found in page["find_works"](data, w)])
        for one, other in zip(*halves, strict=True):
            assert one.low < (other.high or np.inf)
            assert other.low < (one.high or np.inf)
        counts |= {sum(found.high is not None for found in half) for half in halves}
    assert min(counts) >= 5  # of nine


def test_on_cuda_the_threads_of_the_cpu_do_not_matter(page):
    quiet = {"pays": (0,) * 4, "shared": None, "gain": 1.0, "near": 1.0, "cpu": 0.0}
    assert verdicts(page, provider="cuda", **quiet) == ["right"] * 4
    assert verdicts(page, provider="cuda") == ["wrong"] * 4


@pytest.mark.parametrize(
    ("planting", "changed"),
    [
        ({}, {}),  # two threads win 3 times, a neighbour costs, a pause costs
        # 1.25 times slower than one thread, and than near a neighbour.
        ({"gain": 0.4}, {"#14018": "right", "#17011": "wrong"}),
        ({"near": 1.5}, {"#17011": "wrong"}),  # as fast as alone
        ({"paused": 1.0}, {"#16135": "wrong", "#23461": "wrong"}),
    ],
)
def test_the_beliefs_are_judged_one_by_one(page, planting, changed):
    usual = {"#14018": "wrong", "#17011": "right", "#16135": "right", "#23461": "right"}
    found = concluded(page, **planting).beliefs.frame["verdict"].to_dict()
    assert found == usual | changed


def test_a_session_is_made_for_each_number_of_threads_and_each_way_to_wait(page):
    made = page["make_variants"]("model", {}, [2, 4, 4])
    settings = {n: (v.settings["threads"], v.settings["spinning"]) for n, v in made.items()}
    assert settings["1 thread"] == (1, "off")
    for n in (2, 4):
        ways = [settings[f"{n} threads, {word}"] for word in WORDS]
        assert ways == [(n, "on"), (n, "during-run"), (n, "off")]
    assert len(settings) == 7
