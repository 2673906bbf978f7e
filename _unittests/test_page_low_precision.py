"""The page on 16 and 8 bits, on planted samples."""

import dataclasses
from types import SimpleNamespace

import golden
import numpy as np
import onnx
import pandas as pd
import pytest
from fakes import needs_vnni
from onnx import TensorProto
from onnx.numpy_helper import to_array
from page_runner import define_page, run_page

import ortmeter
from ortmeter.evidence import Prediction
from ortmeter.runtime.cuda_kernels import cuda_kernel
from ortmeter.runtime.precision import PRECISIONS, convert_precision
from ortmeter.study import to_frame
from ortmeter.timing import Comparison, Comparisons, Measurement

MODELS = ONE, MANY, CNN, ENCODER = "1-row dense", "64-row dense", "convolutions", "encoder"
STATIC, FOUR = "QDQ U8S8", "weights 4 bits int8"
USUAL = {"float16": 1.0, (FOUR, ONE): 5.0, (FOUR, MANY): 1.4, (STATIC, MANY): 3.5}
USUAL |= {"QOperator S8S8": 0.2}
ERRORS = {"float16": 5e-4, STATIC: 0.035, FOUR: 0.2}


@pytest.fixture(scope="module")
def page():
    """Names that the page defines."""
    return define_page("plot_low_precision")


def conclude(page, speeds, **others):
    """Conclude from samples."""
    return page["study"].concluded(planted(speeds, **others))


def planted(speeds, *, noise=0.01, processes=5, errors=ERRORS, refused=True, **others):
    """Make a record from samples: a speed by way, or by way and model, 3 by default."""
    rng = np.random.default_rng(0)
    groups, rows = {}, {}
    for model in MODELS:
        times = [Measurement("float32", np.full((processes, 12), 1e-3))]
        for way in PRECISIONS:
            left_out = (way == "bfloat16" and refused) or (way[0] == "w" and model == CNN)
            error = errors.get((way, model), errors.get(way, 0.03))
            casts = 16 if model == ENCODER else 2
            rows[model, way] = {"error": np.nan if left_out else error, "casts": casts}
            speed = speeds.get((way, model), speeds.get(way, 3.0))
            drawn = np.exp(noise * rng.standard_normal((processes, 1)) * np.ones(12))
            times += [] if left_out else [Measurement(way, 1e-3 / speed * drawn)]
        groups[model] = Comparison(times)
    promised = pd.DataFrame({"8 bits, at most": [4.0] * 4}, index=list(MODELS))
    usual = {"provider": "cpu", "vnni": True, "sums": pd.DataFrame({"the session is": ["exact"]})}
    facts = to_frame(rows, "model", "conversion")
    data = {"results": Comparisons(groups, "model"), "facts": facts, "promised": promised}
    data |= {"legend": "planted", **usual, **others}
    record = golden.recorded("plot_low_precision")
    return dataclasses.replace(record, data=data)


def verdicts(found):
    return [claim.verdict for claim in found.claims if isinstance(claim, Prediction)]


def believed(found):
    return found.beliefs.frame["verdict"].to_list()


def test_the_answer_says_where_8_bits_pay(page):
    speeds = USUAL | {(STATIC, CNN): 0.5, ("float16", ONE): 1.5, ("dynamic U8S8", CNN): 0.25}
    found = conclude(page, speeds, errors=ERRORS | {(STATIC, MANY): 0.012}).answer
    assert str(found).startswith("Quantize to static 8 bits, not convolutions: up to 3.5")
    # The error is that of the conversion whose speed is told.
    assert "(64-row dense, error 1.2%). float16 halves the file: faster in 1 of 4" in str(found)
    assert found.label == "8 bits: 3 of 4"
    assert [bar.label for bar in found.bars] == list(MODELS)
    assert [bar.value for bar in found.bars] == pytest.approx([3, 3.5, 0.5, 3], rel=0.05)
    assert found.warning.startswith("Dynamic 8 bits make convolutions 3.99 times slower [3.")
    assert conclude(page, USUAL).answer.warning.startswith("Count the decisions that change")
    assert "Dynamic" not in conclude(page, USUAL).answer.warning


@pytest.mark.parametrize(
    ("speed", "processes", "lead", "label"),
    [
        (3.0, 5, "Quantize to static 8 bits: up to 3.", "8 bits: 4 of 4"),
        (1.0, 5, "Keep float32: static 8 bits are within 5%. float16", "8 bits: 0 of 4"),
        (0.5, 5, "Keep float32: static 8 bits are 2.0", "8 bits: 0 of 4"),
        (3.0, 1, "Not shown here: measure yours with the command below.", "undecided"),
    ],
)
def test_the_answer_begins_with_what_to_do(page, speed, processes, lead, label):
    found = conclude(page, {STATIC: speed}, noise=0.002, processes=processes).answer
    assert str(found).startswith(lead)
    assert found.label == label
    assert bool(found.setting) == lead.startswith("Quantize")
    assert len(str(found).split()) <= 35


@needs_vnni
def test_the_setting_is_the_conversion_that_was_measured(page, tmp_path, monkeypatch):
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2, 8] X, float[8, 4] W) => (float[2, 4] Y) { Y = MatMul(X, W) }"""
    rng = np.random.default_rng(0)
    model = ortmeter.freeze_inputs(text, {"W": rng.standard_normal((8, 4), np.float32)})
    samples = [{"X": rng.standard_normal((2, 8), np.float32)} for _ in range(3)]
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "model.onnx")
    copied = {"samples": samples}
    exec(conclude(page, USUAL).answer.setting, copied)  # noqa: S102 - what a reader copies
    expected = ortmeter.make_session(convert_precision(model, STATIC, samples), provider="cpu")
    for feeds in samples:
        (got,), (same,) = (s.run(None, feeds) for s in (copied["session"], expected))
        assert np.array_equal(got, same)
        assert 0 < np.abs(got - feeds["X"] @ to_array(model.graph.initializer[0])).max() < 0.2


def test_a_speedup_has_one_interval_on_the_page(page):
    """The table, the answer, the predictions and the beliefs show the same brackets."""
    speeds = USUAL | {(STATIC, CNN): 0.5, ("dynamic U8S8", CNN): 0.25}
    data = planted(speeds)
    found = page["study"].concluded(data)
    shown = page["ways"](SimpleNamespace(**data.data))
    assert len(shown) <= 8
    shown.index = [name.rpartition(" (")[0] for name in shown.index]  # less the errors
    for claim in found.answer.claims:
        assert shown.loc["8 bits, static", claim.where["model"]] == claim.interval
    told = " ".join([*map(str, found.claims), *found.beliefs.frame["belief"]])
    assert shown.loc["8 bits, static", CNN] in told
    assert shown.loc["weights of 4 bits, inputs of 8", ONE] in told
    assert "(99.9" not in told


def test_predictions_and_beliefs(page):
    found = conclude(page, USUAL)
    assert verdicts(found) == ["right"] * 5
    assert believed(found) == ["wrong", "undecided", "right", "right", "wrong", "right"]
    fast = {"float16": 2.0, "dynamic U8S8": 6.0, (FOUR, ONE): 2.0, (FOUR, MANY): 3.0}
    assert verdicts(conclude(page, fast, errors={STATIC: 0.3}, vnni=False)) == ["wrong"] * 5
    assert verdicts(conclude(page, USUAL | {(STATIC, CNN): 1.2}))[1] == "wrong"  # too little
    assert verdicts(conclude(page, {FOUR: 0.5}))[2] == "wrong"
    assert verdicts(conclude(page, {FOUR: 2.0}))[2] == "undecided"
    slow = {"float16": 0.4, "QOperator S8S8": 3.5, STATIC: 0.5}
    found = conclude(page, slow, errors={"QOperator S8S8": 0.5}, refused=False)
    assert believed(found) == ["right", "right", "wrong", "right", "right", "wrong"]
    # Only the encoder has other casts than those of its ends.
    assert believed(conclude(page, {"float16": 0.4, ("float16", ENCODER): 2.0}))[1] == "wrong"


def test_cuda_is_expected_to_gain(page):
    assert verdicts(conclude(page, {"float16": 3.0}, provider="cuda"))[0] == "right"
    found = conclude(page, USUAL, provider="cuda")
    assert verdicts(found)[0] == "wrong"
    assert [believed(found)[rank] for rank in (0, 1, 5)] == ["undecided"] * 3
    # No product of 8 bits: nothing is promised; products of 16 bits, with more operations.
    gains = page["OPERATIONS"]["cuda"]
    assert not any(cuda_kernel(op, opset=21) for op in ("QLinearMatMul", "QLinearConv"))
    assert not cuda_kernel("MatMulInteger", opset=21, dtype=TensorProto.UINT8)
    assert cuda_kernel("MatMul", opset=21, dtype=TensorProto.FLOAT16)
    assert gains == {"16 bits": 8}


def test_sums_are_those_of_the_instructions(page):
    for vnni, kinds, verdict in (
        (False, ["saturated", "exact or saturated"], "right"),
        (True, ["exact"], "right"),
        (True, ["neither"], "wrong"),
        (False, ["exact", "saturated"], "wrong"),
        (True, ["exact or saturated"], "undecided"),
        (None, ["exact"], "undecided"),
    ):
        found = conclude(page, USUAL, sums=pd.DataFrame({"the session is": kinds}), vnni=vnni)
        *_, sums = (claim for claim in found.claims if isinstance(claim, Prediction))
        assert sums.verdict == verdict
        # Only the branch that ran is judged.
        assert ("saturate without" in sums.text, "exact with" in sums.text) == (
            vnni is False,
            vnni is not False,
        )


def test_an_int8_cnn_is_judged_on_all_the_conversions(page):
    def judge(speeds, **other):
        return conclude(page, speeds, **other).beliefs.frame.loc["#20052"]

    ways = page["EIGHT"]
    slow = {(way, CNN): 0.3 for way in ways[:2]}
    found = judge(slow)  # the static conversion is 3 times faster, two others are slow
    assert found["verdict"] == "right"
    assert f"(2 of {len(ways)} do, " in found["belief"]
    assert judge({(way, CNN): 1.0 for way in ways})["verdict"] == "wrong"
    assert judge({(way, CNN): 1 / 1.5 for way in ways}, noise=0.05)["verdict"] == "undecided"
    assert judge(slow, processes=2)["verdict"] == "undecided"


def test_pairs_saturate(page):
    for x, w, expected in (
        ([255, 255], [127, 127], 32767),  # 64770
        ([255, 255], [-128, -128], -32768),  # -65280
        ([129, 129], [127, 127], 32766),  # the largest sum that fits
        ([255, 0, 255, 0], [127, 0, 127, 0], 2 * 255 * 127),  # no pair is full
    ):
        assert page["saturate"](np.uint8([x]), np.int8(w)[:, None]).tolist() == [[expected]]


def test_the_roundings_are_those_of_normal_numbers(page):
    x = np.random.default_rng(0).standard_normal((2**14, 32))
    block = np.abs(x).max(axis=1, keepdims=True) / 8
    rounded = {
        "float16": x.astype(np.float16).astype(float),
        STATIC: np.round(x * 127 / 4).clip(-127, 127) * 4 / 127,
        FOUR: np.round(x / block).clip(-8, 7) * block,
    }
    for way, (expected, _) in page["ROUNDINGS"].items():
        assert np.sqrt(np.mean((rounded[way] - x) ** 2)) == pytest.approx(expected, rel=0.15)


def test_a_fast_run_finds_what_theory_says():
    data = run_page("plot_low_precision")["study"].data
    errors = data.facts["error"].unstack()  # noqa: PD010 - one value each
    assert (errors["float32"] < 1e-5).all()
    assert (errors["float32"] < errors["float16"] / 50).all()
    assert (errors["float16"] < errors[STATIC] / 20).all()
    assert data.sums["error if saturated (%)"].gt(0).tolist() == [True, True, False]
    assert data.sums.loc["largest", "the session is"] in {"exact", "saturated"}
    # One row reads each weight for two operations: bytes decide.
    promised = data.promised.loc[ONE, ["16 bits, at most", "4 bits, at most"]]
    assert promised.tolist() == pytest.approx([2, 64 / 9])
    assert (data.promised.loc[CNN, ["16 bits, at most", "4 bits, at most"]] == 1).all()
