"""The conclusion of the page on parallelized reductions follows its tables."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from page_runner import run_page


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran."""
    return run_page("plot_parallelized_reduction")


SPREADS = {"naive": 100.0, "blocked": 20.0, "pairwise": 10.0, "kahan": 2.0, "exact": 0.0}


def planted_sums(sizes=(16, 8192), types=("float32", "float16"), **changes):
    """One row per type, size and summation; the last size has ten times the spread."""
    rows = [
        {
            "type": name,
            "law": "normal",
            "size": size,
            "candidate": candidate,
            "spread": spread * (1 if size == sizes[0] else 10),
            "bound": 1e6,
            "moves": 1e-9,
            "share": 0.25,
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
            "candidate": f"{library}, threads={threads}",
            "library": library,
            "threads": threads,
            "result": result,
            "again": 0.0,
            "other threads": 0.0,
            "spread": size / 8 if result == "mean" else 0.0,
            "bound": 1e6,
            "moves": size * 1e-9,
            "allowed": size * 1e-3,
            "share": 0.5,
        }
        for library in ("onnxruntime", "torch")
        for size in (64, 65536)
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
    assert set(page["libraries"].columns) == set(planted_libraries().columns)
    assert set(page["sums"]["candidate"]) == set(SPREADS)


def test_the_conclusion_is_short(page):
    answer, claims = page["conclude"](planted_sums(), planted_libraries(), "float32")
    assert len(claims) == 5
    assert [claim.verdict for claim in claims] == ["right"] * 4 + ["wrong"]  # nothing overflows
    assert len(str(answer).split()) <= 50


def test_the_page_itself_refuses_a_result_beyond_its_bound(page):
    assert page["check"](np.array([1.0, 1.5]), 1.0, 1.0, "x") == pytest.approx(0.5)
    assert page["check"](np.array([]), 1.0, 1.0, "nothing finite") == 0
    with pytest.raises(AssertionError, match="x is outside of its bound: 2 times"):
        page["check"](np.array([1.0, 3.0]), 1.0, 1.0, "x")


def test_the_answer_says_that_two_runs_agree_then_what_changes_the_result(page):
    libraries = planted_libraries()
    found = page["answer"](libraries, "float32")
    assert str(found) == (
        "Two identical runs do not differ: onnxruntime and torch give the same bits. Another order "
        "of the terms changes 50% of the results, another number of threads none. A "
        "float32 mean of 65,536 terms moves by up to 8,192 units in the last place (onnxruntime); "
        "theory allows 1,000,000."
    )
    assert found.label == "same bits"
    assert [(bar.label, bar.value) for bar in found.bars] == [
        ("same run again", 0),
        ("other threads", 0),
        ("another order", 8192),
    ]
    libraries.loc[at(libraries, library="torch", threads=2, size=65536), "other threads"] = 3
    libraries.loc[at(libraries, library="torch"), "spread"] *= 2
    libraries.loc[at(libraries, library="torch"), "bound"] = 123456
    short = at(libraries, size=64)
    libraries.loc[short, "spread"] = 99999
    libraries.loc[short & at(libraries, library="torch", threads=2), "other threads"] = 9
    found = page["answer"](libraries, "float32")
    assert "changes 75% of the results, another number of threads 50% (torch)." in str(found)
    assert "up to 16,384 units in the last place (torch); theory allows 123,000." in str(found)
    assert [bar.value for bar in found.bars] == [0, 3, 16384]  # the longest vectors alone


def test_one_number_of_threads_says_nothing_about_threads(page):
    libraries = planted_libraries()
    found = page["answer"](libraries[libraries["threads"] == 1], "float32")
    assert "threads" not in str(found)
    assert [bar.label for bar in found.bars] == ["same run again", "another order"]


def test_the_answer_names_the_libraries_whose_runs_differ(page):
    libraries = planted_libraries()
    libraries.loc[at(libraries, library="torch", size=64, threads=2), "again"] = 0.5
    found = page["answer"](libraries, "float32")
    assert str(found).startswith("Two identical runs differ with torch. Another order")
    assert found.label == "they differ"


def test_the_changes_are_counted(page):
    libraries = planted_libraries()
    libraries.loc[at(libraries, library="torch", threads=2, size=64), "other threads"] = 3
    found = page["change_table"](libraries, "float32", "CPU").frame
    assert found.index.tolist() == [
        *(("mean", "onnxruntime"), ("mean", "torch")),
        *(("layer norm", "onnxruntime"), ("layer norm", "torch"), ("both", "all")),
    ]
    row = ["0 of 4", "1 of 2", "4 of 4", 8192, 1e6]
    assert found.loc[("mean", "torch")].tolist() == row
    assert found.loc[("layer norm", "torch"), "order"] == "0 of 4"
    total = found.loc[("both", "all")]
    assert total.tolist()[:3] == ["0%", "25%", "50%"]
    assert total[["spread (ulp)", "bound (ulp)"]].isna().all()
    alone = libraries[libraries["threads"] == 1]
    found = page["change_table"](alone, "float32", "CPU").frame
    assert set(found["threads"]) == {"-"}


def test_the_spread_of_the_table_is_that_of_the_answer_and_of_the_plot(page):
    libraries = planted_libraries()
    other = planted_libraries(type="float64", spread=1e9)  # another type is not shown
    libraries.loc[at(libraries, size=64), "spread"] = 1e8  # nor are shorter vectors
    pareto = planted_libraries(law="Pareto(1)")
    pareto["spread"] *= 2
    libraries = pd.concat([libraries, other, pareto], ignore_index=True)
    table = page["change_table"](libraries, "float32", "CPU")
    assert table.frame.loc["mean", "spread (ulp)"].tolist() == [16384, 16384]
    assert "float32, 65,536 terms" in table.caption
    assert "up to 16,384 units" in str(page["answer"](libraries, "float32"))
    means = libraries[at(libraries, type="float32", result="mean")]
    assert page["find_worst"](means)["law"] == "Pareto(1)"
    ax = page["plot_libraries"](libraries, "float32", "CPU")
    assert max(max(line.get_ydata()) for line in ax.lines) == 1e6
    plt.close(ax.figure)


def test_the_table_of_sums_shows_what_overflows(page):
    sums = planted_sums()
    lost = at(sums, type="float16", size=8192)
    sums.loc[lost & at(sums, candidate="naive"), ["spread", "overflows"]] = [np.nan, 128]
    sums.loc[lost & at(sums, candidate="kahan"), ["spread", "overflows"]] = [np.nan, 40]
    found = page["spread_table"](sums).frame.loc[("float16", "normal")]
    assert found[list(SPREADS)].tolist() == ["overflow", "200", "100", "40 overflow", "0"]


def test_only_exact_summation_does_not_depend_on_the_order(page):
    spreads = page["sums"].groupby("candidate")["spread"].max()
    assert spreads[spreads == 0].index.tolist() == ["exact"]


def test_tolerance(page):
    sums = planted_sums(sizes=(16, 16384))
    found = page["tolerance_table"](sums).frame
    assert found.loc["float32", "guaranteed"] == pytest.approx(2 * 16383 * 2**-24)
    assert found.loc["float32", "random walk"] == pytest.approx(2 * 128 * 2**-24)
    assert found.loc["float16", "guaranteed"] == "nothing"
    assert found.loc["float16", "random walk is enough (%)"] == 100
    sums.loc[at(sums, type="float16", candidate="naive"), "moves"] = 0.5
    found = page["tolerance_table"](sums).frame.loc["float16"]
    assert found.tolist()[2:] == [0.5, 80]


def test_predictions_on_summations(page):
    naive, kahan, blocked = page["judge_spreads"](planted_sums())
    assert [claim.verdict for claim in (naive, kahan, blocked)] == ["right"] * 3
    assert str(naive) == "Right: the naive sum has the largest spread (2 of 2 cases)"
    # 8192 * 2**-11 is 4 in float16: Kahan was predicted to be best in float32 alone.
    assert str(kahan).endswith("where n u < 1 (1 of 1 cases, 1 of 1 elsewhere)")
    sums = planted_sums()
    sums.loc[at(sums, type="float16", size=8192, candidate="kahan"), "spread"] = 101
    sums.loc[at(sums, type="float32", size=8192, candidate="blocked"), "spread"] = 9999
    naive, kahan, _ = page["judge_spreads"](sums)
    assert (naive.verdict, kahan.verdict) == ("wrong", "right")
    assert str(naive).endswith("(1 of 2 cases)")
    assert str(kahan).endswith("(1 of 1 cases, 0 of 1 elsewhere)")
    sums.loc[at(sums, type="float32", size=8192, candidate="kahan"), "spread"] = 101
    assert [*page["judge_spreads"](sums)][1].verdict == "wrong"


def test_blocked_and_pairwise_are_compared_where_they_should_differ(page):
    sums = planted_sums()
    sums.loc[at(sums, candidate="blocked", size=16), "spread"] = 0
    assert [*page["judge_spreads"](sums)][2].verdict == "right"
    sums.loc[at(sums, candidate="blocked", size=8192, type="float16"), "spread"] = 0
    blocked = [*page["judge_spreads"](sums)][2]
    assert blocked.verdict == "wrong"
    assert str(blocked).endswith("than a pairwise one (1 of 2 cases)")
    short = [*page["judge_spreads"](planted_sums(sizes=(16, 2048)))][2]
    assert short.verdict == "undecided"  # 2048 / 256 is below log2(2048)


def test_overflows_are_counted_among_the_cases_of_their_type(page):
    sums = planted_sums()
    sums.loc[at(sums, type="float16", size=8192, candidate="naive"), "overflows"] = 128
    (claim,) = page["judge_overflows"](sums)
    assert claim.verdict == "wrong"
    sums.loc[at(sums, type="float16", size=8192, candidate="kahan"), "overflows"] = 40
    (claim,) = page["judge_overflows"](sums)
    assert claim.verdict == "right"
    assert str(claim) == (
        "Right: in float16, 1 of 10 sums overflow in some orders only, 1 in every order"
    )


def test_predictions_on_libraries(page):
    libraries = planted_libraries()
    (claim,) = page["judge_runs"](libraries)
    assert claim.verdict == "right"
    assert str(claim) == (
        "Right: identical runs give the same bits; below 32,768 terms, so do other threads"
    )
    libraries.loc[at(libraries, threads=2, size=65536), "other threads"] = 1
    assert next(iter(page["judge_runs"](libraries))).verdict == "right"
    libraries.loc[at(libraries, threads=2, size=64), "other threads"] = 1
    (claim,) = page["judge_runs"](libraries)
    assert claim.verdict == "wrong"
    # 16 identical runs, and the 4 cases with 2 threads and 64 terms.
    assert str(claim).endswith("so do other threads (4 of 20 cases change)")


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
