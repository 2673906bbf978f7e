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
USUAL |= {"noise": 0.01, "shared": 1, "provider": "cpu", "stop": 1.0, "stop_cpu": 0.0}


def planted(**changed):
    """Two threads that win 1.6 times where they pay, threads that spin that win *gain* times.

    Near a neighbour those are *near* times as fast as threads that sleep. They take *cpu* cores
    during a pause, after which a run takes *paused* times longer. A wake takes 50 µs. Threads that
    stop win *stop* times run after run, and take *stop_cpu* cores during a pause.
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
        spins, stops = word.endswith("spin"), word.endswith("stop")
        wins = has.gain if spins else has.stop if stops else 1.0
        run = 2 * ALONE if word == "1 thread" else ALONE / wins
        latency[f"transformer, {word}"] = {p: run * (has.paused if p else 1) for p in PAUSES}
        least = SLEEP if word != "1 thread" else 0.8 * SLEEP
        cores = has.cpu * spins + has.stop_cpu * stops
        used[f"transformer, {word}"] = {p: least + cores * p for p in PAUSES}
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


BOTH = "Cores shared or pauses? Let threads sleep. Otherwise "
STOP = "Cores shared or pauses? Stop spinning after runs. Otherwise "
KEEP, EITHER = "keep the default: 1.", "take either: as fast within 5%."
YOURS = "measure yours with the command below: here, undecided."
FREE = {"cpu": 0.0, "near": 1.0}
ALONE_AND_FREE = "Alone, run after run, "
#: Entries of the setting of each way to wait, as the documentation of ONNX Runtime has them.
ENTRIES = {
    "sleep": ("session.intra_op.allow_spinning", "0"),
    "stop": ("session.force_spinning_stop", "1"),
}


@pytest.mark.parametrize(
    ("planting", "verdict", "told", "calm"),
    [
        ({}, "spin if alone", BOTH + KEEP, "sleep"),
        ({"cpu": 0.0}, "spin if alone", "Cores shared? Let threads sleep. Otherwise keep", "sleep"),
        ({"near": 1.0}, "spin if alone", "Pauses? Let threads sleep. Otherwise keep the", "sleep"),
        (FREE, "spin", ALONE_AND_FREE + KEEP, None),
        ({"gain": 1.0}, "sleep", BOTH + EITHER, "sleep"),
        ({"gain": 1.0} | FREE, "no difference", ALONE_AND_FREE + EITHER, None),
        ({"gain": 0.7}, "sleep", BOTH + "too: if they spin, a run is 1.4", "sleep"),
        ({"gain": 0.7} | FREE, "sleep", "Let threads sleep: if they spin, a run is 1.4", "sleep"),
        ({"noise": 2.0}, "undecided", f"Pauses? Let threads sleep. Otherwise {YOURS}", "sleep"),
        ({"noise": 2.0} | FREE, "undecided", ALONE_AND_FREE + YOURS, None),
        # Stopping after a run is advised where it is faster than sleeping, unless it costs too.
        ({"stop": 1.2}, "spin if alone", STOP + KEEP, "stop"),
        ({"stop": 1.5}, "stop", STOP + EITHER, "stop"),
        ({"stop": 1.5, "stop_cpu": 1.0}, "spin if alone", BOTH + KEEP, "sleep"),
    ],
)
def test_the_advice_weighs_speed_and_cost(page, planting, verdict, told, calm):
    answer = concluded(page, **planting).answer
    assert answer.label == verdict
    assert str(answer).startswith(told)
    assert len(str(answer).split()) <= 35
    copied = {}
    exec(answer.setting.partition("session = ")[0], copied)  # noqa: S102 - what a reader copies
    assert ("options" in copied) == (calm is not None)
    for way, (key, value) in ENTRIES.items():
        assert (f'("{key}", "{value}")' in answer.setting) == (way == calm)
    if "noise" not in planting:
        bars = {bar.label: bar.value for bar in answer.bars}
        expected = {"sleep": 1, "stop": planting.get("stop", 1), "spin": planting.get("gain", 1.5)}
        assert bars == pytest.approx(expected, rel=0.02)


def test_what_spinning_costs_is_a_warning(page):
    near, cpu = "near a neighbour, a run takes ", "a pause of 10 ms and a run take "
    for planting, told in (({}, (near, cpu)), ({"near": 1.0}, (cpu,)), ({"cpu": 0.0}, (near,))):
        warning = concluded(page, **planting).answer.warning
        assert warning.startswith("Spinning, the default, costs: ")
        assert [text in warning for text in (near, cpu)] == [text in told for text in (near, cpu)]
    assert concluded(page, **FREE).answer.warning == ""


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
        (
            {},
            "not below 100 and not shown",
            "between 0 and 400",
            "Two threads pay for operators of 400 µs or more (1 of 2).",
        ),
        (
            {"pays": (0, 1, 0, 1)},
            "between 10 and 100",
            "between 400 and 1000",
            "Two threads pay for operators of 1,000 µs or more (2 of 2).",
        ),
        # The smallest size of each one is not shared.
        (
            {"shared": 256},
            "not below 100 and not shown",
            "between 400 and 1000",
            "Two threads pay for operators of 1,000 µs or more (1 of 2).",
        ),
        (
            {"pays": (0, 1, 1, 0)},
            "between 10 and 100",
            "not below 1000 and not shown",
            "Two threads pay for operators of 100 µs or more (1 of 2).",
        ),
        (
            {"pays": (0,) * 4},
            "not below 100 and not shown",
            "not below 1000 and not shown",
            "Two threads are not shown to pay.",
        ),
        (
            {"shared": None},
            "not below 100 and not shown",
            "not below 1000 and not shown",
            "Two threads are not shown to pay.",
        ),
    ],
)
def test_the_work_that_pays_is_told_by_operator(page, planting, mul, matmul, answer):
    names = {name.replace(" ", "_"): kept for name, kept in planted(**planting).items()}
    data = SimpleNamespace(**names)
    for word in ("spin", "sleep"):
        works = {name: str(work) for name, work in page["find_works"](data, word)}
        assert works == {"Mul": mul, "MatMul": matmul}
    rows = [(name, word) for word in ("spin", "sleep") for name in ("Mul", "MatMul")]
    assert page["thresholds"](data).index.tolist() == rows
    assert str(concluded(page, **planting).answer).endswith(answer)


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
