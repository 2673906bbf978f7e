"""The page that compares onnxruntime with torch, on planted times."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from golden import recorded
from page_runner import define_page

TORCH, ORT = "torch 2", "onnxruntime 1"
UNARY = "one element at a time"
PLANTED = pd.DataFrame(
    [
        ("Relu-f32-L1", UNARY, "Relu", 1.0, 3.0, 0.0, 0.5),
        ("Exp-f32-L2", UNARY, "Exp", 60.0, 20.0, 0.5, 2.0),
        ("Add-f32-L3", UNARY, "Add", 100.0, 100.0, 0.0, 0.0),
        ("MatMul-f32-L2", "products", "MatMul", 40.0, 40.0, 0.0, 0.0),
        ("Round-f16-L2", UNARY, "Round", 5.0, 400.0, 0.0, 1.5),
    ],
    # Times in µs, and largest errors in ulp.
    columns=["case", "family", "op", TORCH, ORT, "torch (ulp)", "ort (ulp)"],
)


@pytest.fixture(scope="module")
def page():
    """Names that the page defines."""
    return define_page("plot_operators_torch")


def plant(rows=PLANTED, processes=6):
    """Times that have these medians."""
    axes = {"threads": (1, 2), "pass": range(2), "process": range(processes), "case": rows["case"]}
    times = pd.DataFrame(itertools.product(*axes.values()), columns=list(axes))
    times = times.merge(rows[["case", TORCH, ORT]]).assign(**{f"{ORT}, again": lambda t: t[ORT]})
    times.iloc[:, 4:] *= np.exp(2e-4 * np.random.default_rng(0).standard_normal((len(times), 3)))
    ulps = rows[["case", "torch (ulp)", "ort (ulp)"]].set_axis(["case", TORCH, ORT], axis=1)
    errors = ulps.melt("case", var_name="candidate", value_name="largest")
    data = {"times": times, "about": rows[["case", "family", "op"]], "errors": errors}
    return data | {"order": [TORCH, ORT], "added": 1.0, "how": "planted", "legend": "planted"}


def conclude(page, data):
    return page["study"].concluded(dataclasses.replace(recorded("plot_operators_torch"), data=data))


@pytest.mark.parametrize(
    ("data", "label", "bars", "lead"),
    [
        (
            plant(),
            "2 slower",
            [2, 1, 2],
            "No overall winner: look up your slow operators. Of 5 cases",
        ),
        (
            plant(PLANTED[1:2]),
            "0 slower",
            [0, 1, 0],
            "Keep ONNX Runtime: no operator is shown to be slower. Of 1",
        ),
        (plant(PLANTED[2:4]), "0 slower", [0, 0, 2], "Not shown here: measure yours"),
        (plant(processes=2), "undecided", [0, 0, 5], "Not shown here: measure yours"),
    ],
    ids=["both", "faster", "equal", "too few"],
)
def test_the_answer_counts_what_is_shown(page, data, label, bars, lead):
    answer = conclude(page, data).answer
    assert answer.label == label
    assert [bar.value for bar in answer.bars] == bars
    assert str(answer).startswith(lead)
    assert len(str(answer).split()) <= 35


def test_the_answer_names_the_largest_loss_and_gain(page):
    answer = conclude(page, plant()).answer
    assert "slower in 2, up to 80" in str(answer)
    assert str(answer).endswith("times (Round, float16); faster in 1.")
    assert answer.small_print.endswith("more than 5% of its time in 2 of 5 cases")  # 1 and 5 µs


def test_predictions_are_judged_by_most_cases(page):
    opposite = PLANTED.assign(**{TORCH: PLANTED[ORT], ORT: 1.5 * PLANTED[TORCH]})
    no_case = PLANTED[1:2]
    for rows, verdict in ((PLANTED, "right"), (opposite, "wrong"), (no_case, "undecided")):
        *claims, _ = conclude(page, plant(rows)).claims
        assert [claim.verdict for claim in claims] == [verdict] * 4


def test_the_control_counts_false_claims(page):
    data = plant()
    data["times"][f"{ORT}, again"] *= 2
    assert "10 false claims in 10 cells" in str(conclude(page, data).claims[-1])


def test_tables_count_verdicts_and_errors(page):
    data = SimpleNamespace(**plant())
    columns = ["cases", "slower", "faster", "undecided"]
    assert page["families"](data).loc[(1, UNARY), columns].tolist() == [4, 2, 1, 1]
    # Half an ulp is what rounding gives: no loss of Relu.
    found = page["accuracy"](data).T.to_dict("list")
    assert found == {"faster": [1, 1], "slower": [2, 1], "undecided": [2, 0]}


def test_cases_are_chosen_by_a_text(page):
    choose = page["choose_cases"]
    assert len(choose("sample")) == len(page["SAMPLE"].split())
    assert set() < set(choose("Softmax")) < set(choose("all"))
