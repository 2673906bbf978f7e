"""The conclusion of the page on parallelized reductions follows its tables."""

import numpy as np
import pandas as pd
import pytest
from page_runner import run_page


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran."""
    return run_page("plot_parallelized_reduction")


SPREADS = {"naive": 100.0, "blocked": 20.0, "pairwise": 10.0, "kahan": 2.0, "exact": 0.0}


def planted_sums(sizes=(16, 256), types=("float32", "float16"), **changes):
    """One row per type, size and summation; the last size has ten times the spread."""
    rows = [
        {
            "type": name,
            "law": "normal",
            "size": size,
            "candidate": candidate,
            "spread": spread * (1 if size == sizes[0] else 10),
            "bound": 1e6,
            "share": 0.25,
            "walk": 0.5,
            "worst": "random",
            "overflows": 0,
            "orders": 128,
        }
        for name in types
        for size in sizes
        for candidate, spread in SPREADS.items()
    ]
    return pd.DataFrame(rows).assign(**changes)


def planted_libraries(**changes):
    rows = [
        {
            "type": "float32",
            "law": "normal",
            "size": size,
            "candidate": f"torch, threads={threads}",
            "library": "torch",
            "threads": threads,
            "result": result,
            "spread": size / 8 if result == "mean" else 0.0,
            "bound": 1e6,
            "share": 0.5,
            "repeatable": True,
            "as first": True,
        }
        for size in (64, 512)
        for threads in (1, 2)
        for result in ("mean", "layer norm")
    ]
    return pd.DataFrame(rows).assign(**changes)


def at(table, **values):
    """Select rows."""
    chosen = np.ones(len(table), bool)
    for column, value in values.items():
        chosen &= table[column] == value
    return chosen


def test_the_tables_of_the_page_have_the_columns_planted_here(page):
    assert set(page["sums"].columns) == set(planted_sums().columns)
    assert set(planted_libraries().columns) <= set(page["libraries"].columns)
    assert set(page["sums"]["candidate"]) == set(SPREADS)


def test_everything_is_said_in_one_list(page):
    sentences = page["conclude"](planted_sums(), planted_libraries())
    assert sentences[0].startswith("simulated sums: all 20 are within their bound")
    assert "uses 25% of it" in sentences[0]
    assert sentences[1].startswith("results of libraries: all 8 are within their bound")
    assert "uses 50% of it" in sentences[1]
    assert all(sentence.endswith(".") for sentence in sentences)


def test_a_sum_beyond_its_bound_is_said(page):
    sums = planted_sums()
    sums.loc[at(sums, candidate="kahan", size=256, type="float16"), "share"] = 1.5
    sums.loc[at(sums, candidate="naive", size=16, type="float16"), "share"] = 1.1
    assert page["judge_bounds"](sums, "sums") == (
        "2 of 20 sums exceed their bound, the worst is kahan, float16, normal, size 256."
    )


def test_the_page_itself_refuses_a_result_beyond_its_bound(page):
    assert page["check"](np.array([1.0, 1.5]), 1.0, 1.0, "x") == pytest.approx(0.5)
    assert page["check"](np.array([]), 1.0, 1.0, "nothing finite") == 0
    with pytest.raises(AssertionError, match="x is outside of its bound: 2 times"):
        page["check"](np.array([1.0, 3.0]), 1.0, 1.0, "x")


def test_independence(page):
    free, others = page["judge_independence"](planted_sums())
    assert free == "independent of the order: exact."
    assert "naive in 0% of the cases (otherwise up to 1e+03 ulp)" in others
    sums = planted_sums()
    sums.loc[at(sums, candidate="kahan", size=16), "spread"] = 0
    assert (
        "kahan in 50% of the cases (otherwise up to 20 ulp)"
        in [*page["judge_independence"](sums)][1]
    )
    sums.loc[at(sums, candidate="exact", size=16), "spread"] = 1
    assert next(page["judge_independence"](sums)).endswith("none of the summations.")
    assert list(page["judge_independence"](planted_sums(spread=0.0))) == [
        "independent of the order: naive, blocked, pairwise, kahan, exact."
    ]


def test_an_overflow_is_not_an_independence(page):
    sums = planted_sums()
    lost = at(sums, candidate="naive")
    sums.loc[lost, ["spread", "overflows"]] = [np.nan, 128]
    assert "naive" not in " ".join(page["judge_independence"](sums))


def test_overflows(page):
    sums = planted_sums()
    assert page["judge_overflows"](sums) == "no sum overflows."
    sums.loc[at(sums, type="float16", size=256, candidate="naive"), "overflows"] = 128
    assert page["judge_overflows"](sums) == (
        "float16: sums overflow in 1 of 20 cases, whatever the order."
    )
    sums.loc[at(sums, type="float16", size=256, candidate="kahan"), "overflows"] = 40
    assert page["judge_overflows"](sums) == (
        "float16: sums overflow in 2 of 20 cases; the order decides in 1 of them, for instance for "
        "40 of 128 orders (kahan, float16, normal, size 256)."
    )


def test_tolerance(page):
    sums = planted_sums()
    worst = at(sums, type="float16", size=256, candidate="naive")
    sums.loc[worst, ["walk", "worst"]] = [3.0, "sorted"]
    always, walk, order = page["judge_tolerance"](sums)
    assert "between two orders of 256 terms: 2 (n - 1) u sum|x| always holds" in always
    assert "3e-05 sum|x| in float32, 0.25 sum|x| in float16" in always  # 510 u
    assert "enough in 95.0% of the cases" in walk
    assert "is 3 times this (naive, float16, normal, size 256)" in walk
    assert order == "order of the largest error: random 94%, sorted 6%."


def test_predictions(page):
    held = page["judge_prediction"](planted_sums())
    assert held == (
        "predictions, 2 cases at the largest size: naive has the largest spread in 2, kahan does "
        "as well as blocked and pairwise or better in 2."
    )
    sums = planted_sums()
    sums.loc[at(sums, type="float16", size=256, candidate="kahan"), "spread"] = 101
    sums.loc[at(sums, type="float32", size=256, candidate="blocked"), "spread"] = 9999
    wrong = page["judge_prediction"](sums)
    assert "naive has the largest spread in 1, kahan" in wrong
    assert wrong.endswith("or better in 1 (not in float16).")


def test_libraries(page):
    mean, norm, *others = page["judge_libraries"](planted_libraries())
    assert mean == (
        "mean: two orders differ in 100% of the cases, by 64 ulp at most (torch, threads=1, "
        "float32, normal, size 512)."
    )
    assert norm.startswith("layer norm: two orders differ in 0% of the cases, by 0 ulp at most")
    assert others == [
        "the same run gives the same bits twice with every library.",
        "the number of threads changes no result.",
    ]
    libraries = planted_libraries()
    libraries.loc[at(libraries, threads=2, size=512), ["as first", "repeatable"]] = False
    assert list(page["judge_libraries"](libraries))[2:] == [
        "the same run gives the same bits twice, except with torch, threads=2.",
        "torch, threads=2: some results are not those of threads=1, from size 512.",
    ]


def test_one_number_of_threads_says_nothing_about_threads(page):
    alone = planted_libraries()
    sentences = page["judge_libraries"](alone[alone["threads"] == 1])
    assert not any("number of threads" in sentence for sentence in sentences)


def test_the_ulp_of_the_page_is_the_spacing_of_numpy(page):
    for dtype in (np.float16, np.float32, np.float64):
        values = np.array([1, 1.99, 2, 3000, 0.1, 1e-3], dtype)
        np.testing.assert_array_equal(
            page["ulp"](values.astype(np.float64), dtype), np.spacing(values).astype(np.float64)
        )


def test_normalized_terms_go_back_to_their_place(page, monkeypatch):
    values = np.float32([3, 1, 2])
    positions = np.array([[1, 2, 0], [0, 2, 1]])
    same = {"copy": lambda rows, _: {"mean": rows[:, 0], "layer norm": rows}}
    monkeypatch.setitem(page["run"].__globals__, "LIBRARIES", same)
    results = page["run"]("copy", values, positions, 1)
    np.testing.assert_array_equal(results["layer norm"], [values, values])
    assert results["mean"].tolist() == [1, 3]
