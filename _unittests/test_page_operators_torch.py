"""The page that compares onnxruntime with torch, on planted times."""

import itertools

import numpy as np
import pandas as pd
import pytest
from page_runner import define_page

from ortmeter.observatory.matrix import AGAIN, ROWS

ORDER = ["torch 2", "onnxruntime 1"]
# Case, family, operator, times of torch and of onnxruntime (µs).
PLANTED = (
    ("Relu-f32-L1", "one element at a time", "Relu", 1.0, 3.0),
    ("Exp-f32-L2", "one element at a time", "Exp", 60.0, 20.0),
    ("Add-f32-L3", "one element at a time", "Add", 100.0, 100.0),
    ("MatMul-f32-L2", "products", "MatMul", 40.0, 40.0),
    ("Round-f16-L2", "one element at a time", "Round", 5.0, 400.0),
)


@pytest.fixture(scope="module")
def page():
    """Names that the page defines."""
    return define_page("plot_operators_torch")


def plant(rows=PLANTED, noise=0.002, processes=6):
    """Times that have these medians; a process is slower or faster than another."""
    rng = np.random.default_rng(0)
    found = []
    for place in itertools.product((1, 2), range(2), range(processes)):
        shared = np.exp(0.2 * rng.standard_normal())
        for case, _, _, torch, ort in rows:
            drawn = np.exp(noise * rng.standard_normal(3)) * shared
            found.append((*place, case, *(drawn * (torch, ort, ort))))
    times = pd.DataFrame(found, columns=[*ROWS, *ORDER, ORDER[1] + AGAIN])
    about = pd.DataFrame([row[:3] for row in rows], columns=["case", "family", "op"])
    return {"times": times, "about": about.assign(obstacle=""), "order": ORDER, "added": 1.0}


@pytest.fixture(scope="module")
def cells(page):
    return page["of_one_thread"](page["compare"](plant()))


def test_the_answer_names_the_largest_loss_and_gain(page, cells):
    found = page["answer"](cells)
    assert str(found).startswith(
        "On one thread, onnxruntime is slower than torch eager in 2 of 5 cases, most for "
        "Round-f16-L2 (80."
    )
    assert "and faster in 1, most for Exp-f32-L2 (3.0 times); 2 are undecided." in str(found)
    assert found.label == "2 slower"
    assert [bar.value for bar in found.bars] == [2, 1, 2]


@pytest.mark.parametrize(
    ("torch", "ort", "expected"),
    [
        (10.0, 10.0, "in 0 of 1 cases, and faster in 0; 1 are undecided."),
        (10.0, 20.0, "in 1 of 1 cases, most for A-f32-L2 (2.0 times), and faster in 0; 0"),
        (20.0, 10.0, "in 0 of 1 cases, and faster in 1, most for A-f32-L2 (2.0 times); 0"),
    ],
)
def test_the_answer_says_it_when_there_is_no_loss_or_no_gain(page, torch, ort, expected):
    data = plant([("A-f32-L2", "movement", "A", torch, ort)])
    found = page["of_one_thread"](page["compare"](data))
    assert expected in str(page["answer"](found))


def test_predictions_are_judged_by_most_cases(page, cells):
    verdicts = [claim.verdict for claim in page["predictions"](cells)]
    assert verdicts == ["right", "right", "right", "right"]
    opposite = [(case, family, op, ort, torch * 1.5) for case, family, op, torch, ort in PLANTED]
    found = page["of_one_thread"](page["compare"](plant(opposite)))
    verdicts = [claim.verdict for claim in page["predictions"](found)]
    assert verdicts == ["wrong", "wrong", "wrong", "wrong"]


def test_a_prediction_without_cases_is_undecided(page):
    found = page["of_one_thread"](page["compare"](plant(PLANTED[1:2])))
    assert {claim.verdict for claim in page["predictions"](found)} == {"undecided"}


def test_equal_contenders_have_no_claim(page):
    same = [(f"A-{i}-f32-L2", "movement", "A", 10.0, 10.0) for i in range(40)]
    data = plant(same, noise=0.05)
    assert page["false_claims"](data) == (0, 80)
    assert not page["compare"](data)["verdict"].isin(["faster", "slower"]).any()


def test_the_control_counts_false_claims(page):
    data = plant()
    data["times"][ORDER[1] + AGAIN] *= 2
    assert page["false_claims"](data) == (10, 10)


def test_families_count_each_verdict(page):
    found = page["tabulate_families"](page["compare"](plant()))
    row = found.loc[("one element at a time", 1)]
    assert row[["cases", "slower", "faster", "undecided"]].tolist() == [4, 2, 1, 1]
    assert found.loc[("products", 2), "undecided"] == 1


def test_what_our_kernels_add_counts_where_torch_is_short(page, cells):
    (found,) = page["limits"](plant(), cells)
    assert "more than 5% of its time in 2 of 5 cases: those below 20 µs" in str(found)


def test_the_sample_is_in_the_catalogue(page):
    assert len(page["choose_cases"]("sample")) == len(page["SAMPLE"])
    assert set(page["choose_cases"]("Softmax")) < set(page["choose_cases"]("all"))


def test_errors_are_weighed_beside_the_verdicts(page, cells):
    ulps = {"Exp-f32-L2": (0.5, 2.0), "Relu-f32-L1": (0.0, 0.5), "Round-f16-L2": (0.0, 1.5)}
    errors = pd.DataFrame(
        [
            {"case": case, "contender": who, "largest": ulp}
            for case, pair in ulps.items()
            for who, ulp in zip(ORDER, pair, strict=True)
        ]
    )
    faster, slower = page["weigh"](cells, page["tabulate_cases"](cells, errors, ORDER))
    assert str(faster).startswith("of 1 cases that onnxruntime runs faster")
    assert str(faster).endswith("in 1")
    assert str(slower).startswith("of 2 cases that onnxruntime runs slower")
    assert str(slower).endswith("in 1")  # 0.5 ulp is what rounding gives
