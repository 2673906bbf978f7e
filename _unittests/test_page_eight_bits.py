"""The page on trained networks in 8 bits, on planted samples."""

import dataclasses

import numpy as np
import onnx
import pytest
from fakes import needs_vnni
from page_runner import define_page

import ortmeter
from ortmeter.runtime.models import layer_stack
from ortmeter.study import to_frame
from ortmeter.study.records import record
from ortmeter.timing import Comparison, Comparisons, Measurement

NAMES = DETECTOR, VOICE = "detector", "voice"
WITHOUT = ("products but 1", "products but 2")
UNTIMED = ("Percentile", "Entropy")
USUAL = {"dynamic": 0.5, "dynamic channels": 0.5, "dynamic MatMul": 0.9, "float32": 1.0}


@pytest.fixture(scope="module")
def page():
    """Names that the page defines."""
    return define_page("plot_eight_bits")


def value(given, way, name, default):
    return given.get((way, name), given.get(way, default))


def planted(page, *, speeds=None, kept=None, errors=None, sizes=None, noise=0.002, processes=8):
    """Make a record from what is given by way, or by way and network."""
    speeds, kept, errors = USUAL | (speeds or {}), kept or {}, errors or {}
    rng = np.random.default_rng(0)
    ways, groups, facts = ("float32", *page["WAYS"], *WITHOUT), {}, {}
    for name in NAMES:
        times = []
        for way in ways:
            share = value(kept, way, name, 100.0)
            facts[name, way] = {
                "same (%)": share,
                "calibration (%)": value(kept, f"{way} there", name, share),
                "error (%)": value(errors, way, name, 10.0),
                "size (MiB)": value(sizes or {}, way, name, 4.0 if way == "float32" else 1.0),
            }
            drawn = np.exp(noise * rng.standard_normal((processes, 1)) * np.ones(12))
            speed = value(speeds, way, name, 2.0)
            if not way.startswith(UNTIMED) and not np.isnan(share):
                times.append(Measurement(way, 1e-3 / speed * drawn))
        groups[name] = Comparison(times)
    worst = {(n, f"node {i}"): {"products": 50, "effect": 1 / i} for n in NAMES for i in (1, 2)}
    data = {
        "times": Comparisons(groups, "model"),
        "facts": to_frame(facts, "model", "way"),
        "worst": to_frame(worst, "model", "node"),
        "legend": "planted",
    }
    made = record("plot_eight_bits", page["args"], page["provider"], data)
    return dataclasses.replace(made, fast=False)


def conclude(page, **others):
    return page["study"].concluded(planted(page, **others))


def verdicts(found):
    return [claim.verdict for claim in found.claims]


WON = (
    "For rapidocr-onnxruntime (detector), quantize only Conv/Gemm/MatMul: 3.00 times",
    "For silero-vad (voice), quantize only Conv/Gemm/MatMul but the worst 1: 2.5",
    "100% of decisions kept",
)
SLOW = dict.fromkeys(("MinMax", "MinMax channels", "products", *WITHOUT), 0.9)


@pytest.mark.parametrize(
    ("planned", "told", "label"),
    [
        (
            {
                "speeds": {"products": 3.0, ("products but 1", VOICE): 2.5},
                "kept": {("products", VOICE): 98.0},
            },
            WON,
            "2 of 2",
        ),
        ({"speeds": {"products": 3.0}, "kept": {"products there": 98.0}}, ("2.0",), "2 of 2"),
        (
            {"speeds": SLOW},
            ("Keep float32 for rapidocr-onnxruntime (detector) and silero-vad (voice): nothing",),
            "0 of 2",
        ),
        (
            {"processes": 1},
            ("Keep float32 for rapidocr-onnxruntime (detector) and silero-vad (voice): nothing",),
            "0 of 2",
        ),
    ],
)
def test_the_answer_says_how_to_convert(page, planned, told, label):
    found = conclude(page, **planned).answer
    assert all(text in str(found) for text in told)
    assert found.label == label
    assert bool(found.setting) == (label != "0 of 2")
    assert len(str(found).split()) <= 40
    assert [bar.label for bar in found.bars] == [*page["SHOWN"]]


@pytest.mark.parametrize(("share", "told"), [(100.0, True), (90.0, False), (np.nan, False)])
def test_minmax_is_advised_where_no_calibration_keeps_more(page, share, told):
    warning = conclude(page, kept={("MinMax", VOICE): share}).answer.warning
    assert ("by MinMax: Percentile and Entropy keep no more" in warning) == told
    assert warning.startswith("Calibrate on your inputs")


def test_a_way_that_fails_is_not_advised(page):
    found = conclude(page, kept={"products": np.nan}, speeds={"MinMax": 0.9})
    assert "MatMul:" not in str(found.answer)
    assert "For rapidocr-onnxruntime (detector), quantize" in str(found.answer)


@pytest.mark.parametrize(
    "way",
    [
        "dynamic",
        "MinMax",
        pytest.param("products", marks=needs_vnni),
        pytest.param("products but 2", marks=needs_vnni),
    ],
)
def test_the_setting_runs_as_it_stands(page, way, tmp_path, monkeypatch):
    lost = dict.fromkeys({*page["WAYS"], *WITHOUT} - {way}, 50.0)
    answer = conclude(page, speeds={way: 3.0}, kept=lost).answer
    assert way.replace("products", "only Conv/Gemm/MatMul") in str(answer).replace(
        "but the worst", "but"
    )
    model = ortmeter.freeze_inputs(*layer_stack("MatMul", [16], [16, 16], layers=2))
    samples = [{"A0": np.random.default_rng(0).standard_normal((4, 16), np.float32)}]
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "model.onnx")
    (tmp_path / "samples").mkdir()
    np.savez("samples/1.npz", **samples[0])
    exec(answer.setting, {})  # noqa: S102 - what a reader copies
    converted = ortmeter.make_session("8.onnx", provider="cpu").run(None, samples[0])[0]
    expected = ortmeter.make_session(model, provider="cpu").run(None, samples[0])[0]
    assert 0 < np.abs(converted - expected).max() < 0.1 * np.abs(expected).max()


def test_predictions(page):
    errors = {"MinMax channels": 5.0}
    assert verdicts(conclude(page, errors=errors))[:6] == ["right"] * 6
    errors = {"MinMax": 90.0, "Entropy": 80.0, "MinMax channels": 95.0}
    speeds = {"products": 0.5, "dynamic": 2.0}
    found = conclude(page, errors=errors, speeds=speeds, sizes={("products", VOICE): 2.0})
    assert verdicts(found)[:6] == ["wrong"] * 6
    assert "voice 2 against 4 MiB" in str(found.claims[3])
    assert verdicts(conclude(page, processes=1))[4:6] == ["undecided"] * 2


def test_beliefs(page):
    found = conclude(page).beliefs.frame["verdict"]
    issues = ["#11928", "#10571", "#11286", "inference-examples#319"]
    assert found.to_dict() == dict.fromkeys(issues, "wrong")
    lost = {"Percentile": np.nan, "dynamic channels": 50.0, ("MinMax", VOICE): 0.0}
    assert conclude(page, kept=lost).beliefs.frame["verdict"].to_list() == [
        "right",
        "undecided",  # nothing is left to compare
        "right",
        "right",
    ]
    ruined = conclude(page, kept={"Percentile": 10.0}).beliefs.frame["verdict"]
    assert ruined["#10571"] == "right"


def test_decisions_are_those_of_the_task(page):
    same = page["same"]
    score = np.zeros((1, 1, 96, 320), np.float32)
    score[0, 0, 5:30, 20:120] = score[0, 0, 60:80, 10:200] = 0.9
    other = score.copy()
    other[0, 0, 60:80, 150:] = 0.0
    assert list(same("detector", score, score)) == [True, True]
    assert list(same("detector", score, other)) == [True, False]
    letters = np.eye(4, dtype=np.float32)
    one, two = (letters[None, [*ids]] for ids in ([1, 1, 0, 2], [1, 0, 2, 2]))
    assert same("recognizer", one, two) == [True]
    assert same("recognizer", one, letters[None, [1, 0, 1, 2]]) == [False]
    assert list(same("voice", np.float32([0.4, 0.6]), np.float32([0.1, 0.4]))) == [True, False]
    assert same("files", letters[None, 1], letters[None, 1] / 2) == [True]
    assert same("files", letters[None, 1], letters[None, 2]) == [False]


def test_inputs_are_those_of_the_networks(page, monkeypatch):
    monkeypatch.setitem(page, "rng", np.random.default_rng(0))
    assert page["draw_lines"](2)["x"].shape == (1, 3, 96, 320)
    assert {name: x.shape for name, x in page["speak"]().items()} == {
        "input": (125, 576),
        "h": (1, 1, 128),
        "c": (1, 1, 128),
    }
    files = [*page["make_files"]()]
    starts = [b"<!DOCTYPE", b"def f", b"\x1f\x8b", b"\x89PNG", b"\xff\xd8", b"GIF8", b"BM", b"II*"]
    assert all(any(file.startswith(start) for file in files) for start in starts)
    (ends,) = page["read_ends"](b" ab ")["bytes"]
    assert ends[:3].tolist() == [97, 98, 32]
    assert ends[-3:].tolist() == [32, 97, 98]
    assert set(ends[3:-3]) == {256}
    assert page["read_ends"](b"x" * 5000)["bytes"].tolist() == [[120] * 2048]


def test_the_search_finds_a_product_with_an_outlier(page, tmp_path):
    model, weights = layer_stack("MatMul", [32], [32, 32], layers=5)
    weights["W2"][0, 0] = 100.0  # one weight decides the scale of its channel
    model = ortmeter.freeze_inputs(model, weights)
    for rank, node in enumerate(model.graph.node):
        node.name = f"{node.op_type} {rank}"
    onnx.save(model, path := f"{tmp_path}/model.onnx")
    samples = [{"A0": np.random.default_rng(0).standard_normal((8, 32), np.float32)}]
    found = page["search"](path, model, samples)
    worst = next(iter(found))
    assert (worst, found[worst]["product"], found[worst]["products"]) == ("MatMul 4", 3, 5)
    assert sorted(row["product"] for row in found.values()) == [1, 2, 3, 4, 5]
    ways = page["list_ways"]([*found])
    assert [way for way in ways if "but" in way] == [
        "products but 1",
        "products but 2",
        "products but 4",
    ]
    precision, options = ways["products but 1"]
    converted = page["convert"](path, "products but 1", samples, precision, options)
    assert "W2" in {tensor.name for tensor in converted.graph.initializer}


def test_a_histogram_needs_inputs_of_one_size(page, tmp_path):
    model = ortmeter.freeze_inputs(*layer_stack("MatMul", [16], [16, 16], layers=1))
    onnx.save(model, path := f"{tmp_path}/model.onnx")
    samples = [{"A0": np.ones((rows, 16), np.float32)} for rows in (1, 2)]
    for way, fails in {"MinMax": False, "Percentile": True, "Entropy": True}.items():
        if fails:
            with pytest.raises(ValueError, match="inhomogeneous"):
                page["convert"](path, way, samples, *page["WAYS"][way])
        else:
            page["convert"](path, way, samples, *page["WAYS"][way])
