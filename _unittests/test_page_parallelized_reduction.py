"""The page on parallelized reductions, on planted results."""

import dataclasses
from types import SimpleNamespace

import golden
import numpy as np
import pandas as pd
import pytest
from page_runner import define_page

PAGE = define_page("plot_parallelized_reduction")
SPREADS = {"naive": 100.0, "blocked": 20.0, "pairwise": 10.0, "kahan": 2.0, "exact": 0.0}


def plant_sums(sizes=(16, 8192)):
    """One row per type, size and summation; the last size has ten times the spread."""
    rows = [
        {"type": name, "law": "normal", "size": n, "candidate": candidate}
        | {"spread": spread * (1 if n == sizes[0] else 10), "moves": 1e-9}
        | {"bound": 1e6, "share": 0.25, "overflows": 0, "orders": 128}
        for name in ("float32", "float16")
        for n in sizes
        for candidate, spread in SPREADS.items()
    ]
    return pd.DataFrame(rows)


def plant_libraries(threads=(1, 2)):
    """Another order moves a mean, and nothing else."""
    rows = [
        {"type": "float32", "law": "normal", "size": n, "result": result, "library": library}
        | {"threads": count, "candidate": f"{library}, threads={count}", "again": 0.0}
        | {"other threads": 0.0, "spread": n / 8 if result == "mean" else 0.0, "bound": 1e6}
        | {"share": 0.25}
        for library in ("onnxruntime", "torch")
        for n in (64, 65536)
        for count in threads
        for result in ("mean", "layer norm")
    ]
    return pd.DataFrame(rows)


def change(frame, column, value, **where):
    """Set a column of the rows that have these values."""
    rows = (frame[[*where]] == pd.Series(where)).all(axis=1)
    assert rows.any()
    frame.loc[rows, column] = value
    return frame


def concluded(**planted):
    data = {"sums": plant_sums(), "libraries": plant_libraries(), "type": "float32"}
    record = golden.recorded("plot_parallelized_reduction")
    return PAGE["study"].concluded(dataclasses.replace(record, data=record.data | data | planted))


def test_the_answer_says_when_to_test_equality_and_what_changes_the_result():
    answer = concluded().answer
    assert str(answer).startswith("Test equality only if nothing changes: ")
    assert str(answer).endswith("by up to 8,192 ulp (onnxruntime).")
    assert answer.small_print.endswith("theory allows 1,000,000 ulp")
    assert len(str(answer).split()) <= 35
    assert answer.label == "same bits"
    assert [bar.value for bar in answer.bars] == [0, 0, 8192]
    # Bars are those of the longest vectors, whatever the shorter ones.
    libraries = change(plant_libraries(), "other threads", 3.0, size=65536, threads=2)
    change(change(libraries, "spread", 16384.0, library="torch"), "spread", 99999.0, size=64)
    change(libraries, "again", 0.5, library="torch", size=64, threads=2)
    found = concluded(libraries=libraries)
    assert str(found.answer).startswith("Do not test equality: identical runs differ with torch. ")
    assert (found.answer.label, found.claims[0].verdict) == ("they differ", "wrong")
    assert [bar.value for bar in found.answer.bars] == [0, 3, 16384]


def test_one_number_of_threads_says_nothing_about_threads():
    alone = plant_libraries(threads=(1,))
    answer = concluded(libraries=alone).answer
    assert [bar.label for bar in answer.bars] == ["same run again", "another order"]
    assert "threads" not in str(answer)
    data = SimpleNamespace(libraries=alone, type="float32")
    assert PAGE["changes"](data)["other threads"].isna().all()


def test_the_table_of_changes_has_shares_of_cases_and_the_worst_law():
    libraries = change(plant_libraries(), "other threads", 3.0, library="torch", threads=2, size=64)
    wide = plant_libraries().assign(type="float64", spread=1e9)  # another type is not shown
    pareto = plant_libraries().assign(law="Pareto(1)", bound=2e6)
    pareto["spread"] *= 2
    libraries = pd.concat([libraries, wide, pareto], ignore_index=True)
    found = PAGE["changes"](SimpleNamespace(libraries=libraries, type="float32"))
    assert found.loc["torch", "mean"].tolist() == pytest.approx([0, 100 / 6, 100, 16384, 2e6])
    assert found.loc["torch", "layer norm"].tolist()[:3] == pytest.approx([0, 100 / 6, 100 / 3])


LONG, SHORT = (16, 8192), (16, 2048)  # a blocked sum is expected to be worse if n / 256 > log2(n)


@pytest.mark.parametrize(
    ("sizes", "where", "spread", "verdicts"),
    [
        (LONG, {"candidate": "naive", "size": 16}, 0.0, "right right right"),
        (LONG, {"candidate": "naive", "size": 8192, "type": "float16"}, 0.0, "wrong right right"),
        # 8192 * 2**-11 is 4 in float16: Kahan was predicted to be best in float32 alone.
        (LONG, {"candidate": "kahan", "size": 8192, "type": "float16"}, 101.0, "right right right"),
        (LONG, {"candidate": "kahan", "size": 8192, "type": "float32"}, 101.0, "right wrong right"),
        (LONG, {"candidate": "blocked", "size": 16}, 0.0, "right right right"),
        (LONG, {"candidate": "blocked", "size": 8192}, 0.0, "right wrong wrong"),
        (SHORT, {"candidate": "blocked", "size": 16}, 0.0, "right right undecided"),
    ],
)
def test_the_predictions_on_sums(sizes, where, spread, verdicts):
    found = concluded(sums=change(plant_sums(sizes), "spread", spread, **where))
    assert [claim.verdict for claim in found.claims[1:4]] == verdicts.split()


def test_the_predictions_on_threads_and_overflows():
    libraries = change(plant_libraries(), "other threads", 1.0, threads=2, size=65536)
    sums = change(plant_sums(), "overflows", 128, type="float16", size=8192, candidate="naive")
    claims = concluded(libraries=libraries, sums=sums).claims
    assert (claims[0].verdict, claims[-1].verdict) == ("right", "wrong")
    change(libraries, "other threads", 1.0, threads=2, size=64)
    change(sums, "overflows", 40, type="float16", size=8192, candidate="kahan")
    claims = concluded(libraries=libraries, sums=sums).claims
    assert (claims[0].verdict, claims[-1].verdict) == ("wrong", "right")
    # 16 identical runs, and 4 cases with 2 threads and 64 terms.
    assert golden.plain_claim(claims[0])["numbers"] == [16, 20]
    assert golden.plain_claim(claims[-1])["numbers"] == [10, 1, 1]  # one is lost in every order


def test_the_tolerances_are_those_of_theory():
    sums = change(plant_sums((16, 16384)), "moves", 0.5, type="float16", candidate="naive")
    found = PAGE["tolerances"](SimpleNamespace(sums=sums)).frame
    expected = {"float32": [2 * 16383 / 2**24, 256 / 2**24, 1e-9, 100]}
    expected["float16"] = [2 * 16383 / 2**11, 256 / 2**11, 0.5, 80]
    for name, values in expected.items():
        assert found.loc[name].tolist() == pytest.approx(values)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_result_is_described_beside_its_bound(dtype):
    for size in np.array([1, 1.99, 2, 3000, 0.1, 1e-3], dtype):
        got, unit = np.array([1.0, 1.5]), float(np.spacing(size))
        found = PAGE["describe"](np.dtype(dtype), got, 1.0, 1.0, float(size), again=got + 0.25)
        expected = {"spread": 0.5 / unit, "bound": 2 / unit, "again": 0.25 / unit, "share": 0.5}
        assert found == pytest.approx(expected | {"moves": 0.5 / float(size)})
    for wrong, share in ((3.0, 2.0), (np.nan, np.inf), (np.inf, np.inf)):
        found = PAGE["describe"](np.dtype(dtype), np.array([1.0, wrong]), 1.0, 1.0, 1.0)
        assert found["share"] == pytest.approx(share)


def test_the_answer_names_what_is_beyond_its_bound():
    """Seen on a GPU: a mean of float16 overflows."""
    libraries = change(plant_libraries(), "share", np.inf, library="torch", result="mean")
    told = concluded(libraries=libraries).answer.warning
    assert told == "Outside of its error bound: torch (mean, float32)."


def test_what_does_not_overflow_is_checked_beside_what_does(monkeypatch):
    values, some = np.float16([1, 2, 3]), np.array([6.0, np.inf])
    monkeypatch.setitem(PAGE, "simulated_sum", lambda rows, summation: some)
    assert PAGE["spread_of_sum"](values, [], "naive") == {"overflows": 1, "orders": 2}
    some[0] = 7.0
    with pytest.raises(AssertionError, match="outside of its bound"):
        PAGE["spread_of_sum"](values, [], "naive")


def test_normalized_terms_go_back_to_their_place(monkeypatch):
    values, positions = np.float32([3, 1, 2]), np.array([[1, 2, 0], [0, 2, 1]])
    monkeypatch.setitem(PAGE["LIBRARIES"], "copy", lambda rows, _: (rows[:, 0], rows))
    means, norms = PAGE["reduce_orders"]("copy", values, positions, 1)
    np.testing.assert_array_equal(norms, [values, values])
    assert means.tolist() == [1, 3]
