"""The page that compares matrix products, on planted times and with CUDA's settings."""

import itertools
import types

import numpy as np
import pytest
from page_runner import define_page
from threadpoolctl import threadpool_limits

from ortmeter.runtime.loading import load_model
from ortmeter.runtime.providers import Provider
from ortmeter.timing import Comparison, Comparisons, Measurement

SHAPES = ("1x64x64", "8x64x64", "64x64x64", "512x64x64", "300x50x70")
LIBRARIES = ("onnxruntime", "torch", "oneDNN", "numpy")
WAYS = ("W as input", "W transposed", "8 bits", "8 bits dynamic")
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
OTHER = {
    "torch": (1.0, 0.7, 0.7, 0.7, 0.7),
    "oneDNN": (1.0, 0.7, 0.7, 0.7, 0.7),
    "numpy": (2.5, 0.5, 0.5, 0.5, 0.5),
    "W as input": (1.0, 1.0, 0.9, 0.9, 0.9),
    "W transposed": (1.0, 0.5, 0.5, 0.5, 0.5),
    "8 bits": (1.0, 1.0, 1.0, 1.0, 1.0),
    "8 bits dynamic": (2.0, 2.0, 2.0, 2.0, 2.0),
}
BEATEN = {**OTHER, "oneDNN": (1.5,) * 5}


@pytest.fixture(scope="module")
def page():
    """Names that the page defines."""
    return define_page("plot_matrix_product")


def plant(ratios=USUAL, *, avx2=2.0, noise=0.01, processes=6, threads=1.8):
    """Times of each candidate, at 100 GFLOP/s for onnxruntime with many rows."""
    rng = np.random.default_rng(0)

    def draw(name, seconds):
        return Measurement(name, seconds * np.exp(noise * rng.standard_normal((processes, 4))))

    groups = {}
    for i, shape in enumerate(SHAPES):
        base = 2e-11 * np.prod([int(size) for size in shape.split("x")])
        times = {"onnxruntime": 1.0} | {name: row[i] for name, row in ratios.items()}
        groups[shape] = Comparison(draw(name, base * ratio) for name, ratio in times.items())
    first = groups[SHAPES[0]]
    pairs = [(n, first[n].median / threads) for n in LIBRARIES if n in first]
    groups[f"{SHAPES[0]}, 2 threads"] = Comparison(draw(*pair) for pair in pairs)
    narrow = {}
    if "oneDNN" in ratios:
        narrow["oneDNN"] = draw("oneDNN", avx2 * groups["512x64x64"]["oneDNN"].median)
    data = {"found": Comparisons(groups, "shape"), "narrow": narrow, "largest": "512x64x64"}
    return data | {"gb_per_s": 20.0, "legend": "CPU"}


def verdicts(page, data):
    return [claim.verdict for claim in page["conclude"](data)[1]]


def beliefs(page, data):
    return {name: claim.verdict for name, claim in page["judge_beliefs"](data).items()}


def test_the_answer_counts_the_shapes_and_says_what_8_bits_gain(page):
    found = page["answer"](plant())
    text = str(found)
    assert text.startswith("Of 5 shapes, ONNX Runtime is faster than torch in 5 (2.2")
    assert "oneDNN in 1 (1.20 times at 1x64x64) and numpy in 4 (" in text.replace("1.19", "1.20")
    assert "slower than oneDNN in 2 (8 and 64 rows, 1.4" in text
    assert "With one row, 8 bits dynamic is 4.0" in text
    assert found.label == "depends"
    assert len(text.split()) <= 60
    assert [bar.label for bar in found.bars] == list(LIBRARIES)
    assert found.bars[0].value == pytest.approx(100, rel=0.02)


def test_the_answer_has_each_verdict(page):
    assert page["answer"](plant(BEATEN)).label == "depends"
    ours = dict.fromkeys(USUAL, (1.5,) * 5)
    assert page["answer"](plant(ours)).label == "onnxruntime"
    theirs = page["answer"](plant(dict.fromkeys(USUAL, (0.5,) * 5)))
    assert (theirs.label, "than float32" in str(theirs)) == ("another", True)
    nothing = page["answer"](plant(processes=2))
    assert nothing.label == "undecided"
    assert str(nothing) == "Of 5 shapes, ONNX Runtime is shown to differ in none."


def test_predictions_are_judged(page):
    assert verdicts(page, plant()) == ["right"] * 4
    assert verdicts(page, plant(OTHER, avx2=1.0)) == ["wrong"] * 4
    assert verdicts(page, plant(noise=1.0, processes=3)) == ["undecided"] * 4


def test_beliefs_are_judged(page):
    assert beliefs(page, plant()) == {
        "#15908": "wrong",
        "#2667": "wrong",
        "#3311": "right",
        "#27619": "wrong",
        "#10153": "wrong",
        "#23004": "right",
    }
    assert beliefs(page, plant(BEATEN)) == {
        "#15908": "right",
        "#2667": "right",
        "#3311": "wrong",
        "#27619": "right",
        "#10153": "right",
        "#23004": "wrong",
    }
    assert set(beliefs(page, plant(noise=1.0, processes=3)).values()) == {"undecided"}


def test_what_cuda_lacks_is_undecided(page):
    data = plant({name: USUAL[name] for name in ("torch", "W as input", "W transposed")})
    assert verdicts(page, data) == ["right", "undecided", "right", "undecided"]
    found = beliefs(page, data)
    assert (found["#15908"], found["#10153"], found["#27619"]) == ("undecided",) * 2 + ("wrong",)
    assert "With one row" not in str(page["answer"](data))


def test_the_roofline_is_the_best_speed_or_the_bytes(page):
    speeds = page["tabulate_speeds"](plant()["found"], 20.0)
    assert list(speeds) == [*LIBRARIES, "roofline"]
    # One row: 64 x 64 weights, 64 numbers read and 64 written, 4 bytes each, at 20 GB/s.
    seconds = 4 * (64 * 64 + 64 + 64) / 20e9
    assert speeds.loc["1x64x64", "roofline"] == pytest.approx(2 * 64 * 64 / seconds / 1e9)
    best = speeds[list(LIBRARIES)].max(axis=None)
    assert speeds.loc["512x64x64", "roofline"] <= best


def test_threads_are_compared_with_one(page):
    table = page["tabulate_threads"](plant()["found"])
    assert list(table.index) == ["1x64x64, 2 threads"]
    assert all(text.startswith(("1.8", "1.79")) for text in table.iloc[0])


def test_intervals_of_a_table_hold_together(page):
    claims = page["over_libraries"](plant()["found"])
    assert len(claims) == 15
    assert {claim.confidence for claim in claims} == {1 - 0.01 / 15}


@pytest.mark.parametrize("library", LIBRARIES[1:])
def test_the_source_of_the_calls_multiplies(page, library):
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    with threadpool_limits():  # of the other tests
        got = np.asarray(page["build_call"](library, "3x8x5", threads, "cpu")())
    x, w = page["draw_operands"]("3x8x5")
    np.testing.assert_allclose(got, x @ w, rtol=1e-5, atol=1e-6)


def test_every_model_multiplies(page):
    from onnx.reference import ReferenceEvaluator

    models = page["make_models"]("1x32x24")
    assert set(models) == {"onnxruntime", *WAYS, "8 bits level 0"}
    x, w = page["draw_operands"]("1x32x24")
    for name in ("onnxruntime", "W transposed", "W as input"):
        model, feeds = models[name]
        (got,) = ReferenceEvaluator(load_model(model)).run(None, feeds)
        np.testing.assert_allclose(got, x @ w, rtol=1e-5, atol=1e-6)
    assert "8 bits level 0" not in page["make_models"]("2x32x24")


def test_the_same_lines_run_on_cuda(page, monkeypatch):
    """What each candidate is made of on CUDA: torch on its device, float32 models."""
    cuda = Provider("cuda", 1)
    made = []
    fake = types.SimpleNamespace(
        session_candidate=lambda model, feeds, **options: made.append(options),
        function_candidate=lambda build, **arguments: made.append(arguments),
        freeze_inputs=page["ortmeter"].freeze_inputs,
    )
    names = page["make_candidates"].__globals__
    monkeypatch.setitem(names, "provider", cuda)
    models = {"2x8x4": page["make_models"]("2x8x4")}
    monkeypatch.setitem(names, "models", models)
    monkeypatch.setitem(names, "ortmeter", fake)
    found = page["make_candidates"]("2x8x4", 1, ways=True)
    assert list(found) == ["onnxruntime", "torch", "W transposed", "W as input"]
    assert made[:3] == list(itertools.repeat({"provider": cuda, "threads": 1}, 3))
    call = {"library": "torch", "shape": "2x8x4", "threads": 1, "device": "cuda:1"}
    assert made[3] == call
    assert list(page["make_candidates"]("2x8x4", 1, ways=False)) == ["onnxruntime", "torch"]
    assert page["NARROW"]["cuda"] == {}
    assert page["MORE_THREADS"]["cuda"] == ()
