"""The conclusions of the page *One big Gemm or two smaller?*, from planted samples."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from matplotlib import pyplot as plt
from onnx.reference import ReferenceEvaluator
from page_runner import run_page

from ortmeter.evidence import Prediction
from ortmeter.study.records import replay
from ortmeter.timing import Comparison, Comparisons, Measurement


@pytest.fixture(scope="module")
def gemm_page():
    """Names of the Gemm page, after it ran."""
    return run_page("plot_op_gemm2_cuda")


def planted(**medians):
    """Samples whose medians are known, by name of candidate."""
    names = {
        "two": "two Gemms",
        "concat": "Concat then Gemm",
        "one": "one Gemm (constant)",
        "two_constant": "two Gemms (constant)",
        "copied": "two Gemms (session.run)",
    }
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(
            names[key], m * np.exp(0.01 * rng.standard_normal((10, 12))), flop=1e9, bytes_moved=1e9
        )
        for key, m in medians.items()
    )


FASTER = planted(two=2.0, concat=1.0, one=1.0, two_constant=3.0, copied=2.0)
SLOWER = planted(two=1.0, concat=2.0, one=3.0, two_constant=1.5, copied=2.0)
EQUAL = planted(two=1.0, concat=1.0, one=1.0, two_constant=1.0, copied=1.0)


CASE = "If two Gemms of one input, with constant weights, feed one Concat"
BESIDE = "with square input and weights, one Gemm is"
MERGE = f"{CASE}, merge the three nodes: {BESIDE}"


def concluded(gemm_page, groups):
    """What the page concludes from these samples."""
    study = gemm_page["study"]
    results = Comparisons(groups, "size")
    record = dataclasses.replace(study.here, data={**study.here.data, "results": results})
    return study.concluded(dataclasses.replace(record, fast=False))


def test_the_answer_follows_the_samples(gemm_page):
    found = concluded(gemm_page, {1: FASTER, 2: SLOWER, 3: EQUAL})
    text = str(found.answer)
    assert text.startswith(f"{MERGE} 3.0")
    assert "times faster [2.9" in text
    assert "] at 1x1. Keep all three where it is slower: 2.0" in text
    assert text.endswith("] at 2x2. At 3x3, no gain of 5% is shown.")
    assert found.answer.label == "by size"
    # Each bar is over two Gemms with constant weights.
    assert [bar.value for bar in found.answer.bars] == pytest.approx([1, 3, 0.5, 1], rel=0.05)
    (changing,) = (claim for claim in found.claims if "weights that change" in str(claim))
    assert changing.verdict == "wrong"


@pytest.mark.parametrize(
    ("groups", "lead"),
    [
        ({1: FASTER}, f"{MERGE} 3.0"),
        ({1: FASTER, 3: EQUAL}, f"{MERGE} 3.0"),
        ({2: SLOWER}, f"{CASE}, keep all three: {BESIDE} 2.0"),
        ({3: EQUAL}, f"{CASE}, leave them: {BESIDE} as fast within 5% (speedup 1.0"),
        (dict.fromkeys((1, 2, 4, 8, 16), FASTER), f"{MERGE} 3.0"),  # more sizes than bars
    ],
)
def test_the_answer_begins_with_what_to_do(gemm_page, groups, lead):
    answer = concluded(gemm_page, groups).answer
    assert str(answer).startswith(lead)
    assert len(str(answer).split()) <= 60
    assert ("At 3x3, no gain of 5% is shown." in str(answer)) == (len(groups) == 2)
    assert answer.command == "ortmeter bench model.onnx one.onnx"


def written(*gemms, axis=1, outputs="float[4, 6] S"):
    """A model with two Gemms, of constant weights, and their Concat."""
    body = f"A = {gemms[0]} B = {gemms[1]} S = Concat<axis = {axis}>(A, B)"
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[4, 3] X) => ({outputs}) {{ {body} }}'
    )
    rng = np.random.default_rng(0)
    shapes = {"Y": (3, 3), "Z": (3, 3), "b": (3,), "c": (3,)}
    for name, shape in shapes.items():
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize(
    "gemms",
    [
        ("Gemm(X, Y)", "Gemm(X, Z)"),
        ("Gemm(X, Y, b)", "Gemm(X, Z, c)"),
        ("Gemm<transB = 1>(X, Y, b)", "Gemm<transB = 1>(X, Z, c)"),
        ("Gemm<alpha = 0.5, transB = 1>(X, Y)", "Gemm<alpha = 0.5, transB = 1>(X, Z)"),
    ],
)
def test_the_setting_joins_what_it_is_told(gemm_page, gemms):
    model = written(*gemms)
    joined = gemm_page["study"].run_setting(model)["model"]
    assert [node.op_type for node in joined.graph.node] == ["Gemm"]
    feeds = {"X": np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)}
    before, after = (ReferenceEvaluator(one).run(None, feeds)[0] for one in (model, joined))
    assert after == pytest.approx(before, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (written("Gemm(X, Y)", "Gemm(X, Z)", axis=0, outputs="float[8, 3] S"), "side by side"),
        (written("Gemm(X, Y)", "Gemm<transB = 1>(X, Z)"), "not alike"),
        (written("Gemm(X, Y)", "Gemm(X, Z, c)"), "not alike"),
        (written("Gemm(X, Y, b)", "Gemm(X, Z)"), "not alike"),
        (written("Gemm(X, Y)", "Gemm(X, Z)", outputs="float[4, 6] S, float[4, 3] A"), "elsewhere"),
    ],
)
def test_the_setting_stops_where_one_gemm_computes_something_else(gemm_page, model, message):
    with pytest.raises(AssertionError, match=message):
        gemm_page["study"].run_setting(model)


def test_the_ratios_of_the_answer_are_in_the_table_and_on_the_plot(gemm_page):
    data = SimpleNamespace(results=Comparisons({1: FASTER, 2: SLOWER}, "size"), legend="planted")
    rows = gemm_page["latencies"](data)["speedup"]
    expected = {"one Gemm (constant)": 3.0, "Concat then Gemm": 2.0, "two Gemms (session.run)": 1.0}
    for name, ratio in {"two Gemms": 1.0, "two Gemms (constant)": 1.0, **expected}.items():
        assert rows.loc[1, name] == pytest.approx(ratio, rel=0.05)
    axes = gemm_page["speedups"](data)
    drawn = [bars.lines[0].get_ydata()[0] for bars in axes.containers]
    assert drawn == pytest.approx(list(expected.values()), rel=0.05)
    plt.close(axes.figure)


def test_times_are_drawn_on_logarithmic_scales(gemm_page):
    groups = {256: FASTER, 512: SLOWER}
    data = SimpleNamespace(results=Comparisons(groups, "size"), legend="planted")
    axes = gemm_page["times"](data)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    names = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    for name, bars in zip(names, axes.containers, strict=True):
        expected = [1e3 * np.median(group[name].seconds) for group in groups.values()]
        assert list(bars.lines[0].get_xdata()) == [256, 512]
        assert bars.lines[0].get_ydata() == pytest.approx(expected, rel=1e-2)
    (cubic,) = (line for line in axes.lines if line.get_linestyle() == "--" and line.zorder == 0)
    assert np.divide(*cubic.get_ydata()[::-1]) == pytest.approx(8)
    plt.close(axes.figure)


def judged(gemm_page, groups):
    """Verdicts of the predictions: joined is not slower, changing is alike, differences fade."""
    claims = concluded(gemm_page, groups).claims
    return [claim.verdict for claim in claims if isinstance(claim, Prediction)]


@pytest.mark.parametrize(
    ("groups", "verdicts"),
    [
        ({1: FASTER, 2: SLOWER}, ["wrong", "wrong", "right"]),  # 3 times, then 2 times slower
        ({1: FASTER, 3: EQUAL}, ["right", "wrong", "right"]),
        ({3: EQUAL, 1: FASTER}, ["right", "wrong", "wrong"]),
        ({1: EQUAL, 3: EQUAL}, ["right", "right", "undecided"]),
        ({3: EQUAL}, ["right", "right", "undecided"]),  # one size does not tell
    ],
)
def test_the_three_predictions_are_judged(gemm_page, groups, verdicts):
    assert judged(gemm_page, groups) == verdicts


def test_too_few_samples_decide_nothing(gemm_page):
    few = Comparison(dataclasses.replace(m, seconds=m.seconds[:1, :5]) for m in FASTER.values())
    found = concluded(gemm_page, {1: few})
    told = "merge them with the setting and time both: here, which is faster is undecided."
    assert str(found.answer) == f"{CASE}, {told}"
    assert found.answer.label == "undecided"
    assert not any(claim.verdict in {"faster", "slower"} for claim in found.claims)
    assert judged(gemm_page, {1: few}) == ["undecided"] * 3


def test_another_machine_gets_the_answer_of_its_own_samples(gemm_page):
    study = gemm_page["study"]
    there = dataclasses.replace(
        study.here,
        data={**study.here.data, "results": Comparisons({2: SLOWER}, "size")},
        environment=dataclasses.replace(study.here.environment, cpu="A Planted CPU"),
    )
    text = " ".join(str(replay(study.replay, [there])).split())
    assert text.startswith("A Planted CPU (")
    assert f"{CASE}, keep all three: {BESIDE} 2.0" in text
    assert "one Gemm is never 5% slower than two and a Concat (lowest 0.50" in text
    assert "Measured on A Planted CPU" in text
