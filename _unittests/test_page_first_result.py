"""The conclusions of the page *Where does the time go before the first result?*, planted starts."""

import dataclasses

import numpy as np
import pytest
from matplotlib import pyplot as plt
from page_runner import define_page

from ortmeter.pages import replay
from ortmeter.runtime.providers import Provider
from ortmeter.timing import Comparison, Comparisons, Measurement
from ortmeter.timing.candidates import Variant
from ortmeter.timing.cold import PHASES, ColdStart

SMALL, LARGE, MANY, CNN = "1 MiB", "100 MiB", "transformer", "CNN"
# Milliseconds: import, session, first run, steady run.
USUAL = {
    f"{SMALL}: plain": (20, 5, 0.5, 0.05),
    f"{LARGE}: plain": (20, 150, 6, 5),
    f"{LARGE}: external": (20, 60, 6, 5),
    f"{LARGE}: external unpacked": (20, 5, 15, 10),
    f"{MANY}: plain": (20, 80, 4, 2),
    f"{MANY}: no optimization": (20, 50, 4, 2),
    f"{MANY}: saved optimized": (20, 30, 4, 2),
    f"{CNN}: plain": (20, 6, 8, 5),
    f"{CNN}: all threads": (20, 6.1, 8, 5),
}
OPPOSITE = {  # of every prediction and belief, on a GPU
    f"{SMALL}: plain": (20, 90, 5, 0.05),
    f"{LARGE}: plain": (100, 15, 30, 5),
    f"{LARGE}: external": (100, 30, 30, 5),
    f"{LARGE}: external unpacked": (100, 60, 60, 5),
    f"{MANY}: plain": (20, 40, 4, 2),
    f"{MANY}: no optimization": (20, 60, 4, 2),
    f"{MANY}: saved optimized": (20, 40, 4, 2),
    f"{CNN}: plain": (20, 6, 800, 5),
    f"{CNN}: all threads": (20, 60, 800, 5),
    f"{CNN}: cuDNN HEURISTIC": (20, 6, 80, 5),
}
MEMORY = {f"{SMALL}: plain": (8, 1), f"{LARGE}: external unpacked": (9, 100)}


@pytest.fixture(scope="module")
def page():
    return define_page("plot_first_result")


def started(seconds, *, processes=10, noise=0.02, memory=MEMORY):
    rng = np.random.default_rng(0)
    rows = {
        name: dict(zip(("import", "session", "first run", "steady run"), values, strict=True))
        for name, values in seconds.items()
    }
    samples = {
        name: {
            phase: 1e-3
            * values.get(phase, values["steady run"])
            * np.exp(noise * rng.standard_normal((processes, 1)))
            for phase in PHASES
        }
        for name, values in rows.items()
    }
    for found in samples.values():
        found["first result"] = found["import"] + found["session"] + found["first run"]
    times = {
        phase: Comparison(Measurement(name, found[phase]) for name, found in samples.items())
        for phase in PHASES
    }
    grown = {
        name: dict(zip(("session", "first run"), memory.get(name, (None, None)), strict=True))
        for name in seconds
    }
    sizes = {name: {p: (grown[name].get(p), None) for p in PHASES} for name in seconds}
    return ColdStart(Comparisons(times, "phase"), sizes)


def planted(seconds, *, read=0.05, **options):
    return {
        "legend": "planted",
        "start": started(seconds, **options),
        "smallest": SMALL,
        "largest": LARGE,
        "nodes": 1248,
        "read (s)": read,
    }


def verdicts(page, data):
    """Verdicts of the predictions: steps, moves, unpacked, mapped."""
    _, claims = page["conclude"](data)
    return [claim.verdict for claim in claims if claim.verdict != "fact"]


def believed(page, data):
    return {name: claim.verdict for name, claim in page["judge_beliefs"](data).items()}


def test_the_answer_names_the_steps_and_what_shortens_them(page):
    answer, _ = page["conclude"](planted(USUAL, noise=1e-3))
    text = str(answer)
    steps = (
        "With 1 MiB of weights, the import takes 78% of the time; with 100 MiB, the session takes "
    )
    assert text.startswith(f"{steps}85%; with 1248 nodes, the session takes 77%. With 100 MiB, ")
    # 176 ms against 40 ms; a run takes 10 ms instead of 5.
    assert "weights in their own file, not packed, start 4.4" in text
    assert "; then each run is 2.0" in text
    assert len(text.split()) <= 60
    assert answer.label == "session"
    bars = {bar.label: bar.value for bar in answer.bars}
    assert list(bars) == ["plain", "external unpacked", "external"]
    assert list(bars.values()) == pytest.approx([1, 176 / 40, 176 / 86], rel=0.03)


def test_no_step_and_no_way_is_an_answer_too(page):
    even = dict.fromkeys(USUAL, (30, 30, 30, 5))
    answer, _ = page["conclude"](planted(even))
    assert str(answer).count("no step takes half") == 3
    assert str(answer).endswith("No way shortens it.")
    assert answer.label == "no step"
    few, _ = page["conclude"](planted(USUAL, processes=1))
    assert str(few).startswith("With 1 MiB of weights, unknown; with 100 MiB, unknown; with")
    assert str(few).endswith("Undecided whether a way shortens it.")
    assert few.label == "undecided"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (planted(USUAL), ["right", "right", "right", "right"]),
        # Three moves of 50 ms are far from 15 ms, the weights are in memory before the first run.
        (
            planted(OPPOSITE, memory={**MEMORY, f"{LARGE}: external unpacked": (109, 1)}),
            ["wrong", "wrong", "wrong", "wrong"],
        ),
        (planted(USUAL, processes=1, memory={}), ["undecided"] * 4),
        (planted(USUAL, read=0.001), ["right", "wrong", "right", "right"]),
        # The moves of one way are enough to be wrong: 150 ms where 55 are predicted.
        (
            planted({**USUAL, f"{LARGE}: external": (20, 150, 6, 5)}),
            ["right", "wrong", "right", "right"],
        ),
    ],
)
def test_the_predictions_are_judged(page, data, expected):
    assert verdicts(page, data) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (planted(USUAL), ["wrong", "undecided", "wrong", "right", "wrong", "right"]),
        (planted(OPPOSITE), ["right", "right", "right", "wrong", "right", "wrong"]),
        (planted(USUAL, processes=1), ["undecided"] * 6),
    ],
)
def test_the_beliefs_are_judged(page, data, expected):
    numbers = ["#10746", "#19838", "#21541", "#19022", "#10131", "#15165"]
    assert believed(page, data) == dict(zip(numbers, expected, strict=True))
    assert len(page["show_beliefs"](data).frame) == 6


def test_unpacked_weights_pay_until_the_runs_have_lost_what_the_start_won(page):
    # 176 - 40 ms won by the start, 5 ms lost by each run.
    claim = page["break_even"](planted(USUAL, noise=1e-6))
    assert float(claim.values["n"].split()[0]) == pytest.approx(136 / 5, rel=0.01)
    for data in (planted(OPPOSITE), planted(USUAL, processes=1)):
        assert str(page["break_even"](data)).endswith("is undecided")


def test_the_session_is_predicted_from_the_moves_of_the_weights(page):
    frame = page["tabulate_moves"](planted(USUAL, noise=1e-6))
    assert frame["predicted (ms)"].tolist() == pytest.approx([155, 55, 5], rel=0.01)


def test_the_tables_and_the_plot_show_the_samples(page):
    start = started(USUAL, noise=1e-6)
    steps = page["tabulate_steps"](start)
    assert list(steps.index) == [SMALL, LARGE, MANY, CNN]
    assert steps.loc[LARGE].tolist() == pytest.approx([20, 150, 6, 5000, 5000], rel=0.01)
    ways = page["tabulate_ways"](start)
    assert list(ways.columns) == ["first result", "session", "steady run"]
    assert ways.loc[(LARGE, "external"), "first result"].startswith("2.05 [")
    assert page["tabulate_memory"](start).loc[(LARGE, "external unpacked"), "run"] == 100
    axes = page["cold_plot"](page["plain_of"](start), title="planted")
    assert [label.get_text() for label in axes.get_yticklabels()] == [SMALL, LARGE, MANY, CNN]
    plt.close(axes.figure)


def test_a_record_of_another_machine_gets_its_own_answer(page):
    data = planted(USUAL)
    start = data.pop("start")
    measured = {**data, "times": start.times, "memory": start.memory}
    here = page["record"]("plot_first_result", page["args"], page["provider"], measured)
    again = type(here).from_dict(here.to_dict())
    there = dataclasses.replace(
        again, environment=dataclasses.replace(here.environment, cpu="A Planted CPU")
    )
    text = " ".join(str(replay(page["report"], [there])).split())
    assert text.startswith("A Planted CPU, ")
    assert "not packed, start 4.4" in text
    assert "#21541 wrong" in text
    plt.close("all")


@pytest.mark.parametrize("provider", ["cpu", "cuda"])
def test_each_provider_has_its_ways_and_their_environments(page, provider, tmp_path, monkeypatch):
    """What a GPU adds, without one: the arguments of its sessions and of its processes."""
    names = page["make_candidates"].__globals__
    monkeypatch.setitem(names, "provider", Provider.parse(provider))
    written = {way: Variant(b"", {}, {}, {}) for way in names["WAYS"]}
    monkeypatch.setitem(names, "shorter_starts", lambda plain, folder: written)
    chosen = {names["LARGEST"]: ("external",), MANY: ("level basic", "ORT format")}
    monkeypatch.setitem(names, "CHOSEN", chosen)
    models = {
        names["LARGEST"]: names["make_chain"](1),
        MANY: names["make_transformer"](1),
        CNN: names["ortmeter"].sample_cnn(size=8),
    }
    found = names["make_candidates"](models, tmp_path)
    assert list(found)[:5] == [
        f"{names['LARGEST']}: plain",
        f"{names['LARGEST']}: external",
        f"{MANY}: plain",
        f"{MANY}: level basic",
        f"{MANY}: ORT format",
    ]
    assert found[f"{MANY}: level basic"].settings["optimization"] == "basic"
    assert found[f"{CNN}: plain"].settings["provider"].name == provider
    environments = names["ENVIRONMENTS"][provider]
    assert set(environments) <= set(found)
    search = {
        name: variant.settings["provider_options"]["cudnn_conv_algo_search"]
        for name, variant in found.items()
        if "provider_options" in variant.settings
    }
    loading = {name: given["CUDA_MODULE_LOADING"] for name, given in environments.items()}
    assert (search, loading) == {
        "cpu": ({}, {}),
        "cuda": (
            {"CNN: cuDNN HEURISTIC": "HEURISTIC", "CNN: cuDNN DEFAULT": "DEFAULT"},
            {"CNN: plain": "LAZY", "CNN: kernels loaded": "EAGER"},
        ),
    }[provider]


def test_the_two_models_are_what_the_page_says(page):
    chain, transformer = page["make_chain"](1), page["make_transformer"](2)
    assert chain.ByteSize() / 2**20 == pytest.approx(1, rel=0.02)
    assert len(chain.graph.node) == 20
    assert len(transformer.graph.node) == 84
