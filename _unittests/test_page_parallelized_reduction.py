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


def test_the_conclusion_is_short(page):
    claims = page["conclude"](planted_sums(), planted_libraries())
    assert len(claims) <= 10
    assert str(claims[0]).startswith("simulated sums: none of 20 leave their bound")
    assert "uses 25% of it" in str(claims[0])
    assert str(claims[1]).startswith("results of libraries: none of 8 leave their bound")
    assert "uses 50% of it" in str(claims[1])


def test_a_sum_beyond_its_bound_is_said(page):
    sums = planted_sums()
    sums.loc[at(sums, candidate="kahan", size=256, type="float16"), "share"] = 1.5
    sums.loc[at(sums, candidate="naive", size=16, type="float16"), "share"] = 1.1
    assert str(page["judge_bounds"](sums, "sums")).startswith(
        "sums: 2 of 20 leave their bound, whatever the order; the closest uses 150% of it (kahan"
    )


def test_the_page_itself_refuses_a_result_beyond_its_bound(page):
    assert page["check"](np.array([1.0, 1.5]), 1.0, 1.0, "x") == pytest.approx(0.5)
    assert page["check"](np.array([]), 1.0, 1.0, "nothing finite") == 0
    with pytest.raises(AssertionError, match="x is outside of its bound: 2 times"):
        page["check"](np.array([1.0, 3.0]), 1.0, 1.0, "x")


def test_the_answer_names_the_largest_spread_and_what_does_not_move(page):
    sums = planted_sums()
    sums.loc[at(sums, type="float16", size=256, candidate="naive"), "spread"] = 5000.0
    text = str(page["answer"](sums))
    assert "over 128 orders of 256 terms, a float16 sum (naive) moves by up to 5e+03 ulp" in text
    assert "its bound allows 1e+06" in text
    assert text.endswith("Only exact summation gives the same result in every order.")
    sums.loc[at(sums, candidate="exact", size=16), "spread"] = 1
    assert str(page["answer"](sums)).endswith("No summation gives the same result in every order.")


def test_an_overflow_is_not_an_independence(page):
    sums = planted_sums()
    sums.loc[at(sums, candidate="naive"), ["spread", "overflows"]] = [np.nan, 128]
    free, same = page["split_by_order"](sums)
    assert free == ["exact"]
    assert "naive" not in same


def test_overflows(page):
    sums = planted_sums()
    assert str(page["judge_overflows"](sums)) == "no sum overflows"
    sums.loc[at(sums, type="float16", size=256, candidate="naive"), "overflows"] = 128
    sums.loc[at(sums, type="float16", size=256, candidate="kahan"), "overflows"] = 40
    assert str(page["judge_overflows"](sums)) == (
        "float16: 2 of 10 cases overflow; in 1 of them only some orders do"
    )


def test_tolerance(page):
    sums = planted_sums()
    worst = at(sums, type="float16", size=256, candidate="naive")
    sums.loc[worst, "walk"] = 3.0
    always, walk = map(str, page["judge_tolerance"](sums))
    assert "two orders of 256 terms, times sum|x|: 3e-05 in float32, 0.25 in float16" in always
    assert "no useful guarantee" not in always
    assert "enough in 95.0% of the cases" in walk
    assert "is 3 times this (naive, float16, normal, size 256)" in walk
    sums["size"] *= 100
    useless = str(next(page["judge_tolerance"](sums)))
    assert useless.endswith("no useful guarantee in float16 at this length")


def test_predictions(page):
    naive, kahan = page["judge_predictions"](planted_sums())
    assert (naive.verdict, kahan.verdict) == ("right", "right")
    assert str(naive).endswith("it is in 2 of 2 cases")
    sums = planted_sums()
    sums.loc[at(sums, type="float16", size=256, candidate="kahan"), "spread"] = 101
    sums.loc[at(sums, type="float32", size=256, candidate="blocked"), "spread"] = 9999
    naive, kahan = page["judge_predictions"](sums)
    assert (naive.verdict, kahan.verdict) == ("wrong", "wrong")
    assert str(naive).endswith("it is in 1 of 2 cases")


def test_libraries(page):
    mean, norm, bits = map(str, page["judge_libraries"](planted_libraries()))
    assert mean == (
        "mean: two orders differ in 100% of the cases, by 64 ulp at most (torch, threads=1, "
        "float32, normal, size 512)"
    )
    assert norm.startswith("layer norm: two orders differ in 0% of the cases, by 0 ulp at most")
    assert bits == (
        "two identical runs give identical bits, in every library; the number of threads changes "
        "none"
    )
    libraries = planted_libraries()
    libraries.loc[at(libraries, threads=2, size=512), ["as first", "repeatable"]] = False
    assert str([*page["judge_libraries"](libraries)][2]) == (
        "two identical runs give identical bits, except with torch, threads=2; other threads than "
        "1 change some of torch, threads=2"
    )


def test_one_number_of_threads_says_nothing_about_threads(page):
    alone = planted_libraries()
    claims = page["judge_libraries"](alone[alone["threads"] == 1])
    assert not any("number of threads" in str(claim) for claim in claims)


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
