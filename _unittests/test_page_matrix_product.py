"""The page that compares matrix products, on planted times."""

import dataclasses
from types import SimpleNamespace

import golden
import numpy as np
import onnx
import pytest
from fakes import needs_vnni
from page_runner import define_page
from threadpoolctl import threadpool_limits

from ortmeter.runtime.loading import load_model
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session
from ortmeter.timing import Comparison, Comparisons, Measurement

NAME = "plot_matrix_product"
SHAPES = ("1x64x64", "8x64x64", "64x64x64", "512x64x64", "300x50x70")
LIBRARIES = ("onnxruntime", "torch", "oneDNN", "numpy")
# Times beside onnxruntime, by shape: AVX2 in torch and NumPy, oneDNN better with a few rows.
USUAL = {
    "torch": (1.3, 2.0, 2.0, 2.2, 2.2),
    "oneDNN": (1.2, 0.7, 0.8, 1.0, 1.0),
    "numpy": (1.0, 1.6, 1.7, 1.9, 1.9),
    "W as input": (1.0, 2.0, 1.3, 1.08, 1.08),
    "W transposed": (1.0,) * 5,
    "8 bits": (0.3, 0.4, 0.6, 0.8, 0.8),
    "8 bits dynamic": (0.25, 0.3, 0.3, 0.3, 0.3),
}
# The opposite: each prediction is wrong, and what the discussions believed is right.
OTHER = {
    "torch": (1.0, 0.7, 0.7, 0.7, 0.7),
    "oneDNN": (1.5,) * 5,
    "numpy": (2.5, 0.5, 0.5, 0.5, 0.5),
    "W as input": (1.0, 1.0, 0.9, 0.9, 0.9),
    "W transposed": (1.0, 0.5, 0.5, 0.5, 0.5),
    "8 bits": (1.0,) * 5,
    "8 bits dynamic": (2.0,) * 5,
}
ON_CUDA = {name: USUAL[name] for name in ("torch", "W as input", "W transposed")}


@pytest.fixture(scope="module")
def page():
    """Names that the page defines."""
    return define_page(NAME)


def plant(ratios=USUAL, *, avx2=2.0, processes=6):
    """Times of each candidate, at 100 GFLOP/s for onnxruntime; two threads are 1.8 times faster."""
    rng = np.random.default_rng(0)

    def draw(name, seconds):
        return Measurement(name, seconds * np.exp(0.01 * rng.standard_normal((processes, 4))))

    groups = {}
    for i, shape in enumerate(SHAPES):
        base = 2e-11 * np.prod([int(size) for size in shape.split("x")])
        times = {"onnxruntime": 1.0} | {name: row[i] for name, row in ratios.items()}
        groups[shape] = Comparison(draw(name, base * ratio) for name, ratio in times.items())
    first, largest = groups[SHAPES[0]], "512x64x64"
    several = (draw(name, first[name].median / 1.8) for name in LIBRARIES if name in first)
    groups[f"{SHAPES[0]}, 2 threads"] = Comparison(several)
    wide = [one for name, one in groups[largest].items() if name == "oneDNN"]
    narrow = {one.name: draw(one.name, avx2 * one.median) for one in wide}
    data = {"found": Comparisons(groups, "shape"), "narrow": narrow, "largest": largest}
    return data | {"gb_per_s": 20.0, "legend": "CPU"}


def concluded(page, data):
    return page["study"].concluded(dataclasses.replace(golden.recorded(NAME), data=data))


@pytest.mark.parametrize(
    ("data", "label", "lead"),
    [
        (plant(), "depends", "In float32, take oneDNN in 2 of 5 shapes, else ONNX Runtime."),
        (plant(dict.fromkeys(USUAL, (1.5,) * 5)), "onnxruntime", "Stay with ONNX Runtime: of 5"),
        (
            plant(dict.fromkeys(USUAL, (0.5,) * 5)),
            "another",
            "In float32, take torch in 5, oneDNN in 5 and numpy in 5 of 5 shapes.",
        ),
        (plant(dict.fromkeys(USUAL, (1.0,) * 5)), "no difference", "In float32, take any library"),
        (plant(processes=2), "undecided", "Not shown here: measure yours with the command below."),
    ],
)
def test_the_answer_says_which_library_and_where(page, data, label, lead):
    answer = concluded(page, data).answer
    assert lead in str(answer)
    assert len(str(answer).split()) <= 35
    assert answer.label == label
    gained = label in {"depends", "another"}
    assert str(answer).startswith("With one row, use dynamic 8 bits: ") == gained
    assert (bool(answer.setting), bool(answer.warning)) == (gained, gained)
    assert answer.command.startswith("ortmeter bench" if gained else "ortmeter operators")
    assert ("oneDNN is faster at" in answer.small_print) == gained
    assert {claim.confidence for claim in answer.claims} == {1 - 0.01 / 35}  # they hold together
    assert [bar.label for bar in answer.bars] == list(LIBRARIES)
    assert answer.bars[0].value == pytest.approx(100, rel=0.02)


@pytest.mark.parametrize(
    ("data", "predictions", "right", "wrong"),
    [
        (plant(), ["right"] * 4, "#3311 #23004", "#15908 #2667 #27619 #10153"),
        (plant(OTHER, avx2=1.0), ["wrong"] * 4, "#15908 #2667 #27619 #10153", "#3311 #23004"),
        (plant(ON_CUDA), ["right", "undecided"] * 2, "#3311", "#27619"),
    ],
)
def test_predictions_and_beliefs_are_judged(page, data, predictions, right, wrong):
    found = concluded(page, data)
    assert [claim.verdict for claim in found.claims if claim.verdict != "fact"] == predictions
    judged = found.beliefs.frame["verdict"]
    assert [*judged[judged == "right"].index] == right.split()
    assert [*judged[judged == "wrong"].index] == wrong.split()


@needs_vnni
def test_the_setting_is_the_conversion_that_was_measured(page, tmp_path, monkeypatch):
    model, feeds = page["make_models"]("1x32x24")["8 bits dynamic"]
    monkeypatch.chdir(tmp_path)
    onnx.save(load_model(page["make_models"]("1x32x24")["onnxruntime"][0]), "model.onnx")
    copied = {}
    exec(concluded(page, plant()).answer.setting, copied)  # noqa: S102 - what a reader copies
    got, expected = (s.run(None, feeds)[0] for s in (copied["session"], make_session(model)))
    assert np.array_equal(got, expected)
    x, w = page["draw_operands"]("1x32x24")
    assert 0 < np.abs(got - x @ w).max() < 0.1


def test_a_speedup_has_one_interval_on_the_page(page):
    """The tables, the answer and the predictions show the same brackets."""
    data = plant(USUAL | {"8 bits": (1.0,) * 5, "numpy": (2.2, 1.6, 1.7, 1.9, 1.9)})
    found, shown = concluded(page, data), SimpleNamespace(**data)
    gain = page["ways"](shown).loc["1x64x64", "8 bits dynamic"]
    ratio, brackets = gain.split(" ", 1)
    assert f"{ratio} times faster {brackets} (99.97% CI)" in str(found.answer)
    told = " ".join(map(str, found.claims))
    levels = {claim.confidence for claim in page["compare"](shown, *page["LIBRARIES"])}
    assert levels == {1 - 0.01 / 35}
    assert "(99.8" not in told
    over = page["compare"](shown, ("numpy", "onnxruntime"))[0]
    assert over.where["shape"] == "1x64x64"
    assert f"lowest numpy: {over.reversed.interval} (99.97% CI) at shape 1x64x64" in told


def test_what_is_said_of_one_row_is_what_is_judged(page):
    # One library is 1.37 times faster: this does not tell what they wait for.
    ratios = USUAL | {"torch": (1.37, 2.0, 2.0, 2.2, 2.2)}
    found = concluded(page, plant(ratios))
    assert found.claims[0].text == "with one row, no library is twice as fast as another"
    assert found.claims[0].verdict == "right"
    twice = USUAL | {"torch": (2.2, 2.0, 2.0, 2.2, 2.2)}
    assert concluded(page, plant(twice)).claims[0].verdict == "wrong"


def test_a_belief_says_the_bound_that_it_is_judged_by(page):
    beliefs = concluded(page, plant()).beliefs.frame["belief"]
    for discussion, words in (("#15908", "1.5 times"), ("#2667", "10%"), ("#27619", "1.25 times")):
        assert words in beliefs[discussion]


def test_tables_have_the_speeds_and_what_threads_bring(page):
    data = SimpleNamespace(**plant())
    speeds = page["speeds"](data)
    assert list(speeds) == [*LIBRARIES, "roofline"]
    # One row: 64 x 64 weights, 64 numbers read and 64 written, 4 bytes each, at 20 GB/s.
    seconds = 4 * (64 * 64 + 64 + 64) / 20e9
    assert speeds.loc["1x64x64", "roofline"] == pytest.approx(2 * 64 * 64 / seconds / 1e9)
    best = speeds[list(LIBRARIES)].max(axis=None)
    assert speeds.loc["512x64x64", "roofline"] == pytest.approx(best)
    threads = page["more_threads"](data)
    assert list(threads.index) == ["1x64x64, 2 threads"]
    ratios = [float(text.split()[0]) for text in threads.iloc[0]]
    assert ratios == pytest.approx([1.8] * 4, rel=0.03)


@pytest.mark.parametrize("library", LIBRARIES[1:])
def test_the_source_of_the_calls_multiplies(page, library):
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    with threadpool_limits():  # of the other tests
        got = np.asarray(page["build_call"](library, "3x8x5", threads, "cpu")())
    x, w = page["draw_operands"]("3x8x5")
    np.testing.assert_allclose(got, x @ w, rtol=1e-5, atol=1e-6)


def test_every_model_multiplies(page, monkeypatch):
    from onnx.reference import ReferenceEvaluator

    assert "8 bits level 0" not in page["make_models"]("2x32x24")
    models = page["make_models"]("1x32x24")
    exact = ["onnxruntime", "W transposed", "W as input"]
    assert {*models} == {*exact, "8 bits", "8 bits dynamic", "8 bits level 0"}
    x, w = page["draw_operands"]("1x32x24")
    for name in exact:
        model, feeds = models[name]
        (got,) = ReferenceEvaluator(load_model(model)).run(None, feeds)
        np.testing.assert_allclose(got, x @ w, rtol=1e-5, atol=1e-6)
    monkeypatch.setitem(page["make_models"].__globals__, "provider", Provider("cuda", 1))
    assert list(page["make_models"]("1x32x24")) == exact
