"""The page that compares ONNX Runtime with torch on four models, on planted times."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest
from page_runner import define_page

from ortmeter.study.records import Record
from ortmeter.timing import Comparison, Comparisons, Measurement

# Case: ms of eager, of onnxruntime, of session.run.
USUAL = {
    "CNN, 1": (1.0, 0.25, 0.25),
    "CNN, 32": (25.0, 6.0, 6.0),
    "encoder, 1": (0.8, 0.4, 0.4),
    "encoder, 32": (20.0, 20.0, 20.0),
    "decoder, 1": (0.5, 0.2, 0.2),
    "decoder, 32": (4.0, 2.8, 2.8),
    "forest, 1": (4.0, 0.01, 0.01),
    "forest, 1000": (7.0, 3.0, 3.0),
}


@pytest.fixture(scope="module")
def page():
    """Names that the page defines."""
    return define_page("plot_torch_or_onnxruntime")


def plant(times=USUAL, noise=0.01, processes=8):
    rng = np.random.default_rng(0)
    names = ("eager", "onnxruntime", "session.run")

    def draw(ms):
        return 1e-3 * ms * np.exp(noise * rng.standard_normal((processes, 4)))

    return Comparisons(
        {
            case: Comparison(Measurement(n, draw(t)) for n, t in zip(names, row, strict=True))
            for case, row in times.items()
        },
        "case",
    )


def plant_kinds(rows, noise=0.01):
    """Rows of case, kind, ms of eager, ms of onnxruntime, for 4 processes of 2 turns."""
    rng = np.random.default_rng(1)
    found = [
        (case, process, turn, kind, *(1e-3 * np.exp(noise * rng.standard_normal(2)) * (a, b)))
        for (case, kind, a, b), process, turn in itertools.product(rows, range(4), range(2))
    ]
    columns = ["case", "process", "turn", "kind", "eager", "onnxruntime"]
    return pd.DataFrame(found, columns=columns)


KINDS = (
    ("CNN, 1", "convolution", 0.8, 0.22),
    ("CNN, 1", "normalization", 0.1, 0.0),
    ("CNN, 1", "outside", 0.1, 0.03),
    ("CNN, 32", "convolution", 9.0, 5.5),
    ("CNN, 32", "outside", 1.0, 0.5),
    ("encoder, 1", "matrix product", 0.7, 0.3),
    ("encoder, 1", "outside", 0.1, 0.1),
    ("encoder, 32", "matrix product", 20.0, 20.0),
    ("decoder, 1", "matrix product", 0.2, 0.1),
    ("decoder, 1", "outside", 0.3, 0.1),
    ("decoder, 32", "attention", 4.0, 2.8),
)


@pytest.fixture(scope="module")
def kinds():
    return plant_kinds(KINDS)


def errors(ratio=1.5):
    cases = list(USUAL)
    tree = [case.startswith("forest") for case in cases]
    eager = np.where(tree, 0.0, 1e-8)
    ours = np.where(tree, 1e-7, ratio * 1e-8)
    return pd.DataFrame({"case": cases, "eager": eager, "onnxruntime": ours, "tolerance": 1e-5})


def with_times(**changes):
    """Plant times, where a name such as ``CNN_32`` stands for a case."""
    return plant(USUAL | {name.replace("_", ", "): row for name, row in changes.items()})


def test_the_answer_counts_cases_and_names_the_largest_gain_with_its_cause(page, kinds):
    found = page["answer"](plant(), kinds)
    assert str(found).startswith(
        "No, in none of 6 cases: it is faster in 5, neither in 1. Largest gain: CNN, batch 32, 4.1"
    )
    assert "(memory: 79% of the gap)" in str(found)
    assert len(str(found).split()) <= 60
    assert found.label == "5 of 6 faster"
    assert [bar.label for bar in found.bars] == ["torch eager", "CNN", "encoder", "decoder"]
    assert found.axis == "speedup of ONNX Runtime over torch, batch 32"


def test_the_answer_names_a_loss_and_its_operator(page):
    rows = [row for row in KINDS if row[0] != "encoder, 32"]
    rows += [("encoder, 32", "matrix product", 15.0, 39.0), ("encoder, 32", "outside", 5.0, 1.0)]
    found = page["answer"](with_times(encoder_32=(20.0, 40.0, 40.0)), plant_kinds(rows))
    assert str(found).startswith("Yes, in 1 of 6 cases: it is faster in 5. Largest gain: CNN, ")
    assert "Largest loss: encoder, batch 32, 2.0" in str(found)
    assert "(matrix product: 120% of the gap)" in str(found)
    assert len(str(found).split()) <= 60


def test_no_operator_is_named_when_none_is_sure(page):
    noisy = plant_kinds(KINDS, noise=3.0)
    assert "no operator is sure to explain it" in str(page["answer"](plant(), noisy))
    large = plant_kinds([("CNN, 32", "convolution", 20.0, 4.0)], noise=1.0)
    small = plant_kinds([("CNN, 32", "normalization", 1.0, 0.0)])
    both = pd.concat([large, small])
    assert page["main_cause"](plant(), both, "CNN, 32").startswith("no operator")
    undecided = page["answer"](plant(processes=2), noisy)
    assert str(undecided) == ("Not shown in any of 6 cases: it is faster in 0, neither in 6.")


def test_parts_add_up_to_the_difference(page, kinds):
    found, gap = page["explain"](plant(), kinds, "CNN, 32")
    assert gap == pytest.approx(19e-3, rel=0.02)
    assert found["difference"].sum() == pytest.approx(gap)
    assert found.loc["convolution", "difference"] == pytest.approx(3.5e-3, rel=0.05)
    memory = found.loc["memory"]
    assert memory["difference"] == pytest.approx(15e-3, rel=0.05)
    assert memory["low"] < 15e-3 < memory["high"]
    shown = page["tabulate_kinds"](plant(), kinds)
    assert shown.loc["convolution", "CNN, 32"].startswith("+14 ± ")
    assert shown.loc["all", "CNN, 32"] == "+76"
    assert shown.loc["explained", "CNN, 32"] == "97%"
    assert list(shown.index[-4:]) == ["outside", "memory", "all", "explained"]
    assert "forest, 1" not in shown


def test_bars_are_shares_of_eager(page, kinds):
    found = page["share_times"](kinds)
    assert found.loc["CNN, 1, eager"].sum() == pytest.approx(100)
    assert found.loc["CNN, 1, onnxruntime", "convolution"] == pytest.approx(22, rel=0.05)
    assert found.columns[-1] == "outside"


def test_predictions_are_judged(page, kinds):
    def verdicts(results, own=None, kinds=kinds):
        claims = page["conclude"](results, kinds, errors() if own is None else own)[1]
        return [claim.verdict for claim in claims]

    fused = [("CNN, 1", "elementwise", 0.9, 0.2), ("CNN, 32", "normalization", 24.0, 6.0)]
    assert verdicts(plant(), kinds=plant_kinds(fused)) == ["right"] * 5
    assert verdicts(plant())[1] == "wrong"  # faster, but by its convolutions
    half = [("CNN, 1", "elementwise", 0.4, 0.02), ("CNN, 32", "normalization", 24.0, 6.0)]
    assert verdicts(plant(), kinds=plant_kinds(half, noise=0.05))[1] == "undecided"
    wrong = with_times(
        decoder_1=(0.2, 0.5, 0.5),
        CNN_32=(6.0, 6.0, 6.0),
        encoder_32=(20.0, 10.0, 10.0),
        forest_1=(4.0, 3.0, 3.0),
    )
    assert verdicts(wrong, errors(2.5)) == ["wrong"] * 5
    assert verdicts(plant(noise=2.0))[:4] == ["undecided"] * 4
    assert verdicts(plant(processes=2))[:4] == ["undecided"] * 4


def test_a_model_that_is_not_run_is_undecided(page, kinds):
    few = plant({case: USUAL[case] for case in ("decoder, 1", "forest, 1", "forest, 1000")})
    assert page["judge_fused"](few, kinds).verdict == "undecided"
    assert "(not run)" in str(page["judge_products"](few))
    assert page["answer"](few, plant_kinds(KINDS)).label == "1 of 1 faster"
    alone = plant({"forest, 1": USUAL["forest, 1"]})
    assert page["judge_forest"](alone).verdict == "undecided"
    assert page["answer"](alone, kinds).bars == ()


def beliefs(page, results, provider="cpu"):
    return {name: claim.verdict for name, claim in page["judge_beliefs"](results, provider).items()}


def test_beliefs_are_judged(page):
    assert beliefs(page, plant()) == {
        "#10303": "undecided",  # it is on a GPU
        "#8166": "wrong",
        "#14326": "wrong",
        "#13105": "wrong",
        "#827": "wrong",
    }
    true = with_times(
        CNN_1=(1.0, 5.0, 9.0),
        CNN_32=(5.0, 25.0, 50.0),
        decoder_1=(0.2, 0.5, 0.5),
        decoder_32=(2.0, 5.0, 5.0),
        forest_1000=(3.0, 9.0, 9.0),
    )
    names = ("#8166", "#13105", "#827")
    assert beliefs(page, true) == {"#10303": "undecided", "#14326": "right"} | dict.fromkeys(
        names, "right"
    )
    on_cuda = beliefs(page, true, "cuda")
    assert (on_cuda["#10303"], on_cuda["#14326"]) == ("right", "undecided")
    assert beliefs(page, plant(), "cuda")["#10303"] == "wrong"
    assert set(beliefs(page, plant(processes=2)).values()) == {"undecided"}


def test_calls_that_pay_for_an_export(page):
    exports = {"CNN": 3.0, "encoder": 2.0, "forest": 0.2}
    slow = with_times(encoder_1=(0.4, 0.8, 0.8))
    found = page["tabulate_exports"](slow, exports)["calls"]
    assert found["CNN"] == pytest.approx(3.0 / 0.75e-3, rel=0.03)
    assert found["encoder"] == "never"
    assert page["tabulate_exports"](plant(noise=2.0), exports)["calls"]["CNN"] == "undecided"


def test_a_record_shows_the_same_again(page, kinds):
    data = {"results": plant(), "kinds": kinds, "errors": errors(), "legend": "here"}
    data |= {"exports": {"CNN": 3.0}, "provider": "cpu"}
    kept = page["record"](page["PAGE"], page["args"], page["provider"], data)
    again = Record.from_dict(json.loads(kept.to_json()))
    shown = list(page["report"](again))
    assert len(shown) == 6
    assert str(page["conclusion"](kept).answer).endswith(str(shown[3].answer))
    latencies = shown[0].frame
    assert latencies.loc["CNN, 32", "eager"] == pytest.approx(25, rel=0.02)
    assert latencies.loc["CNN, 32", "kept"] == pytest.approx(10, rel=0.02)
    assert np.isnan(latencies.loc["forest, 1", "kept"])


def test_inductor_has_its_columns(page, kinds):
    group = plant()["CNN, 1"]
    more = [*group.values(), Measurement("inductor", 2 * group["onnxruntime"].seconds)]
    results = Comparisons({**plant(), "CNN, 1": Comparison(more)}, "case")
    found = page["summarize"](results, kinds)
    columns = ["eager", "kept", "onnxruntime", "inductor", "over eager", "over inductor"]
    assert set(found.columns) == set(columns)
    assert found.loc["CNN, 1", "over inductor"] == "2.00 [2.00, 2.00]"
