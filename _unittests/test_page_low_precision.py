"""The page on 16 and 8 bits, on planted samples."""

import numpy as np
import pandas as pd
import pytest
from onnx import TensorProto
from page_runner import define_page, run_page

import ortmeter
from ortmeter.runtime.cuda_kernels import cuda_kernel
from ortmeter.runtime.precision import PRECISIONS, convert_precision
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session
from ortmeter.timing import Comparison, Comparisons, Measurement

ONE, MANY, CNN, ENCODER = "1-row dense", "64-row dense", "convolutions", "encoder"
MODELS = (ONE, MANY, CNN, ENCODER)
ERRORS = {"float16": 5e-4, "QDQ U8S8": 0.035, "weights 4 bits int8": 0.2}


@pytest.fixture(scope="module")
def page():
    """Names that the page defines."""
    return define_page("plot_low_precision")


def plant(speeds=None, *, noise=0.01, processes=5, errors=None, casts=16, refused=True, **others):
    """Latencies of each way and model, and what is known of them.

    *speeds* has a number by way, or by way and model; other ways are 3 times faster.
    """
    rng = np.random.default_rng(0)
    groups, rows = {}, {}
    for model in MODELS:
        times = {}
        for way in ("float32", *PRECISIONS):
            row = {"size (MiB)": 1.0, "error": 0.03, "casts": 0, "why not": None}
            row["error"] = (ERRORS | (errors or {})).get(way, 0.03)
            row["casts"] = casts if way == "float16" else 0
            rows[model, way] = row
            if way == "bfloat16" and refused:
                row |= {"error": np.nan, "why not": "no kernel"}
                continue
            if way.startswith("weights") and model == CNN:
                row |= {"error": np.nan, "why not": "nothing to convert"}
                continue
            usual = {"float32": 1.0, "float16": 1.0}.get(way, 3.0)
            speed = (speeds or {}).get((way, model), (speeds or {}).get(way, usual))
            spread = noise if np.isscalar(noise) else noise.get(model, 0.01)
            drawn = np.exp(spread * rng.standard_normal((processes, 1)) * np.ones(12))
            times[way] = Measurement(way, 1e-3 / speed * drawn)
        groups[model] = Comparison(times.values())
    facts = pd.DataFrame.from_dict(rows, orient="index")
    facts.index = facts.index.set_names(["model", "conversion"])
    promised = pd.DataFrame({"8 bits, at most": [4.0] * 4}, index=list(MODELS))
    sums = pd.DataFrame({"the session is": ["exact", "exact", "exact or saturated"]})
    usual = {"provider": "cpu", "vnni": True, "sums": sums, "promised": promised}
    return {"results": Comparisons(groups, "model"), "facts": facts, **usual, **others}


def verdicts(page, data):
    _, claims = page["conclude"](data)
    return [claim.verdict for claim in claims]


def believed(page, data):
    return {name: claim.verdict for name, claim in page["judge_beliefs"](data).items()}


FOUR = "weights 4 bits int8"
USUAL = {(FOUR, ONE): 5.0, (FOUR, MANY): 1.4, ("QDQ U8S8", MANY): 3.5, "QOperator S8S8": 0.2}


def test_the_answer_says_where_8_bits_pay(page):
    slow = {("QDQ U8S8", CNN): 0.5, "float16": 0.8, ("float16", ONE): 1.5}
    found = page["answer"](plant(USUAL | slow))
    assert str(found) == (
        "8 bits (QDQ U8S8) are 3 to 3.5 times faster on 1-row dense, 64-row dense and "
        "encoder, 2 times slower on convolutions, with an error of 3.5% at most. float16 halves "
        "the file, with an error of 0.05%, and is faster on 1 of 4 models, slower on 3."
    )
    assert found.label == "8 bits: 3 of 4"
    assert [bar.label for bar in found.bars] == list(MODELS)
    assert found.bars[2].value == pytest.approx(0.5, rel=0.05)
    assert len(str(found).split()) <= 60


def test_the_answer_says_what_is_not_known(page):
    same = {("QDQ U8S8", ONE): 1.02, ("QDQ U8S8", MANY): 1.0}
    found = str(page["answer"](plant(same, noise=0.002)))
    assert "as fast within 5% on 64-row dense" in found
    found = page["answer"](plant(processes=1))
    assert "undecided on 1-row dense, 64-row dense, convolutions and encoder" in str(found)
    assert found.label == "8 bits: 0 of 4"


def test_predictions(page):
    assert verdicts(page, plant(USUAL)) == ["right"] * 5
    fast = {"float16": 2.0, "dynamic U8S8": 6.0, (FOUR, ONE): 2.0, (FOUR, MANY): 3.0}
    wrong = plant(fast, errors={"QDQ U8S8": 0.3}, vnni=False)
    assert verdicts(page, wrong) == ["wrong"] * 5
    unknown = plant(USUAL, processes=1, vnni=None)
    assert verdicts(page, unknown) == ["undecided"] * 3 + ["right", "undecided"]


def test_the_roundings_are_those_of_normal_numbers(page):
    x = np.random.default_rng(0).standard_normal((2**14, 32))
    block = np.abs(x).max(axis=1, keepdims=True) / 8
    rounded = {
        "float16": x.astype(np.float16).astype(float),
        "QDQ U8S8": np.round(x * 127 / 4).clip(-127, 127) * 4 / 127,
        FOUR: np.round(x / block).clip(-8, 7) * block,
    }
    for way, (expected, _) in page["ROUNDINGS"].items():
        assert np.sqrt(np.mean((rounded[way] - x) ** 2)) == pytest.approx(expected, rel=0.15)


def test_8_bits_that_gain_too_little_are_told(page):
    claim = page["judge_eight"](plant({("QDQ U8S8", CNN): 1.2}))
    assert claim.verdict == "wrong"
    assert "lowest: 1.2" in str(claim)
    assert "on convolutions)" in str(claim)


def test_weights_that_do_not_pay_with_one_row(page):
    assert page["judge_rows"](plant({FOUR: 0.5})).verdict == "wrong"
    assert page["judge_rows"](plant({FOUR: 2.0})).verdict == "undecided"
    for noisy in (ONE, MANY):  # too wide for an interval
        found = page["judge_rows"](plant(USUAL, noise={noisy: 4.0}))
        assert found.verdict == "undecided"
        assert "no interval" in str(found)


@pytest.mark.parametrize(
    ("vnni", "kinds", "verdict"),
    [
        (True, ["exact", "exact or saturated"], "right"),
        (False, ["saturated", "exact or saturated"], "right"),
        (True, ["saturated"], "wrong"),
        (False, ["exact"], "wrong"),
        (False, ["exact", "saturated"], "wrong"),
        (True, ["neither"], "wrong"),
        (True, ["exact or saturated"], "undecided"),
        (None, ["exact"], "undecided"),
    ],
)
def test_sums_are_those_of_the_instructions(page, vnni, kinds, verdict):
    sums = pd.DataFrame({"the session is": kinds})
    assert page["judge_sums"](plant(sums=sums, vnni=vnni)).verdict == verdict


def test_cuda_is_expected_to_gain(page):
    assert page["judge_half"](plant({"float16": 3.0}, provider="cuda")).verdict == "right"
    assert page["judge_half"](plant(provider="cuda")).verdict == "wrong"
    found = believed(page, plant(USUAL, provider="cuda"))
    assert [found[name] for name in ("#16778", "#25824", "#26311")] == ["undecided"] * 3


def test_beliefs_are_judged(page):
    assert believed(page, plant(USUAL)) == {
        "#16778": "wrong",
        "#25824": "undecided",
        "#6732": "right",
        "#20052": "wrong",
        "#12072": "wrong",
        "#26311": "right",
    }
    slow = {"float16": 0.4, "QOperator S8S8": 3.5, "QDQ U8S8": 0.5}
    assert believed(page, plant(slow, errors={"QOperator S8S8": 0.5}, refused=False)) == {
        "#16778": "right",
        "#25824": "right",
        "#6732": "wrong",
        "#20052": "right",
        "#12072": "right",
        "#26311": "wrong",
    }


def test_casts_of_the_ends_are_no_reason(page):
    data = plant({"float16": 0.5}, casts=2)
    assert believed(page, data)["#25824"] == "undecided"


def test_sums_are_named(page):
    exact, saturated = np.int32([[4, 5]]), np.int32([[4, 3]])
    name = page["name_sums"]
    assert name(exact, exact=exact, saturated=saturated) == "exact"
    assert name(saturated, exact=exact, saturated=saturated) == "saturated"
    assert name(exact, exact=exact, saturated=exact) == "exact or saturated"
    assert name(exact + 1, exact=exact, saturated=saturated) == "neither"


def test_pairs_are_drawn_in_their_types(page):
    page = {**page}
    page["draw_pairs"].__globals__["rng"] = np.random.default_rng(0)
    for x, w in page["draw_pairs"]().values():
        assert 0 <= x.min() <= x.max() <= 255
        assert -128 <= w.min() <= w.max() <= 127


def test_the_roofline(page):
    """Bytes bound the first, operations the second."""

    class Peaks:
        def least_seconds(self, flop, moved):
            return np.maximum(flop, moved) / 1e3

    gains = {"16 bits": 1, "8 bits": 4, "4 bits": 1}
    found = page["predict"](10, 1000, Peaks(), gains)
    assert found["at least (ms)"] == 1000
    assert [found[f"{bits}, at most"] for bits in gains] == [2, 4, pytest.approx(64 / 9)]
    found = page["predict"](1000, 10, Peaks(), gains)
    assert [found[f"{bits}, at most"] for bits in gains] == [1, 4, 1]


def test_cuda_has_the_kernels_that_the_prediction_counts_on(page):
    """No product of 8 bits: nothing is promised; products of 16 bits, with more operations."""
    gains = page["OPERATIONS"]["cuda"]
    assert not any(cuda_kernel(op, opset=21) for op in ("QLinearMatMul", "QLinearConv"))
    assert not cuda_kernel("MatMulInteger", opset=21, dtype=TensorProto.UINT8)
    assert gains["8 bits"] == 1
    for dtype in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        assert cuda_kernel("MatMul", opset=21, dtype=dtype)
    assert gains["16 bits"] > 1


def test_sessions_get_the_provider(page, monkeypatch):
    asked = {"provider": Provider("cuda", 0), "threads": 1}
    given = []
    monkeypatch.setitem(page, "SETTINGS", asked)
    monkeypatch.setitem(page, "inputs", {"m": "feeds"})
    monkeypatch.setitem(
        page, "described", {("m", "float16"): ({}, "model"), ("m", "no"): ({}, None)}
    )
    monkeypatch.setattr(ortmeter, "session_candidate", lambda *args, **kwargs: (args, kwargs))
    monkeypatch.setattr(ortmeter, "make_session", lambda *args, **kwargs: given.append(kwargs))
    monkeypatch.setitem(page, "run_session", lambda session, feeds: {"Y": 1})
    assert page["make_group"]("m") == {"float16": (("model", "feeds"), asked)}
    assert page["run"]("model", {}) == 1
    assert given == [asked]


def test_a_fast_run_finds_what_theory_says():
    ran = run_page("plot_low_precision")
    assert (ran["product"]["share of the bound"].dropna() <= 1).all()
    errors = ran["facts"]["error"].unstack()  # noqa: PD010 - one value each
    assert (errors["float32"] < 1e-5).all()
    assert (errors["float32"] < errors["float16"] / 50).all()
    assert (errors["float16"] < errors["QDQ U8S8"] / 20).all()
    assert ran["overflows"].loc["encoder", "operator"] == "Pow"
    assert ran["sums"].loc["largest", "pairs that do not fit (%)"] == 100
    assert ran["sums"].loc["uniform, 7 bits", "pairs that do not fit (%)"] == 0
    assert ran["sums"].loc["largest", "the session is"] in {"exact", "saturated"}


@pytest.mark.cuda
@pytest.mark.parametrize("way", ["float16", "bfloat16", "QDQ U8S8"])
def test_ways_run_on_cuda(page, way):
    model, shape = ran_model()
    feeds = {"A0": np.ones(shape, np.float32)}
    session = make_session(convert_precision(model, way, [feeds]), provider="cuda")
    assert np.isfinite(session.run(None, feeds)[0]).all()


def ran_model():
    ran = run_page("plot_low_precision")
    return ran["SHAPES"][ONE]
