"""The conclusions of the page *Where does the time go before the first result?*, planted starts."""

import dataclasses

import numpy as np
import onnx
import onnxruntime
import pytest
from golden import recorded
from page_runner import define_page

from ortmeter.evidence import Note, Prediction
from ortmeter.timing import Comparison, Comparisons, Measurement
from ortmeter.timing.candidates import SessionSpec

PHASES = ("import", "session", "first run", "steady run", "second run", "first result")
USUAL = {  # milliseconds of the first four
    "1 MiB: plain": (20, 5, 0.5, 0.05),
    "100 MiB: plain": (20, 150, 6, 5),
    "100 MiB: external": (20, 60, 6, 5),
    "100 MiB: external unpacked": (20, 5, 15, 10),
    "transformer: plain": (20, 80, 4, 2),
    "transformer: no optimization": (20, 50, 4, 2),
    "transformer: saved optimized": (20, 30, 4, 2),
    "CNN: plain": (20, 6, 8, 5),
    "CNN: all threads": (20, 6.1, 8, 5),
}
OPPOSITE = USUAL | {  # of every prediction and belief, on a GPU
    "1 MiB: plain": (20, 90, 5, 0.05),
    "100 MiB: plain": (100, 15, 30, 5),
    "100 MiB: external": (100, 30, 30, 5),
    "100 MiB: external unpacked": (100, 60, 60, 5),
    "transformer: no optimization": (20, 90, 4, 2),
    "transformer: saved optimized": (20, 80, 4, 2),
    "CNN: plain": (20, 6, 800, 5),
    "CNN: all threads": (20, 60, 800, 5),
    "CNN: cuDNN HEURISTIC": (20, 6, 80, 5),
}


@pytest.fixture(scope="module")
def page():
    return define_page("plot_first_result")


def planted(starts, *, processes=10, noise=0.02, read=0.05, grown=(9, 100)):
    """Starts of known medians; mapped weights grow the memory by so many MiB in two phases."""
    rng, groups = np.random.default_rng(0), {phase: [] for phase in PHASES}
    for name, ms in starts.items():
        noisy = np.exp(noise * rng.standard_normal((4, processes, 1)))
        seconds = 1e-3 * np.reshape(ms, (4, 1, 1)) * noisy
        for phase, found in zip(PHASES, [*seconds, seconds[3], seconds[:3].sum(0)], strict=True):
            groups[phase].append(Measurement(name, found))
    memory = {name: dict.fromkeys(PHASES, (8, None)) for name in starts}
    session, run = grown
    memory["100 MiB: external unpacked"] |= {"session": (session, 0), "first run": (run, 0)}
    times = Comparisons({phase: Comparison(group) for phase, group in groups.items()}, "phase")
    told = {"legend": "planted", "smallest": "1 MiB", "largest": "100 MiB", "nodes": 1248}
    return told | {"times": times, "memory": memory, "read (s)": read}


def conclude(page, *given, **options):
    record = dataclasses.replace(recorded("plot_first_result"), data=planted(*given, **options))
    return page["study"].concluded(record)


def test_the_answer_names_the_steps_and_what_shortens_them(page):
    answer = conclude(page, USUAL, noise=1e-3).answer
    lead = "For few runs, keep large weights in their own file, not packed: the first result of "
    # 176 ms against 40 ms; a run takes 10 ms instead of 5.
    assert str(answer).startswith(f"{lead}100 MiB is 4.4")
    steps = (
        "import with 1 MiB of weights (78%), session with 1248 nodes (77%), session with 100 MiB"
    )
    assert answer.small_print.endswith(f"most of the time: {steps} (85%)")
    assert answer.label == "session"
    assert len(str(answer).split()) <= 35
    bars = {bar.label: bar.value for bar in answer.bars}
    expected = {"plain": 1, "external unpacked": 176 / 40, "external": 176 / 86}
    assert bars == pytest.approx(expected, rel=0.03)


def test_no_step_and_no_way_is_an_answer_too(page):
    for options, word in (({}, "no step"), ({"processes": 1}, "undecided")):
        answer = conclude(page, dict.fromkeys(USUAL, (30, 30, 30, 5)), **options).answer
        assert answer.small_print.count(f"{word} with") == 3
        assert str(answer).startswith(
            "How to start 100 MiB of weights sooner: not shown here, measure yours with the "
        )
        assert (answer.label, answer.setting) == (word, "")


UNSURE = {"processes": 1, "grown": (None, None)}


@pytest.mark.parametrize(
    ("given", "options", "predicted", "believed"),
    [
        (USUAL, {}, "r r r r", "w u w r w r"),
        # Three moves of 50 ms are far from 15 ms; weights are in memory before the first run.
        (OPPOSITE, {"grown": (109, 1)}, "w w w w", "r r r w r w"),
        (USUAL, UNSURE, "u u u u", "u u u u u u"),
        (USUAL, {"read": 0.001}, "r w r r", "w u w r w r"),
        # The moves of one way are enough to be wrong: 150 ms where 55 are predicted.
        (USUAL | {"100 MiB: external": (20, 150, 6, 5)}, {}, "r w r r", "w u w r w r"),
    ],
)
def test_each_prediction_and_belief_is_judged(page, given, options, predicted, believed):
    found = conclude(page, given, **options)
    verdicts = [claim.verdict for claim in found.claims if isinstance(claim, Prediction)]
    assert [verdict[0] for verdict in verdicts] == predicted.split()
    assert [verdict[0] for verdict in found.beliefs.frame["verdict"]] == believed.split()


def test_unpacked_weights_pay_until_the_runs_have_lost_what_the_start_won(page):
    def notes(*given):
        found = conclude(page, *given, noise=1e-6).claims
        return [claim.values["n"] for claim in found if isinstance(claim, Note)]

    # 176 - 40 ms won by the start, 5 ms lost by each run.
    assert notes(USUAL) == [28]
    assert notes({**USUAL, "100 MiB: external unpacked": (20, 5, 15, 4)}) == ["never"]
    assert notes(OPPOSITE) == []  # nothing is won


def test_the_setting_to_copy_maps_the_weights(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(page["make_chain"](1), "model.onnx")
    names = {"onnx": onnx, "onnxruntime": onnxruntime}
    exec(page["SETTING"], names)  # noqa: S102 - code of the page
    assert (tmp_path / "weights").stat().st_size == pytest.approx(2**20, rel=0.02)
    feeds = {"A0": np.ones((2, 162), np.float32)}
    (expected,) = onnxruntime.InferenceSession("model.onnx").run(None, feeds)
    np.testing.assert_allclose(names["session"].run(None, feeds)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_way_is_another_file_or_another_setting(page, tmp_path, monkeypatch):
    make_ways, plain = page["make_ways"], SessionSpec(b"", {}, {"threads": 1})
    written = {"external": SessionSpec("file", {}, {})}  # what CUDA has: no ORT format
    monkeypatch.setitem(make_ways.__globals__, "shorter_starts", lambda plain, folder: written)
    names = ["external", "ORT format", "cuDNN DEFAULT", "all threads"]
    found = make_ways(plain, names, tmp_path / "ways")
    assert list(found) == ["plain", "external", "cuDNN DEFAULT", "all threads"]
    assert (found["plain"], found["external"].model) == (plain, "file")
    search = {"cudnn_conv_algo_search": "DEFAULT"}
    assert found["cuDNN DEFAULT"].settings == {"threads": 1, "provider_options": search}
    assert found["all threads"].settings == {"threads": 0}
